"""Measures for how long an event loop does not turn because of its own process.

A busy machine stops every process now and then, and a new process takes its time to start. So a gap of the process's
own doing is no longer than the CPU time that the process took in it: a call that holds the GIL takes all of that time.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

_T = TypeVar("_T")
RecordProperty = Callable[[str, object], None]
"""The fixture `record_property`."""

#: The longest gap that a request may cause, on a machine that adds up a million numbers in `_REFERENCE_S` of CPU time.
MOST_S = 0.050
_REFERENCE_S = 0.050
#: Another process on the same core makes one measurement slower than the next by so much.
_NOISE = 1.5
_TICK_S = 0.001


def reference_s() -> float:
    """Measure the CPU time of the reference work now: a shared core is slower in one minute than in the next."""
    began, total = time.process_time(), 0
    for number in range(200_000):
        total += number
    return 5 * (time.process_time() - began)


@dataclass
class LoopGaps:
    """The gaps of the running loop within `async with`: the longest in wall time, and the longest that is its own.

    most_s: the longest gap that a request may cause on this machine, which may be slower than the reference.
    """

    wall_s: float = 0.0
    own_s: float = 0.0
    most_s: float = MOST_S
    _ticks: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])

    async def __aenter__(self) -> LoopGaps:
        # As `synth.service` does once it is up. Else the collector would go through all that the tests have imported.
        gc.freeze()
        self._note_speed()
        self._ticks.append(asyncio.create_task(self._tick()))
        await asyncio.sleep(5 * _TICK_S)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.sleep(5 * _TICK_S)
        ticks = self._ticks.pop()
        ticks.cancel()
        await asyncio.gather(ticks, return_exceptions=True)
        gc.unfreeze()
        self._note_speed()

    def _note_speed(self) -> None:
        self.most_s = max(self.most_s, MOST_S * _NOISE * reference_s() / _REFERENCE_S)

    async def _tick(self) -> None:
        last, used = time.perf_counter(), time.process_time()
        while True:
            await asyncio.sleep(_TICK_S)
            now, cpu = time.perf_counter(), time.process_time()
            gap = now - last - _TICK_S
            self.wall_s, self.own_s = max(self.wall_s, gap), max(self.own_s, min(gap, cpu - used))
            last, used = now, cpu

    def check(self, record: RecordProperty, service: str, case: str) -> None:
        """Have the run print the gaps, and fail if the loop's own is too long."""
        record("loop gap", f"{service}: {case}: own {self.own_s * 1e3:.0f} ms, wall {self.wall_s * 1e3:.0f} ms")
        assert self.own_s < self.most_s, f"the loop stood still for {self.own_s * 1e3:.0f} ms"


async def check_gaps(
    request: Callable[[], Awaitable[_T]], record: RecordProperty, service: str, case: str, *, tries: int = 3
) -> _T:
    """Make a request, and check the loop's gaps; returns the result.

    A busy machine can make each call of a try longer. What the request itself causes is in every try.
    """
    while True:
        tries -= 1
        async with LoopGaps() as gaps:
            result = await request()
        if not tries or gaps.own_s < gaps.most_s:
            gaps.check(record, service, case)
            return result
