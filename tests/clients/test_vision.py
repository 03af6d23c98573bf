"""The published client's own job files for Qwen3-VL, run by the client itself: a tiny model that sees stands in.

What is changed of them is said here: their paths, their sizes, and what the client itself refuses.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import tomlkit

from synth.bus.server.embedded import free_port
from task_apps.colours.dataset import rows
from tests.clients.conftest import ENVIRONMENT_KEY
from tests.clients.published import Published
from tests.e2e.cli.conftest import eventually
from tests.e2e.crafter_jobs import submit_sft
from tests.e2e.platform import Platform
from tests.e2e.task_apps import app_process

pytestmark = pytest.mark.timeout(1200)
SFT_BASE, RL_BASE = "Qwen/Qwen3-VL-2B-Instruct", "Qwen/Qwen3-VL-4B-Instruct"
BASES = (SFT_BASE, RL_BASE, "Qwen/Qwen3-VL-8B-Instruct", "Qwen/Qwen3-VL-30B-A3B-Thinking")
#: Two examples that have a test of their own.
CRAFTER_RL = "qwen_vl/configs/crafter_rl_vision_qwen3vl4b.toml"
COLOURS_SFT = "qwen_vl/configs/sft_qwen3_vl_2b_test.toml"
_JOB = r"(job_[0-9a-z]+)"


@pytest.fixture(scope="module")
def client(published: Callable[[str], Published], platform: Platform) -> Published:
    """Version 0.2.23, and the bases of its examples on the cluster."""
    platform.shell.ok("models", "make", "tiny-qwen3-vl")
    for base in BASES:
        platform.shell.ok("models", "alias", base, "tiny-qwen3-vl")
    return published("synth-ai-0.2.23")


@contextmanager
def plain_app(name: str) -> Iterator[str]:
    """A task app that was written without our SDK, a process of its own."""
    port = free_port()
    command = [sys.executable, "-m", "tests.clients.plain_vision_app", str(port), name]
    process = subprocess.Popen(command, env={**os.environ, "ENVIRONMENT_API_KEY": ENVIRONMENT_KEY})
    url = f"http://127.0.0.1:{port}"
    try:
        eventually(lambda: _answers(url))
        yield url
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture(scope="module")
def gallery_url() -> Iterator[str]:
    with plain_app("gallery") as url:
        yield url


@pytest.fixture(scope="module")
def pokemon_url() -> Iterator[str]:
    with plain_app("pokemon_red") as url:
        yield url


@pytest.fixture(scope="module")
def crafter_url() -> Iterator[str]:
    with app_process("task_apps.crafter", ENVIRONMENT_KEY) as url:
        yield url


def example(client: Published, path: str) -> dict[str, Any]:
    """One of the job files that the client's wheel has for Qwen3-VL."""
    return tomllib.loads(example_file(client, path).read_text())


def example_file(client: Published, path: str) -> Path:
    return client.venv / "lib" / "python3.11" / "site-packages" / "examples" / path


def test_the_clients_sft_example_trains_an_adapter_with_the_projector(client: Published, platform: Platform):
    config = example(client, COLOURS_SFT)
    assert "mm_projector" in config["hyperparameters"]["lora_target_modules"]
    file = Path(client.write("".join(f"{json.dumps(row)}\n" for row in rows(32, seed=0)), "pictures.jsonl"))
    config["job"]["data"] = str(file)
    done = client.train("sft", client.write(tomlkit.dumps(config)))
    assert done.code == 0, done.text
    assert "Final status: succeeded" in done.text, done.text
    job = platform.api.get(f"/api/jobs/{done.found(f'Job created .id={_JOB}')}").json()
    assert job["resolved"]["vision"]["max_images_per_message"] == 1
    assert job["model"].startswith(f"peft:{SFT_BASE}:")


