"""Turns at a device: in order, visible to the holder, and free when the holder dies."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from synth.runtime.device_turn import DeviceTurn, TurnTimeout, read_holder

HOLDER = """
import sys, time
from pathlib import Path
from synth.runtime.device_turn import DeviceTurn
turn = DeviceTurn(Path(sys.argv[1]), who="trainer")
turn.take(wait_s=10, job="job_1")
print("taken", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "work" / "turn"


@pytest.fixture
def holder(file: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the turn."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "taken\n"
    yield process
    process.kill()
    process.wait()


def test_a_free_turn_is_taken_at_once_and_only_by_one(file: Path) -> None:
    one, other = DeviceTurn(file, who="trainer"), DeviceTurn(file, who="inference-0")
    assert one.take(wait_s=0) < 1
    assert not other.try_take()
    assert one.is_awaited()
    one.release()
    assert other.try_take()
    assert not other.is_awaited()


def test_who_has_the_turn_can_be_read(file: Path, holder: subprocess.Popen[str]) -> None:
    found = read_holder(file)
    assert found is not None
    assert (found.pid, found.who, found.job) == (holder.pid, "trainer", "job_1")
    with pytest.raises(TurnTimeout, match=rf"trainer \(pid {holder.pid}\) has it for job_1"):
        DeviceTurn(file, who="inference-0").take(wait_s=0)
    assert not DeviceTurn(file, who="x").is_awaited()  # who gave up waits no more


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_turn_of_a_dead_process_is_free(file: Path, holder: subprocess.Popen[str], how: signal.Signals) -> None:
    waiting = threading.Event()
    turn = DeviceTurn(file, who="inference-0")
    taking = threading.Thread(target=lambda: turn.take(wait_s=30, waiting=waiting.set))
    taking.start()
    assert waiting.wait(10)
    holder.send_signal(how)
    taking.join(30)
    assert turn.held
    found = read_holder(file)
    assert found is not None
    assert found.who == "inference-0"


def test_a_dead_process_waits_no_more(file: Path) -> None:
    mine = DeviceTurn(file, who="trainer")
    mine.take(wait_s=0)
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    waited = threading.Event()

    def see() -> None:
        while not mine.is_awaited():
            waited.wait(0.01)

    seeing = threading.Thread(target=see)
    seeing.start()
    seeing.join(20)
    assert mine.is_awaited()
    process.kill()
    process.wait()
    assert not mine.is_awaited()


def test_who_lets_go_comes_after_who_waits(file: Path) -> None:
    one, other = DeviceTurn(file, who="trainer"), DeviceTurn(file, who="inference-0")
    one.take(wait_s=0)
    assert not other.try_take()
    one.release()
    assert not one.try_take()
    assert other.try_take()
