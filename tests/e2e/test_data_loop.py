"""From a model's rollouts to the next model, on Math: an evaluation, its exact sums as a dataset, a job on them.

The flywheel runs once. It teaches a model two ways to answer, of which the environment pays one, and trains it on what
was paid. The other tests filter rollouts of the model that its first job made.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from synth.demo.math import dataset
from synth.runtime.environment.env_file import read_env_file
from tests.e2e.platform import Platform
from tests.e2e.task_apps import app_process

pytestmark = [pytest.mark.timeout(1200), pytest.mark.long]

ROOT = Path(__file__).parents[2]
SEEDS = 256


@pytest.fixture(scope="module")
def math_url() -> Iterator[str]:
    with app_process("synth.demo.math") as url:
        yield url


@pytest.fixture(scope="module")
def sums(platform: Platform) -> Path:
    file = platform.shell.folder / "loop.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in dataset.rows(16_000, seed=0)))
    return file


@dataclass(frozen=True)
class Flywheel:
    """The result of `examples.flywheel`. rewards: the held-out reward of each model. jobs: name without prefix → id."""

    rewards: dict[str, float]
    jobs: dict[str, str]


@pytest.fixture(scope="module")
def flywheel(platform: Platform, sums: Path, math_url: str) -> Flywheel:
    """Run the flywheel; kill it after its first model, and start it again with the same line."""
    sft = (ROOT / "configs/demo/sft.toml").read_text().replace("total_steps = 1000", "total_steps = 500")
    (platform.shell.folder / "loop_sft.toml").write_text(sft)
    rl = (ROOT / "configs/demo/rl.toml").read_text().replace("iterations_per_epoch = 30", "iterations_per_epoch = 12")
    (platform.shell.folder / "loop_rl.toml").write_text(rl)
    held_out = (ROOT / "configs/demo/eval.toml").read_text().replace("1000000-1000511", "1000000-1000191")
    (platform.shell.folder / "loop_eval.toml").write_text(held_out)
    command = [
        *(sys.executable, "-m", "examples.flywheel", "--name", "loop", "--dataset", str(sums)),
        *("--task-url", math_url, "--rl", "loop_rl.toml", "--sft", "loop_sft.toml"),
        *("--play", f"{ROOT}/configs/flywheel/eval.toml", "--distil", f"{ROOT}/configs/flywheel/sft.toml"),
        *("--eval", "loop_eval.toml"),
    ]
    env = {**os.environ, **read_env_file(platform.shell.folder / ".env")}
    env["PYTHONPATH"] = f"{ROOT}/shared:{ROOT}/services:{ROOT}"
    settings: dict[str, Any] = {"cwd": platform.shell.folder, "env": env, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **settings) as first:
        assert first.stdout is not None
        assert first.stdout.readline().startswith("sft-0")
        first.kill()
    again = subprocess.run(command, **settings, check=True, timeout=1000)
    rewards = {line.split()[0]: float(line.split()[-1]) for line in again.stdout.splitlines()}
    jobs = [(job.name, job.id) for job in platform.client.jobs.list(limit=100)]
    ours = [(name.removeprefix("loop-"), id) for name, id in jobs if name and name.startswith("loop-")]
    assert len(ours) == len(dict(ours))
    return Flywheel(rewards, dict(ours))


@pytest.fixture(scope="module")
def taught(platform: Platform, flywheel: Flywheel) -> str:
    """A model that works out some sums, and estimates the others."""
    return platform.succeeded(flywheel.jobs["sft-0"])["model"]


def evaluate(platform: Platform, model: str, url: str, seeds: str) -> str:
    toml = f'[eval]\nmodel = "{model}"\nseeds = "{seeds}"\nmax_tokens = 32\nenv_name = "math"\nconcurrency = 64\n'
    job = platform.submit(toml, "--task-url", url)
    platform.succeeded(job)
    return job


@pytest.fixture(scope="module")
def played(platform: Platform, taught: str, math_url: str) -> str:
    return evaluate(platform, taught, math_url, f"0-{SEEDS - 1}")


def test_a_flywheel_that_was_killed_goes_on_where_it_was(flywheel: Flywheel):
    rewards = flywheel.rewards
    assert list(rewards) == ["sft-0", "rl-1", "sft-1"]
    assert rewards["rl-1"] > rewards["sft-0"] + 0.1
    assert rewards["sft-1"] > rewards["sft-0"] + 0.1
    held_out = {f"{model}-held-out" for model in rewards}
    assert flywheel.jobs.keys() == {*rewards, *held_out, "play-1"}


def test_the_verdict_of_a_job_that_learned_compares_its_last_policy_with_its_source(
    platform: Platform, flywheel: Flywheel
):
    job = flywheel.jobs["rl-1"]
    # Evaluations are due every 10 steps, and the last step is 12.
    assert [event["step"] for event in platform.events(job, "eval.completed")] == [0, 10, 12]
    verdict = platform.job(job)["verdict"]
    assert (verdict["outcome"], verdict["count"], verdict["cause"]) == ("learned", 128, "")
    assert 0 < verdict["low"] < verdict["after"] - verdict["before"] < verdict["high"]
    line = f"learned: {verdict['before']:.2f} → {verdict['after']:.2f} on 128 seeds (interval of the difference "
    assert line in " ".join(platform.shell.run("jobs", "watch", job).stderr.split())


def test_a_filtered_dataset_is_uploaded_with_every_exact_row(platform: Platform, played: str):
    shell = platform.shell
    traces = shell.json("traces", "ls", "--job", played, "--limit", str(SEEDS))
    exact = {t["id"] for t in traces if t["reward"] == 1.0}
    assert len(traces) == SEEDS
    file = shell.ok("filter", "--job", played, "--min-reward", "1", "--upload").strip()
    assert platform.client.files.get(file).rows == len(exact)


def test_a_filter_says_which_key_dropped_how_many(platform: Platform, played: str):
    shell = platform.shell
    said = shell.json("filter", "--job", played, "--min-reward", "1", "--out", "exact.jsonl")
    rows = [json.loads(line) for line in (shell.folder / "exact.jsonl").read_text().splitlines()]
    assert said["dropped"] == {"min_reward": SEEDS - len(rows)}
    for row in rows:
        assert [message["role"] for message in row["messages"]] == ["user", "assistant"]
        assert row["metadata"]["total_reward"] == 1.0
    nothing = shell.run("filter", "--job", played, "--min-reward", "2", "--out", "none.jsonl")
    assert nothing.returncode == 1
    assert f"none of {SEEDS} traces is left: dropped by min_reward {SEEDS}" in " ".join(nothing.stderr.split())
    assert not (shell.folder / "none.jsonl").exists()


def test_an_exported_database_is_filtered_to_the_same_conversations(platform: Platform, played: str):
    shell = platform.shell
    assert f"{SEEDS} traces" in shell.ok("traces", "export", "t.db", "--job", played, "--format", "sqlite")
    said: list[list[str]] = []
    for source in (("--db", "t.db"), ("--job", played)):
        shell.ok("filter", *source, "--out", "rows.jsonl")
        lines = (shell.folder / "rows.jsonl").read_text().splitlines()
        said.append(sorted(json.dumps(json.loads(line)["messages"], sort_keys=True) for line in lines))
    assert said[0] == said[1]
    assert len(said[0]) > SEEDS // 2


def test_a_reply_that_was_cut_off_is_no_row(platform: Platform, taught: str, math_url: str):
    """A sum that is worked out is longer than ten tokens, an estimate is not."""
    shell = platform.shell
    toml = f'[eval]\nmodel = "{taught}"\nseeds = "0-31"\nmax_tokens = 10\nenv_name = "math"\n'
    job = platform.submit(toml, "--task-url", math_url)
    platform.succeeded(job)
    shell.ok("traces", "export", "short.db", "--job", job, "--format", "sqlite")
    for source in (("--db", "short.db"), ("--job", job)):
        said = shell.json("filter", *source, "--out", "short.jsonl")
        kept = (shell.folder / "short.jsonl").read_text().splitlines()
        assert all("at least" in line for line in kept)
        assert 0 < said["dropped"]["cut off"] == 32 - len(kept)


def test_a_job_that_a_grader_pays_is_submitted_with_its_rows(platform: Platform, taught: str):
    """The address of a task app that is there for other jobs changes nothing."""
    rows = platform.shell.folder / "prompts.jsonl"
    asked = [{"messages": [{"role": "user", "content": f"What is {n} + {n}?"}], "n": f"{2 * n}"} for n in range(10, 26)]
    rows.write_text("".join(f"{json.dumps(row)}\n" for row in asked))
    text = f"""
[algorithm]
type = "online"
method = "policy_gradient"
variety = "gspo"
[job]
data = "prompts.jsonl"
[data]
seeds = "0-15"
[model]
source = "{taught}"
[rollout.policy_config]
max_tokens = 32
[training]
iterations_per_epoch = 2
batch_size = 4
group_size = 4
[grader]
type = "string_check"
name = "exact"
operation = "like"
input = "{{{{sample.output_text}}}}"
reference = "answer {{{{item.n}}}}"
"""
    job = platform.shell.ok("submit", platform.write(text), "--detach", TASK_APP_URL="http://127.0.0.1:9").strip()
    resolved = platform.succeeded(job)["resolved"]
    rewards = [event["reward"] for event in platform.events(job, "rollout.completed")]
    assert len(rewards) == 32
    assert set(rewards) == {0.0, 1.0}
    used = platform.api.get(f"/api/files/{resolved['graded']['training_file']}/jobs")
    assert job in [found["id"] for found in used.json()["data"]]