def test_the_clients_rl_example_plays_an_app_that_shows_images(client: Published, platform: Platform, gallery_url: str):
    config = example(client, CRAFTER_RL)
    # The client itself refuses a judge without provider and model.
    del config["judge"]
    # One of each, and replies as long as a tiny model's context bears.
    config["rollout"] |= {"max_turns": 2, "env_name": "gallery"}
    config["rollout"]["policy_config"] |= {"max_tokens": 12, "max_llm_calls": 2}
    config["rollout"]["env_config"] = {}
    config["training"] |= {"iterations_per_epoch": 2, "max_turns": 2, "group_size": 4}
    config["evaluation"] |= {"instances": 2, "every_n_iters": 1, "seeds": [0, 1]}
    done = client.train("rl", client.write(tomlkit.dumps(config)), task_url=gallery_url)
    assert done.code == 0, done.text
    assert "Final status: succeeded" in done.text, done.text
    job = done.found(f'"job_id": "{_JOB}"')
    played = platform.api.get(f"/api/jobs/{job}/rollouts", params={"limit": 1}).json()["data"][0]
    told = platform.api.get(f"/api/jobs/{job}/rollouts/{played['id']}").json()
    # image_only_mode: an image, and no text.
    assert [part["type"] for part in told["transcript"]["turns"][0]["messages"][0]["content"]] == ["image"]
    assert all(step["mismatch_max_lag0"] <= 1e-4 for step in platform.steps(job) if "mismatch_max_lag0" in step)
    evaluation = f"""
        [eval]
        model = "{RL_BASE}"
        seeds = "0-3"
        task_app_url = "{gallery_url}"
        env_name = "gallery"
        max_turns = 2
        max_tokens = 12
        use_vision = true
    """
    ended = platform.succeeded(platform.shell.ok("eval", platform.write(evaluation, "vision"), "--detach").strip())
    assert ended["eval"]["rollouts"] == 4


@pytest.fixture(scope="module")
def tuned(client: Published, platform: Platform) -> str:
    """A model that a job made, for the examples that go on from one."""
    return platform.succeeded(submit_sft(platform, RL_BASE, episodes=32, steps=32))["model"]


def play_crafter_example(platform: Platform, client: Published, app_url: str, model: str, *changes: str) -> str:
    """Run the client's RL example for Crafter on a machine without a GPU, which plays four turns; returns the job."""
    # A tiny model learns a line of text in seconds, and the tool's JSON in minutes.
    changes += ("rollout.policy_config.use_tools=false", "rollout.max_turns=4")
    changes += ("rollout.policy_config.max_llm_calls=4", "training.max_turns=4")
    flags = ("--task-url", app_url, "--model", model)
    job = submit(platform, example_file(client, CRAFTER_RL), *changes, *flags)
    platform.succeeded(job)
    return job


def check_crafter_job(platform: Platform, job: str) -> None:
    """The job's steps and its longest rollout are what the example's file asks for."""
    steps = platform.steps(job)
    # The file allows one image a prompt, so a turn shows the picture before it no more.
    assert all(step["branch_breaks"] > 0 for step in steps)
    assert all(step["mismatch_max_lag0"] <= 1e-4 for step in steps if "mismatch_max_lag0" in step)
    played = platform.api.get(f"/api/jobs/{job}/rollouts", params={"limit": 100}).json()["data"]
    longest = max(played, key=lambda rollout: rollout["calls"])
    assert longest["calls"] == 4
    told = platform.api.get(f"/api/jobs/{job}/rollouts/{longest['id']}").json()
    # As its `step_rewards` have it.
    worth = [step["info"]["stepwise"] for step in told["transcript"]["answer"]["steps"]]
    assert {turn["strategy"] for turn in worth} == {"consistent"}
    assert sum(turn["indicator"] for turn in worth) == sum(turn["reward"] for turn in worth)


def test_the_clients_crafter_example_plays_crafter_with_its_own_env_config(
    client: Published, platform: Platform, crafter_url: str, tuned: str
):
    changes = ("training.iterations_per_epoch=2", "training.group_size=6", "rollout.policy_config.max_tokens=24")
    changes += ("evaluation.instances=2", "evaluation.seeds=[0, 1]", "rollout.env_config.max_invalid_turns=9")
    job = play_crafter_example(platform, client, crafter_url, tuned, *changes)
    assert len(platform.steps(job)) == 2
    check_crafter_job(platform, job)


