"""A trainer and an inference process that take turns at one device: jobs learn, and no death holds them up."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from synth.runtime.device_turn import read_holder
from task_apps.math import dataset
from tests.e2e.cli.conftest import Shell, eventually
from tests.e2e.platform import Platform, rl, sft
from tests.e2e.task_apps import KEY, Served

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def turn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("turns") / "turn"


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory, turn: Path) -> Iterator[Platform]:
    """A cluster whose trainer and inference process share a device: the CPU, by the same code as a GPU."""
    shell = Shell(tmp_path_factory.mktemp("shared"))
    (shell.folder / ".env").write_text(f"ENVIRONMENT_API_KEY={KEY}\n")
    shell.ok("up", "--detach", "--port", str(shell.port), SYNTH_TURN_FILE=str(turn), SYNTH_TURN_S="0.5")
    try:
        shell.ok("models", "make", "tiny-qwen3")
        yield Platform(shell)
    finally:
        shell.run("down")


def logged(platform: Platform, service: str, text: str) -> list[str]:
    """The lines of a service's log that hold a text."""
    lines = (platform.shell.folder / ".synth" / "logs" / f"{service}.log").read_text().splitlines()
    return [line for line in lines if text in line]


@pytest.mark.parametrize("level", [0, 1])
def test_an_rl_job_samples_and_trains_by_turns(platform: Platform, letters_app: Served, level: int) -> None:
    job = platform.submit(rl("tiny-qwen3", letters_app.url, iterations=3, training=f"async_level = {level}"))
    assert platform.succeeded(job)["state"] == "succeeded"
    steps = platform.steps(job)
    assert [step["skipped"] for step in steps] == [0, 0, 0]
    assert all(step["seconds_turn"] >= 0 for step in steps)
    # Each step had a turn of its own, and inference has had the others.
    assert len(logged(platform, "trainer", f"{job} took the turn")) >= 3
    assert len(logged(platform, "inference", "gave the turn up")) >= 3
    # Nobody is to blame for the wait.
    assert platform.events(job, "rollout.failed") == []


def test_chats_are_answered_between_the_turns_of_an_sft_job(platform: Platform) -> None:
    rows = platform.shell.folder / "math.jsonl"
    rows.write_text("".join(f"{json.dumps(row)}\n" for row in dataset.rows(128, seed=0)))
    job = platform.submit(sft(steps=60), "--dataset", rows.name)
    eventually(lambda: bool(platform.events(job, "job.started")), timeout=60)
    assert isinstance(platform.greedy("tiny-qwen3", "2+2="), str)
    assert platform.succeeded(job)["state"] == "succeeded"


@pytest.mark.parametrize("victim", ["trainer", "inference"])
def test_whoever_is_killed_in_its_turn_leaves_it_free(
    platform: Platform, letters_app: Served, turn: Path, victim: str
) -> None:
    job = platform.submit(rl("tiny-qwen3", letters_app.url, iterations=8))

    def kill_holder() -> bool:
        # The learner itself has the trainer's turn, in a process of its own.
        found = read_holder(turn)
        if found is None or not found.who.startswith(victim):
            return False
        os.kill(found.pid, signal.SIGKILL)
        return True

    eventually(lambda: bool(platform.events(job, "train.step")), timeout=90)
    # A turn of this small model is over within a tenth of a second.
    eventually(kill_holder, timeout=60, every=0.002)
    assert platform.succeeded(job)["state"] == "succeeded"
    assert len(platform.steps(job)) == 8
