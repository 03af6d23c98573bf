"""Sees each event of a job when it is appended, whatever dies meanwhile; and finds the process to kill."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from synth.bus.connection import Connection
from synth.bus.recorded import Recorded
from synth.bus.replay import follow, replay_messages
from synth.bus.server.topology import DEAD
from synth.local.cluster.control import inspect_cluster
from synth.local.cluster.state import StateFile
from tests.e2e.cli.conftest import Shell, eventually

ENDINGS = ("job.succeeded", "job.failed", "job.cancelled", "job.withdrawn", "job.rejected", "job.refused")


class EventRecorder:
    """The log of one job as it grows."""

    def __init__(self, bus: Connection, job: str) -> None:
        self.seen: list[Recorded] = []
        self.bus = bus
        self._job = job
        self._news = asyncio.Condition()

    async def __aenter__(self) -> Self:
        self._following = asyncio.create_task(self._follow())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._following.cancel()
        with suppress(asyncio.CancelledError):
            await self._following

    @property
    def types(self) -> list[str]:
        return [r.type for r in self.seen]

    @property
    def ended(self) -> str | None:
        """How the job has ended."""
        return next((type for type in self.types if type in ENDINGS), None)

    def of(self, type: str) -> list[Recorded]:
        """All events of a type until now."""
        return [r for r in self.seen if r.type == type]

    async def until(
        self, type: str, *, after: int = 0, timeout: float = 60, such: Callable[[Recorded], bool] = lambda r: True
    ) -> Recorded:
        """The first event of this type among `seen[after:]`; fails when the job ends or the time is over before it."""

        def found() -> Recorded | None:
            return next((r for r in self.seen[after:] if r.type == type and such(r)), None)

        try:
            async with asyncio.timeout(timeout), self._news:
                await self._news.wait_for(lambda: found() is not None or self.ended is not None)
        except TimeoutError:
            raise AssertionError(f"no {type} in {timeout} s; last: {self.types[-5:]}") from None
        recorded = found()
        assert recorded is not None, f"{self.ended} before a {type}: {self.seen[-1].event}"
        return recorded

    async def dead_letters(self) -> list[str]:
        """The reasons of everything that nobody could handle, of all jobs."""
        letters = await replay_messages(self.bus.nc, ["dead.>"], stream=DEAD)
        return [(m.headers or {})["Synth-Reason"] for m in letters]

    async def _follow(self) -> None:
        async for recorded in follow(self.bus, [f"*.*.*.{self._job}"], unreadable_too=True):
            async with self._news:
                self.seen.append(recorded)
                self._news.notify_all()


def pid_of(shell: Shell, name: str) -> int:
    """The process that is this service now."""
    return shell.processes()[name]["pid"]


def strike(shell: Shell, name: str, sign: signal.Signals = signal.SIGKILL) -> float:
    """Signal a service; returns the seconds until its successor is healthy."""
    pid, file = pid_of(shell, name), StateFile(shell.folder / ".synth")
    struck = time.monotonic()
    os.kill(pid, sign)

    def back() -> bool:
        now = next(p for p in inspect_cluster(file).processes if p.name == name)
        return now.health == "healthy" and now.pid != pid

    eventually(back, timeout=30)
    return time.monotonic() - struck
