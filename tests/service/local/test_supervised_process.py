"""The one supervisor of processes on this machine: real processes that crash, hang and end late."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from synth.local.processes import supervisor
from synth.local.processes.running import start_of
from synth.local.processes.supervisor import SupervisedProcess

SLEEPS = "import time; time.sleep(60)"


class World:
    """A process of some code that is healthy while `well` is there; each of its changes is recorded."""

    def __init__(self, folder: Path) -> None:
        self.well = folder / "well"
        self.lines = list[str]()
        self.changes = list[tuple[str, int | None]]()

    def supervise(
        self,
        code: str = SLEEPS,
        *,
        grace_s: float = 5.0,
        start_s: float | None = None,
        max_restarts: int | None = None,
        ill_s: float | None = None,
    ) -> SupervisedProcess:
        async def start() -> asyncio.subprocess.Process:
            return await asyncio.create_subprocess_exec(sys.executable, "-c", code, start_new_session=True)

        async def probe() -> str | None:
            return None if self.well.exists() else "it is not well"

        process = SupervisedProcess(
            start=start,
            probe=probe,
            changed=lambda: self.changes.append((process.health, process.pid)),
            report=self.lines.append,
            grace_s=grace_s,
            start_s=start_s,
            max_restarts=max_restarts,
            ill_s=ill_s,
        )
        return process


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(supervisor, "_PROBE_HEALTHY_S", 0.1)
    return World(tmp_path)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - nothing tells when
            await asyncio.sleep(0.01)


async def test_a_process_that_is_killed_is_started_again_and_counted(world: World) -> None:
    world.well.touch()
    process = world.supervise()
    running = asyncio.create_task(process.run())
    await until(lambda: process.healthy)
    first = process.process
    assert first is not None
    first.send_signal(signal.SIGKILL)
    await until(lambda: process.healthy and process.process is not first)
    assert process.restarts == 1
    assert world.lines == ["it ended with SIGKILL; restarting in 0.2 s"]
    assert [health for health, _ in world.changes] == ["starting", "healthy", "restarting", "starting", "healthy"]
    assert world.changes[2] == ("restarting", None)
    await process.end()
    await running
    assert process.health == "stopped"
    assert start_of(first.pid) is None


async def test_delays_grow_with_crashes_in_a_row_and_the_last_one_gives_it_up(world: World) -> None:
    process = world.supervise("raise SystemExit(3)", max_restarts=2)
    await process.run()
    crash = "it ended with code 3 before it was healthy"
    assert world.lines == [
        f"{crash}; restarting in 0.2 s",
        f"{crash}; restarting in 0.4 s",
        f"{crash}, 3 times in a row: it is given up",
    ]
    assert (process.health, process.failed_starts, process.failing) == ("failed", 3, False)


async def test_a_crash_after_a_while_of_health_is_the_first_of_a_row(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_SETTLED_AFTER_S", 0.0)
    world.well.touch()
    process = world.supervise(max_restarts=1)
    running = asyncio.create_task(process.run())
    for _ in range(3):
        await until(lambda: process.healthy)
        before = process.process
        assert before is not None
        before.send_signal(signal.SIGKILL)
        await until(lambda before=before: process.process is not before)
    assert world.lines == ["it ended with SIGKILL; restarting in 0.2 s"] * 3
    await process.end()
    await running


async def test_a_start_that_hangs_is_ended_and_is_a_crash(world: World) -> None:
    process = world.supervise(start_s=0.5, max_restarts=0)
    await process.run()
    late = "it was not healthy within 0.5 s (it is not well), 1 times in a row: it is given up"
    assert (process.health, process.problem, process.pid) == ("failed", late, None)


async def test_one_that_is_ill_for_too_long_is_ended_and_started_again(world: World) -> None:
    world.well.touch()
    process = world.supervise(ill_s=0.3)
    running = asyncio.create_task(process.run())
    await until(lambda: process.healthy)
    world.well.unlink()
    await until(lambda: process.health == "unhealthy")
    await until(lambda: process.restarts == 1)
    assert world.lines[0] == "it is ill for 0 s (it is not well); ending it"
    await process.end()
    await running


async def test_one_that_does_not_end_in_time_is_killed_and_said_so(world: World) -> None:
    world.well.touch()
    process = world.supervise(f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPS}", grace_s=0.5)
    running = asyncio.create_task(process.run())
    await until(lambda: process.healthy)
    # The handler is there soon after the process is.
    await asyncio.sleep(0.5)
    await process.end()
    await running
    assert process.process is not None
    assert (process.process.returncode, world.lines) == (-signal.SIGKILL, ["it did not end within 0 s"])


async def test_one_that_is_being_started_when_the_end_begins_is_ended(world: World) -> None:
    process = world.supervise()
    begin, may_start = process.start, asyncio.Event()

    async def slowly() -> supervisor.Process:
        await may_start.wait()
        return await begin()

    process.start = slowly
    running = asyncio.create_task(process.run())
    await asyncio.sleep(0)
    ending = asyncio.create_task(process.end())
    await asyncio.sleep(0)
    may_start.set()
    await ending
    await running
    assert process.process is not None
    assert process.process.returncode is not None


async def test_one_that_cannot_be_started_is_a_crash_with_its_reason(world: World) -> None:
    process = world.supervise(max_restarts=0)

    async def start() -> supervisor.Process:
        raise FileNotFoundError("no such program")

    process.start = start
    await process.run()
    assert process.problem == "it cannot be started (no such program), 1 times in a row: it is given up"
