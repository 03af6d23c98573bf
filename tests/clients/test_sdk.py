"""The SDK's own clients and pollers, both versions, on jobs of their making."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.clients.configs import rl
from tests.clients.conftest import BASE
from tests.clients.published import Published
from tests.e2e.platform import Platform

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="session")
def few_sums(sums: Path) -> Path:
    file = sums.with_name("few.jsonl")
    file.write_text("".join(sums.read_text().splitlines(keepends=True)[:512]))
    return file


def test_an_sft_job_is_followed_to_its_terminal_event_by_every_poller(synth_ai: Published, few_sums: Path):
    seen = synth_ai.script("sft.py", str(few_sums), BASE)
    model = seen["job"]["fine_tuned_model"]
    assert seen["job"]["status"] == "succeeded"
    assert model == f"fft:{BASE}:{seen['job']['job_id']}"
    for followed in seen["followed"].values():
        assert followed["result"] == {"status": "succeeded", "job_id": seen["job"]["job_id"], "fine_tuned_model": model}
        assert followed["events"][-1]["type"] == "workflow.completed"
        assert_metrics(followed["metrics"], {"train.loss"}, steps=512 // 16)
    assert_sequences(seen["events"])
    assert [entry["phase"] for entry in seen["timeline"]][-1] == "succeeded"


def test_an_rl_job_is_followed_to_its_terminal_event(synth_ai: Published, letters_url: str):
    config = json.dumps(tomllib.loads(rl(BASE, iterations=4)))
    seen = synth_ai.script("rl.py", letters_url, config, BASE)
    assert seen["result"]["status"] == "succeeded"
    completed = seen["events"][-1]
    assert completed["type"] == "rl.job.completed"
    assert completed["data"]["fine_tuned_model"] == f"rl:{BASE}:{seen['result']['job_id']}"
    assert_metrics(seen["metrics"], {"train.reward_mean", "eval.reward_mean"}, steps=4)
    assert_sequences(seen["streamed"])


def test_the_environment_key_reaches_the_backend_as_the_client_seals_it(synth_ai: Published, platform: Platform):
    before = {key["id"] for key in platform.api.get("/api/environment-keys").json()["data"]}
    told = synth_ai.script("environment_key.py", f"env_key_of_{synth_ai.venv.name}")
    assert told["present"] is True
    after = {key["id"] for key in platform.api.get("/api/environment-keys").json()["data"]}
    assert len(after - before) == 1


def test_a_trace_is_judged_by_a_model_of_the_cluster(synth_ai: Published):
    seen = synth_ai.script("judge.py", BASE)
    reply = seen["reply"]
    assert reply["status"] == "ok"
    # An untrained judge says anything, and on the scale all the same.
    assert reply["aggregate_score"] == reply["outcome_review"]["total"]
    assert len(reply["event_totals"]) == len(reply["event_reviews"]) == 1
    assert {reply["aggregate_score"], *reply["event_totals"]} <= {0.0, 1.0}
    assert "the request has no rubric" in seen["refused"]


def assert_metrics(points: list[dict[str, Any]], names: set[str], *, steps: int) -> None:
    """Every step of the training reached the poller, in order; so did these metrics."""
    assert names <= {p["name"] for p in points}
    seen = [p["step"] for p in points if p["name"] == "train.loss"]
    assert seen == list(range(1, steps + 1))
    assert all(a["step"] <= b["step"] for a, b in pairwise(points))


def assert_sequences(events: list[dict[str, Any]]) -> None:
    assert events
    assert all(a["seq"] < b["seq"] for a, b in pairwise(events))


def test_setup_receives_keys_that_a_person_approves(
    published: Callable[[str], Published], platform: Platform, tmp_path: Path
):
    browser = tmp_path / "browser"
    approve = f'{sys.executable} -m synth.cli setup --approve "${{1#*code=}}"'
    browser.write_text(f"#!/bin/sh\ncd {platform.shell.folder} && {approve} >{tmp_path}/approval 2>&1\n")
    browser.chmod(0o755)
    # Version 0.2.16 has the same requests, and no command for them.
    client = replace(published("synth-ai-0.2.23"), folder=tmp_path)
    ran = client.run(
        str(client.venv / "bin" / "synth-ai"),
        "setup",
        BROWSER=str(browser),
        SYNTH_FRONTEND_OVERRIDE=client.root,
    )
    approval = tmp_path / "approval"
    assert approval.exists(), ran.text
    assert "approved" in approval.read_text()
    [config] = (tmp_path / ".synth-ai").glob("*.json")
    keys = json.loads(config.read_text())
    assert keys["SYNTH_API_KEY"].startswith("synth_live_"), ran.text
    assert keys["ENVIRONMENT_API_KEY"]
    assert platform.api.get("/api/me", headers={"Authorization": f"Bearer {keys['SYNTH_API_KEY']}"}).status_code == 200
