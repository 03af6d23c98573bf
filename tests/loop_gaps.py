"""Measures for how long an event loop does not turn because of its own process.

A busy machine stops every process now and then. So the time in which a thread of this process was ready and had no CPU,
which Linux counts for each thread, is subtracted from the wall time between two turns of the loop.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

#: The longest gap that a request may cause.
MOST_S = 0.050
_TICK_S = 0.001
_THREADS = Path("/proc/self/task")


@dataclass
class LoopGaps:
    """The gaps of the running loop within `async with`: the longest in wall time, and the longest that is its own."""

    wall_s: float = 0.0
    own_s: float = 0.0
    _ticks: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])

    async def __aenter__(self) -> LoopGaps:
        self._ticks.append(asyncio.create_task(self._tick()))
        await asyncio.sleep(5 * _TICK_S)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.sleep(5 * _TICK_S)
        ticks = self._ticks.pop()
        ticks.cancel()
        await asyncio.gather(ticks, return_exceptions=True)

    async def _tick(self) -> None:
        last, waited = time.perf_counter(), _waits()
        while True:
            await asyncio.sleep(_TICK_S)
            now, waits = time.perf_counter(), _waits()
            gap = now - last - _TICK_S
            starved = sum(ns - waited.get(thread, 0) for thread, ns in waits.items()) / 1e9
            self.wall_s, self.own_s = max(self.wall_s, gap), max(self.own_s, gap - starved)
            last, waited = now, waits

    def check(self, record: pytest.RecordProperty, service: str, case: str) -> None:
        """Have the run print the gaps, and fail if the loop's own is too long."""
        record("loop gap", f"{service}: {case}: own {self.own_s * 1e3:.0f} ms, wall {self.wall_s * 1e3:.0f} ms")
        assert self.own_s < MOST_S, f"the loop stood still for {self.own_s * 1e3:.0f} ms"


def _waits() -> dict[str, int]:
    """Nanoseconds that each thread of this process has waited for a CPU."""
    waits: dict[str, int] = {}
    for thread in _THREADS.iterdir():
        try:
            waits[thread.name] = int((thread / "schedstat").read_text().split()[1])
        except OSError:  # it has ended
            continue
    return waits
