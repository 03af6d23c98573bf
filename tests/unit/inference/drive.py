"""Driving an engine in tests: whole completions, streams, and random prompts."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence

from synth.inference.engines.protocol import Delta, Engine, SamplingParams

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
) -> Delta:
    """One completion, its deltas joined."""
    ids: list[int] = []
    logprobs: list[float] = []
    versions: list[int] = []
    last: Delta | None = None
    name = request_id or f"req-{next(_ids)}"
    async for last in engine.generate(prompt_ids, params, request_id=name, timeout=60, stream=stream):
        ids += last.token_ids
        logprobs += last.logprobs
        versions += last.versions
        if on_delta is not None:
            on_delta(last)
    assert last is not None
    return Delta(ids, logprobs, versions, last.finish_reason, last.stop_text)


def endless(max_tokens: int, **more: object) -> SamplingParams:
    """Sampling that can only end by length."""
    return SamplingParams(max_tokens=max_tokens, banned=(IM_END,), **more)  # type: ignore[arg-type]
