"""OpenAI's documented fine-tuning examples run by the newest SDK, and an account that moves to a cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from examples.openai_export import rows
from synth.runtime.environment.env_file import read_env_file
from tests.clients.conftest import venv_of
from tests.clients.published import Published
from tests.e2e.cli.conftest import Shell
from tests.judge_server import JudgeCall, JudgeServer, Scripted, said
from tests.unit.cli.backend import backend_that
from tests.unit.cli.openai_account.account import KEY, StubAccount, job

pytestmark = pytest.mark.timeout(900)


def verdict(call: JudgeCall) -> Scripted:
    """A judge that gives 8 of 10, and the label `good`."""
    schema = json.dumps(call.body.get("response_format", {})) + call.messages[0]["content"]
    return said(
        json.dumps({"reason": "seen", "label": "good"} if '"good"' in schema else {"reason": "seen", "score": 8})
    )


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A cluster whose operator runs code of graders."""
    shell = Shell(tmp_path_factory.mktemp("examples"))
    with JudgeServer(verdict) as judge:
        judges = json.dumps({"scripted": {"base_url": judge.url}})
        settings = {"SYNTH_JUDGE_PROVIDERS": judges, "SYNTH_JUDGE_PROVIDER": "scripted", "SYNTH_PYTHON_GRADERS": "true"}
        shell.ok("up", "--detach", "--port", str(shell.port), **settings)
        try:
            shell.make_model()
            shell.ok("models", "make", "tiny-qwen3-vl")
            yield shell
        finally:
            shell.run("down")
    assert shell.alive() == []


@pytest.fixture(scope="module")
def seen(shell: Shell) -> dict[str, Any]:
    """What the examples saw."""
    key = read_env_file(shell.folder / ".env")["SYNTH_API_KEY"]
    root = f"http://127.0.0.1:{shell.port}"
    client = Published(venv=venv_of("openai"), folder=shell.folder, root=root, api_key=key)
    return client.script("openai_examples.py", "a-judge")


@pytest.mark.parametrize("example", ["tools", "vision", "dpo", "near", "all"])
def test_an_example_ends_in_a_model(seen: dict[str, Any], example: str):
    job = seen["jobs"][example]
    assert (job["status"], job["error"] and job["error"]["message"]) == ("succeeded", None)
    assert job["fine_tuned_model"].endswith(job["id"])
    assert job["trained_tokens"] > 0


def test_each_grader_gives_its_reward(seen: dict[str, Any]):
    graded = {name: reward for name, (reward, errors) in seen["graded"].items() if not errors}
    assert 0 < graded["near"] < 1
    assert (graded["check"], graded["score"], graded["label"], graded["code"]) == (1.0, 8.0, 1.0, 1.0)
    assert graded["all"] == pytest.approx((1 + graded["near"] + 0.8 + 1 + 1) / 5)


def test_a_job_is_paused_resumed_and_cancelled(seen: dict[str, Any]):
    assert seen["paused"] == "paused"
    assert seen["resumed"] in ("queued", "running", "validating_files")
    assert seen["cancelled"] == "cancelled"


def test_lists_are_whole_page_by_page(seen: dict[str, Any]):
    assert (seen["listed"], seen["page"], seen["found"]) == (True, [2, True], True)
    assert seen["events"]["types"] == ["message", "metrics"]
    assert seen["events"]["unique"]
    assert seen["events"]["newest_first"]
    steps = seen["events"]["steps"]
    assert steps == sorted(steps, reverse=True)
    assert len(steps) == 8


def test_checkpoints_results_and_the_model_are_there(seen: dict[str, Any]):
    model = seen["jobs"]["tools"]["fine_tuned_model"]
    assert seen["checkpoints"]
    assert all(name == f"{model}:step_{step}" for step, name in seen["checkpoints"])
    assert "train_loss" in seen["results"]
    assert "valid_loss" in seen["results"]
    assert isinstance(seen["called"]["minutes"], int)


def as_jsonl(rows: list[dict[str, Any]]) -> bytes:
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


def test_an_account_is_imported_trained_and_compared_by_the_tutorials_commands(shell: Shell):
    tickets = rows(96, seed=0)
    asked = [{"messages": row["messages"][:1]} for row in tickets]
    better, worse = ([{"role": "assistant", "content": text}] for text in ("Welcome!", "What?"))
    pairs = [{"input": row, "preferred_output": better, "non_preferred_output": worse} for row in asked[:16]]
    files = {
        "file-train": as_jsonl(tickets[:64]),
        "file-held-out": as_jsonl(tickets[64:]),
        "file-pairs": as_jsonl(pairs),
        "file-prompts": as_jsonl([row | {"answer": "billing"} for row in asked[:8]]),
    }
    grader = {"type": "text_similarity", "name": "queue", "evaluation_metric": "fuzzy_match"}
    grader |= {"input": "{{sample.output_text}}", "reference": "{{item.answer}}"}
    once = {"n_epochs": 1, "batch_size": 4}
    jobs = [
        job("ftjob-sft", validation_file="file-held-out", hyperparameters=once),
        job("ftjob-dpo", "dpo", training_file="file-pairs", hyperparameters=once | {"beta": 0.2}),
        job(
            "ftjob-rft",
            "reinforcement",
            training_file="file-prompts",
            hyperparameters=once | {"compute_multiplier": 0.5},
            settings={"grader": grader},
        ),
    ]
    with backend_that(StubAccount(jobs, files)) as (account, _):
        url = account.url.removesuffix("/api") + "/v1"
        shell.ok("import", "openai", "--base-url", url, "--base", "tiny-qwen3", OPENAI_API_KEY=KEY)
    for id, content in files.items():
        assert (shell.folder / "openai" / "files" / f"{id}.jsonl").read_bytes() == content
    for made in jobs:
        shell.ok("submit", f"openai/jobs/{made['id']}.toml", "--follow", timeout=400)
    ended = shell.json("jobs", "ls")[:3]
    assert [entry["state"] for entry in ended] == ["succeeded"] * 3
    model = ended[-1]["model"]
    held_out = ("--rows", "openai/files/file-held-out.jsonl", "--max-tokens", "16")
    compared = shell.ok("compare", "tiny-qwen3", model, *held_out)
    assert model in compared
    assert list((shell.folder / "comparison").glob("*.html"))