@pytest.mark.soak
def test_the_clients_crafter_example_learns_in_crafter(client: Published, platform: Platform, crafter_url: str):
    player = platform.succeeded(submit_sft(platform, RL_BASE))["model"]
    # Of the file's groups of 2 too few have rewards that differ.
    job = play_crafter_example(platform, client, crafter_url, player, "training.group_size=4")
    assert len(platform.steps(job)) == 3
    assert sum(step["groups_kept"] for step in platform.steps(job)) > 0
    check_crafter_job(platform, job)


#: Of the client's other examples for models that see, what is changed of each. A tiny model that was taught nothing of
#: them writes until it may write no more, and a machine without a GPU plays a handful of episodes.
EXAMPLES = {
    "blog_posts/pokemon_vl/configs/train_sft_qwen4b_vl.toml": (),
    "qwen_vl/configs/crafter_vlm_sft_example.toml": (),
    "blog_posts/pokemon_vl/configs/train_rl_from_sft.toml": (
        "rollout.policy_config.max_tokens=12",
        "training.iterations_per_epoch=1",
        "training.batch_size=2",
        "training.group_size=4",
        "evaluation.instances=2",
        "evaluation.seeds=[0, 1]",
    ),
    "blog_posts/pokemon_vl/configs/eval_qwen3_vl.toml": (
        "eval.policy_config.max_tokens=24",
        "eval.policy_config.thinking_budget=8",
    ),
    "blog_posts/pokemon_vl/configs/eval_rl_final.toml": ("eval.policy_config.max_tokens=24",),
    "qwen_vl/configs/eval_qwen3vl_vision.toml": (
        'eval.seeds="100-103"',
        "eval.max_turns=3",
        "eval.policy_config.max_tokens=24",
    ),
}


@pytest.mark.parametrize("path", EXAMPLES)
def test_an_example_that_is_accepted_runs(
    client: Published, platform: Platform, crafter_url: str, pokemon_url: str, tuned: str, path: str
):
    file = example_file(client, path)
    text = file.read_text()
    flags = ["--model", tuned] if "REPLACE" in text else []
    if 'type = "offline"' in text:
        flags += ["--dataset", str(pictures(client))]
    else:
        flags += ["--task-url", pokemon_url if "pokemon" in path else crafter_url]
    job = submit(platform, file, *EXAMPLES[path], *flags)
    platform.succeeded(job)
    assert platform.events(job, "job.verified")
    played = platform.api.get(f"/api/jobs/{job}/rollouts", params={"limit": 100}).json()["data"]
    assert {rollout["outcome"] for rollout in played} == (set() if 'type = "offline"' in text else {"ok"})


def test_each_example_for_a_model_that_sees_and_that_is_accepted_is_run_here():
    table = (Path(__file__).parents[2] / "docs" / "client-examples.md").read_text()
    found = [[cell.strip() for cell in line.split("|")[1:5]] for line in table.splitlines() if line.startswith("| `")]
    folders = ("examples/qwen_vl/", "examples/blog_posts/pokemon_vl/")
    accepted = {
        file.strip("`").removeprefix("examples/")
        for file, _, _, verdict in found
        if file.strip("`").startswith(folders) and verdict.startswith("accepted")
    }
    assert accepted == {*EXAMPLES, CRAFTER_RL, COLOURS_SFT}


def pictures(client: Published) -> Path:
    """Rows with an image each."""
    return client.folder / client.write("".join(f"{json.dumps(row)}\n" for row in rows(32, seed=0)), "pictures.jsonl")


def submit(platform: Platform, file: Path, *changes: str) -> str:
    """Submit one of the client's files as it is but for `key=value` changes and flags; returns the job."""
    flags = [word for change in changes for word in (["--set", change] if "=" in change else [change])]
    return platform.shell.ok("submit", str(file), *flags, "--detach").strip()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/").status_code == 200
    except httpx.TransportError:
        return False
