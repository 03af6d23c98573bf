"""Measures for how long the event loop of a service stands still, for `/metrics`."""

from __future__ import annotations

import asyncio
import time

from prometheus_client import Histogram

_BUCKETS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2, 5, 10, 30, 60)

GAPS = Histogram("synth_loop_gap_seconds", "Time for which the event loop stood still", buckets=_BUCKETS)
OWN_GAPS = Histogram(
    "synth_loop_gap_own_seconds",
    "The same, at most the CPU time of the process in it: a busy machine makes no such gap",
    buckets=_BUCKETS,
)


async def measure_loop_gaps(tick_s: float) -> None:
    """Observe how late the loop wakes this task, until cancelled.

    tick_s: seconds between two observations. A gap that begins between them is measured shorter by a part of this.
    """
    last, used = time.perf_counter(), time.process_time()
    while True:
        await asyncio.sleep(tick_s)
        now, cpu = time.perf_counter(), time.process_time()
        gap = max(0.0, now - last - tick_s)
        GAPS.observe(gap)
        OWN_GAPS.observe(min(gap, cpu - used))
        last, used = now, cpu
