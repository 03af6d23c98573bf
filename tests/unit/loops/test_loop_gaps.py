"""`/metrics` has for how long the event loop stood still, and whether its own process did it."""

from __future__ import annotations

import asyncio
import time

from prometheus_client import REGISTRY

from synth.loop_gaps import measure_loop_gaps

TICK_S = 0.02


def longer_than(name: str, seconds: float) -> float:
    """How many gaps of a metric were longer than one of its buckets."""
    whole, up_to = (REGISTRY.get_sample_value(f"{name}_bucket", {"le": le}) for le in ("+Inf", str(seconds)))
    assert whole is not None
    assert up_to is not None
    return whole - up_to


async def test_a_gap_is_measured_and_only_one_that_takes_cpu_time_is_the_process_own():
    names = ("synth_loop_gap_seconds", "synth_loop_gap_own_seconds")
    before = [longer_than(name, 0.2) for name in names]
    measuring = asyncio.create_task(measure_loop_gaps(TICK_S))
    await asyncio.sleep(2 * TICK_S)
    time.sleep(0.3)  # noqa: ASYNC251
    await asyncio.sleep(2 * TICK_S)
    wall, own = (longer_than(name, 0.2) - earlier for name, earlier in zip(names, before, strict=True))
    assert wall >= 1
    assert own == 0
    ends = time.process_time() + 0.3
    while time.process_time() < ends:
        pass
    await asyncio.sleep(2 * TICK_S)
    measuring.cancel()
    assert longer_than(names[1], 0.2) - before[1] >= 1
