"""What nobody can handle: whoever waits for it is told why, an operator sees it, and mends it from the command line."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from pydantic import SecretStr

from synth.api.dead_letters import DeadLetter
from synth.bus.connection import connect
from synth.runtime.settings import ServiceSettings
from synth.work import Task
from tests.e2e.cli.conftest import eventually
from tests.e2e.platform import Platform, rl, sft
from tests.e2e.task_apps import Served

pytestmark = pytest.mark.timeout(1200)


def letters_of(platform: Platform, about: str) -> list[DeadLetter]:
    """The open letters of a job or a file."""
    letters = platform.client.operator.dead_letters()
    return [letter for letter in letters if letter.about == about]


def publish(platform: Platform, subject: str, body: bytes) -> None:
    """Put a message on the bus as its owner, who alone may."""

    async def put() -> None:
        state = platform.shell.state()
        port = next(p["port"] for p in state["processes"] if p["name"] == "nats")
        password = SecretStr(state["users"]["bus"])
        settings = ServiceSettings(nats_url=f"nats://127.0.0.1:{port}", nats_user="bus", nats_password=password)
        bus = await connect(settings, "bus")
        await bus.js.publish(subject, body)
        await bus.close()

    asyncio.run(put())


def test_a_file_that_cannot_be_checked_fails_with_its_cause_and_is_checked_again_when_that_is_gone(platform: Platform):
    shell = platform.shell
    row = {"messages": [{"role": "user", "content": "a dead letter?"}, {"role": "assistant", "content": "no"}]}
    checker = shell.processes()["files"]["pid"]
    os.kill(checker, signal.SIGSTOP)
    try:
        body = (json.dumps(row) + "\n").encode() * 8
        uploaded = platform.api.post("/api/files", files={"file": ("a.jsonl", body)}).raise_for_status().json()
        blob = next(p for p in (shell.folder / ".synth" / "blobs").rglob(f"*{uploaded['sha256']}*") if p.is_file())
        aside = Path(shutil.move(blob, shell.folder / "aside"))
        config = {"config": sft(steps=2), "config_name": "a.toml", "training_file": uploaded["id"]}
        waiting = platform.api.post("/api/jobs", json=config).raise_for_status().json()["id"]
    finally:
        os.kill(checker, signal.SIGCONT)
    code, job = platform.outcome(waiting)
    assert (code, job["state"]) == (3, "rejected")
    assert any("could not be checked: files, dead letter" in p["what"] for p in job["problems"]), job["problems"]
    assert platform.client.files.get(uploaded["id"]).status == "failed"
    [letter] = letters_of(platform, uploaded["id"])
    assert (letter.service, letter.state) == ("files", "open")
    shown = shell.ok("dead", "show", str(letter.id))
    assert uploaded["id"] in shown
    assert uploaded["sha256"] in shown
    shutil.move(aside, blob)
    shell.ok("dead", "retry", str(letter.id))
    eventually(lambda: platform.client.files.get(uploaded["id"]).status == "ready", timeout=240)
    assert letters_of(platform, uploaded["id"]) == []
    again = platform.api.post("/api/jobs", json=config).raise_for_status().json()["id"]
    platform.succeeded(again)


@pytest.mark.long
def test_a_job_whose_task_nobody_can_read_is_paused_with_its_cause_and_goes_on_when_the_letter_is_retried(
    platform: Platform, rows: Path
):
    shell = platform.shell
    text = sft(steps=100_000).replace("packing = false", "packing = false\ncheckpoint_every = 5")
    job = platform.submit(text, "--dataset", str(rows))
    eventually(lambda: (platform.job(job)["step"] or 0) >= 5, timeout=120)
    platform.client.jobs.pause(job)
    eventually(lambda: platform.job(job)["state"] == "paused", timeout=240)
    org = platform.api.get("/api/me").raise_for_status().json()["org"]
    poison = Task(kind="train", pool="default", org=org, job_id=job, term=1)
    publish(platform, poison.subject, b"no task at all")
    platform.client.jobs.resume(job)
    eventually(lambda: letters_of(platform, job) != [], timeout=240)
    [letter] = letters_of(platform, job)
    assert (letter.service, letter.subject) == ("trainer", poison.subject)
    eventually(lambda: platform.job(job)["state"] == "paused", timeout=240)
    assert "the trainer cannot run this job: not a task" in shell.ok("jobs", "events", job)
    assert "not a task" in shell.ok("dead", "ls")
    shell.ok("dead", "retry", str(letter.id))
    step = platform.job(job)["step"]
    eventually(lambda: (platform.job(job)["step"] or 0) > step, timeout=120)
    platform.client.jobs.cancel(job)
    assert platform.outcome(job)[1]["state"] == "cancelled"
    assert [e["letter"] for e in platform.events(job, "letter.retried")] == [letter.id]
    refused = shell.run("dead", "retry", str(letter.id))
    assert (refused.returncode, "it was retried" in refused.stderr) == (1, True)


@pytest.mark.long
def test_a_job_in_whose_log_an_event_is_damaged_fails_and_names_it(platform: Platform, letters_app: Served):
    job = platform.submit(rl("tiny-qwen3", letters_app.url, iterations=1000))
    eventually(lambda: platform.events(job, "train.step") != [], timeout=120)
    org = platform.api.get("/api/me").raise_for_status().json()["org"]
    publish(platform, f"rollout.batch.{org}.{job}", b"\xff no event")
    code, found = platform.outcome(job)
    assert (code, found["state"]) == (3, "failed")
    assert any("the rollout.batch at" in p["what"] and "is damaged" in p["what"] for p in found["problems"]), found
