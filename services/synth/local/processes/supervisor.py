"""Keeps a process running: starts it, probes its health, restarts it with growing delays, ends it.

Invariants: each process leads its own group, so that Ctrl-C reaches only the supervisor, and the children of a dead
process are ended with it. A process that is being started when the end begins is ended too.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from synth.local.processes.running import end_group, start_of

if TYPE_CHECKING:
    from synth.runtime.forking.server import ForkedProcess

_FIRST_DELAY_S = 0.2
_LAST_DELAY_S = 5.0
#: Seconds for which a process stays healthy before its crash is the first of a row.
_SETTLED_AFTER_S = 30.0
_MAX_FAILED_STARTS = 5
_PROBE_S = 0.2
_PROBE_HEALTHY_S = 2.0

Process: TypeAlias = "asyncio.subprocess.Process | ForkedProcess"
Report = Callable[[str], None]


@dataclass(eq=False)
class SupervisedProcess:
    """One process and its health.

    start: starts it. probe: returns its problem, None if it is well. changed: called after each change of its health.
    grace_s: seconds that it may take to end. start_s: seconds that a start may take; None for no limit.
    max_restarts: crashes in a row after which it is given up; None to restart it for ever.
    ill_s: seconds that a process that was healthy may be unhealthy before it is ended; None for no limit.
    started: unix seconds, of the process itself. problem: why it is not healthy. restarts: of this process so far.
    """

    start: Callable[[], Awaitable[Process]]
    probe: Callable[[], Awaitable[str | None]]
    changed: Callable[[], None]
    report: Report
    grace_s: float
    start_s: float | None = None
    max_restarts: int | None = None
    ill_s: float | None = None
    process: Process | None = None
    started: float | None = None
    health: Literal["waiting", "starting", "healthy", "unhealthy", "restarting", "failed", "draining", "stopped"] = (
        "waiting"
    )
    problem: str | None = None
    restarts: int = 0
    failed_starts: int = 0
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    _crashes: int = 0
    _healthy_since: float | None = None
    _starting: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def pid(self) -> int | None:
        """The pid of the process; None while none runs."""
        return self.process.pid if self.process is not None and self.process.returncode is None else None

    @property
    def healthy(self) -> bool:
        return self.health == "healthy"

    @property
    def failing(self) -> bool:
        """Whether its last starts failed one after the other."""
        return self.failed_starts >= _MAX_FAILED_STARTS

    async def run(self) -> None:
        """Keep the process running until `end`, or until it is given up."""
        while not self.stopping.is_set():
            problem = None if self.pid is not None else await self.come_up()
            await self._watch()
            if self.stopping.is_set():
                return
            if self.process is not None:
                end_group(self.process.pid, signal.SIGKILL)
                problem = problem or f"it ended with {reason_of(await self.process.wait())}"
            crash = problem or ""
            settled = self._healthy_since is not None and time.monotonic() - self._healthy_since >= _SETTLED_AFTER_S
            self._crashes = 1 if settled else self._crashes + 1
            self.failed_starts = self.failed_starts + 1 if self._healthy_since is None else 0
            if self.max_restarts is not None and self._crashes > self.max_restarts:
                crash = f"{crash}, {self._crashes} times in a row: it is given up"
                self.report(crash)
                self._becomes("failed", crash)
                return
            delay = min(_LAST_DELAY_S, _FIRST_DELAY_S * 2 ** (self._crashes - 1))
            self.restarts += 1
            self.report(f"{crash}; restarting in {delay:.1f} s")
            self._becomes("restarting", crash)
            await first_of(self.stopping.wait(), timeout=delay)

    async def come_up(self) -> str | None:
        """Start the process and wait until it is healthy. Returns why it is not; it has ended then."""
        async with self._starting:
            if self.stopping.is_set():
                return "it was ended before it was healthy"
            self.process = self._healthy_since = None
            try:
                self.process = await self.start()
            except OSError as error:
                return f"it cannot be started ({error})"
            self.started = start_of(self.process.pid)
        self._becomes("starting", None)
        deadline = None if self.start_s is None else time.monotonic() + self.start_s
        while self.pid is not None and not self.stopping.is_set():
            problem = await self.probe()
            if self.pid is None:
                break
            if problem is None:
                self._healthy_since, self.failed_starts = time.monotonic(), 0
                self._becomes("healthy", None)
                return None
            if deadline is not None and time.monotonic() > deadline:
                await self._end_process()
                return f"it was not healthy within {self.start_s:g} s ({problem})"
            await first_of(self.process.wait(), self.stopping.wait(), timeout=_PROBE_S)
        code = self.process.returncode
        how = "was ended" if code is None else f"ended with {reason_of(code)}"
        return f"it {how} before it was healthy"

    async def end(self, *, at_once: asyncio.Event | None = None) -> None:
        """End the process for good, with its children. at_once: ends the wait for it early."""
        self.stopping.set()
        async with self._starting:
            pass
        await self._end_process(at_once)
        self._becomes("stopped", None)

    async def _watch(self) -> None:
        """Probe the process until it ends, or until it is to be ended."""
        unhealthy_since: float | None = None
        while (process := self.process) is not None and self.pid is not None:
            interval = _PROBE_HEALTHY_S if self.healthy else _PROBE_S
            await first_of(process.wait(), self.stopping.wait(), timeout=interval)
            if self.stopping.is_set():
                return
            problem = await self.probe()
            if self.pid is None or self.stopping.is_set():
                return
            if problem is None:
                unhealthy_since = None
                self._becomes("healthy", None)
                continue
            unhealthy_since = unhealthy_since or time.monotonic()
            self._becomes("unhealthy", problem)
            if self.ill_s is not None and time.monotonic() - unhealthy_since > self.ill_s:
                self.report(f"it is ill for {self.ill_s:.0f} s ({problem}); ending it")
                end_group(process.pid, signal.SIGKILL)

    async def _end_process(self, at_once: asyncio.Event | None = None) -> None:
        process = self.process
        if process is None:
            return
        if process.returncode is None:
            self._becomes("draining", self.problem)
            # The leader alone: a process ends its own children in its own order.
            process.send_signal(signal.SIGTERM)
            await first_of(process.wait(), *([at_once.wait()] if at_once else []), timeout=self.grace_s)
            if process.returncode is None:
                self.report(f"it did not end within {self.grace_s:.0f} s")
        end_group(process.pid, signal.SIGKILL)
        await process.wait()

    def _becomes(self, health: Any, problem: str | None) -> None:
        pid = self.pid
        if pid is None:
            self.started = None
        if (self.health, self.problem) != (health, problem) or health in ("starting", "restarting"):
            self.health, self.problem = health, problem
            self.changed()


async def first_of(*waits: Coroutine[Any, Any, Any], timeout: float | None = None) -> None:
    """Wait until one of these has ended, `timeout` seconds at most."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def reason_of(code: int) -> str:
    """Return an exit code in words: the signal that ended the process, or its code."""
    return signal.Signals(-code).name if code < 0 else f"code {code}"
