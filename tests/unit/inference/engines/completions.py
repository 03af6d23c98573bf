"""Requests to an engine in tests: random prompts, whole completions, and completions under way."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Sequence

from synth.inference.engines.protocol import Delta, Engine, EngineImage, SamplingParams, TopLogprobs
from synth.inference.engines.sampling_time import SamplingTime

_ids = itertools.count()
IM_END = 2


def prompt(seed: int, length: int) -> list[int]:
    """A random prompt of plain tokens."""
    draw = random.Random(seed)
    return [draw.randrange(3, 300) for _ in range(length)]


async def complete(
    engine: Engine,
    prompt_ids: Sequence[int],
    params: SamplingParams,
    *,
    stream: bool = False,
    request_id: str | None = None,
    on_delta: Callable[[Delta], None] | None = None,
    images: Sequence[EngineImage] = (),
) -> Delta:
    """One completion, its deltas joined."""
    ids: list[int] = []
    logprobs: list[float] = []
    versions: list[int] = []
    listed: list[TopLogprobs] = []
    last: Delta | None = None
    name = request_id or f"req-{next(_ids)}"
    deltas = engine.generate(prompt_ids, params, request_id=name, time=SamplingTime(120), stream=stream, images=images)
    async for last in deltas:
        ids += last.token_ids
        logprobs += last.logprobs
        versions += last.versions
        listed += last.top_logprobs
        if on_delta is not None:
            on_delta(last)
    assert last is not None
    return Delta(ids, logprobs, versions, last.finish_reason, last.stop_text, top_logprobs=listed)


async def start_completions(
    engine: Engine,
    prompts: list[list[int]],
    n: int,
    *,
    names: Sequence[str | None] | None = None,
    temperature: float = 1.0,
) -> list[asyncio.Task[Delta]]:
    """Start completions of `n` tokens, the first as a stream, and return when the first has eight tokens."""
    underway, seen = asyncio.Event(), 0

    def count(_: Delta) -> None:
        nonlocal seen
        seen += 1
        if seen == 8:
            underway.set()

    tasks = [
        asyncio.create_task(
            complete(
                engine,
                p,
                endless(n, temperature=temperature),
                stream=i == 0,
                request_id=names[i] if names else None,
                on_delta=count if i == 0 else None,
            )
        )
        for i, p in enumerate(prompts)
    ]
    await asyncio.wait_for(underway.wait(), 60)
    return tasks


def endless(max_tokens: int, **more: object) -> SamplingParams:
    """Sampling that can only end by length."""
    return SamplingParams(max_tokens=max_tokens, banned=(IM_END,), **more)  # type: ignore[arg-type]
