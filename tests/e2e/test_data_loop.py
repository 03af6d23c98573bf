"""From a model's rollouts to the next model: an evaluation, its best traces as a dataset, a job on them."""

from __future__ import annotations

import json
import statistics

import pytest

from tests.e2e.platform import Platform, sft
from tests.e2e.task_apps import Served

pytestmark = pytest.mark.timeout(240)

SEEDS = 16


@pytest.fixture(scope="module")
def evaluated(platform: Platform, letters_app: Served) -> str:
    toml = f'[eval]\nmodel = "tiny-qwen3"\nseeds = "0-{SEEDS - 1}"\nmax_tokens = 12\nenv_name = "letters"\n'
    job = platform.submit(toml, "--task-url", letters_app.url)
    platform.succeeded(job)
    return job


def test_an_evaluations_best_rollouts_are_the_rows_of_the_next_job(platform: Platform, evaluated: str):
    shell = platform.shell
    traces = shell.json("traces", "ls", "--job", evaluated, "--limit", "50")
    assert {t["id"] for t in traces} == {f"{evaluated}_e0_{n}" for n in range(SEEDS)}
    floor = statistics.median(t["reward"] for t in traces)
    good = {t["id"]: t["reward"] for t in traces if t["reward"] >= floor}
    file = shell.ok("filter", "--job", evaluated, "--top-k", "1", "--min-reward", str(floor), "--upload").strip()
    assert shell.json("files", "get", file)["rows"] == len(good)
    platform.succeeded(platform.submit(sft(steps=4), "--dataset", file))

    again = shell.json("filter", "--job", evaluated, "--min-reward", str(floor), "--out", "good.jsonl")
    assert again["dropped"] == {"min_reward": SEEDS - len(good)}
    rows = [json.loads(line) for line in (shell.folder / "good.jsonl").read_text().splitlines()]
    assert {row["metadata"]["session_id"]: row["metadata"]["total_reward"] for row in rows} == good
    for row in rows:
        assert [message["role"] for message in row["messages"]] == ["user", "assistant"]
        # What is trained is what was paid for.
        assert len(set(row["messages"][1]["content"])) / 32 == row["metadata"]["total_reward"]


def test_a_filter_that_keeps_nothing_says_which_key_dropped_how_many(platform: Platform, evaluated: str):
    nothing = platform.shell.run("filter", "--job", evaluated, "--min-reward", "2", "--out", "none.jsonl")
    assert nothing.returncode == 1
    assert f"none of {SEEDS} traces is left: dropped by min_reward {SEEDS}" in " ".join(nothing.stderr.split())
    assert not (platform.shell.folder / "none.jsonl").exists()


def test_an_exported_database_is_filtered_to_the_same_conversations(platform: Platform, evaluated: str):
    shell = platform.shell
    assert f"{SEEDS} traces" in shell.ok("traces", "export", "t.db", "--job", evaluated, "--format", "sqlite")
    said: list[list[str]] = []
    for source in (("--db", "t.db"), ("--job", evaluated)):
        shell.ok("filter", *source, "--out", "rows.jsonl")
        lines = (shell.folder / "rows.jsonl").read_text().splitlines()
        said.append(sorted(json.dumps(json.loads(line)["messages"], sort_keys=True) for line in lines))
    assert said[0] == said[1]
    # A reply of no token is no row.
    traces = shell.json("traces", "ls", "--job", evaluated, "--limit", "50")
    assert len(said[0]) == sum(t["reward"] > 0 for t in traces)
