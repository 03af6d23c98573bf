"""What every engine must do that sleeps and wakes, as tests; collected as those of `contract`."""

from __future__ import annotations

import asyncio
from typing import Any

from synth.inference.engines.protocol import Engine
from synth.inference.engines.sampling_time import SamplingTime
from tests.unit.inference.engines.completions import complete, endless, prompt, start_completions
from tests.unit.inference.engines.expected import max_error
from tests.unit.inference.tiny_model import plain_logprobs


async def test_an_engine_that_sleeps_goes_on_where_it_stood(engine: Engine, reference: Any, tolerance: float) -> None:
    prompts = [prompt(i, 10 + i) for i in range(4)]
    running = await start_completions(engine, prompts, 200, names=["a", "b", "c", "gone"])
    await engine.sleep()
    await engine.sleep()  # as it is already

    engine.abort("gone")
    late = asyncio.create_task(complete(engine, prompt(9, 12), endless(20)))
    done, _ = await asyncio.wait({late, *running[:3]}, timeout=0.3)
    assert not done

    await engine.wake()
    await engine.wake()
    results = [*await asyncio.gather(*running[:3]), await late]
    for p, r in zip([*prompts[:3], prompt(9, 12)], results, strict=True):
        assert max_error(r, plain_logprobs(reference, p, r.token_ids)) <= tolerance
    assert [len(r.token_ids) for r in results] == [200, 200, 200, 20]
    assert (await running[3]).finish_reason == "abort"


async def test_the_time_of_a_request_stands_still_while_the_engine_sleeps(engine: Engine) -> None:
    underway = asyncio.Event()

    async def one(name: str) -> int:
        count = 0
        async for delta in engine.generate(
            prompt(1, 12), endless(60), request_id=name, time=SamplingTime(20), stream=True
        ):
            count += len(delta.token_ids)
            underway.set()
        return count

    await one("warm")
    underway.clear()
    loop = asyncio.get_running_loop()
    slept = asyncio.create_task(one("slept"))
    await asyncio.wait_for(underway.wait(), 20)
    await engine.sleep()
    # The clock of the loop leaps: what a long turn of the trainer is to a deadline.
    real = loop.time
    loop.time = lambda: real() + 60  # type: ignore[method-assign]
    try:
        await engine.wake()
        assert await slept == 60
    finally:
        loop.time = real  # type: ignore[method-assign]
