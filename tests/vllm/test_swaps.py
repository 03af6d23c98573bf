"""Fifty new policy versions while requests never cease: every token is of the version that it claims."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from synth.inference.engines.protocol import Delta
from synth.inference.engines.vllm.engine import VllmEngine
from tests.unit.inference.engines.completions import complete, endless, prompt
from tests.unit.inference.tiny_model import (
    lora_model,
    perturbed_model,
    plain_logprobs,
    randomize_adapter,
    write_adapter_policy,
    write_full_policy,
)

SWAPS = 50
CLIENTS = 8


@dataclass
class Load:
    """Clients that ask without end. done: their completions (prompt, temperature, result)."""

    engine: VllmEngine
    stop: bool = False
    asked: int = 0
    done: list[tuple[list[int], float, Delta]] = field(default_factory=list[tuple[list[int], float, Delta]])
    finished_one: asyncio.Event = field(default_factory=asyncio.Event)

    async def client(self, number: int) -> None:
        draw = random.Random(number)
        while not self.stop:
            # Prompts repeat, and are longer than a block of the cache: a stale one would be hit.
            ids = prompt(draw.randrange(4), 70)
            temperature = draw.choice((1.0, 0.7))
            params = endless(draw.randrange(4, 24), temperature=temperature)
            self.asked += 1
            result = await complete(self.engine, ids, params, stream=number % 2 == 0)
            self.done.append((ids, temperature, result))
            self.finished_one.set()

    async def one_more(self) -> None:
        """Wait until a request is done that started after this call did."""
        asked = self.asked
        while len(self.done) <= asked:
            self.finished_one.clear()
            await asyncio.wait_for(self.finished_one.wait(), 60)


async def swap_under_load(engine: VllmEngine, publish_version: Callable[[int], Path]) -> tuple[Load, list[float]]:
    load, seconds = Load(engine), []
    clients = [asyncio.create_task(load.client(i)) for i in range(CLIENTS)]
    try:
        for version in range(1, SWAPS + 1):
            file = publish_version(version)
            load.finished_one.clear()
            await asyncio.wait_for(load.finished_one.wait(), 60)
            started = time.monotonic()
            proof = await engine.update_weights(file, version)
            seconds.append(time.monotonic() - started)
            assert (proof.version, proof.matched) == (version, proof.tensors)
            file.unlink()
        await load.one_more()
    finally:
        load.stop = True
        await asyncio.wait_for(asyncio.gather(*clients), 120)
    return load, seconds


def worst_difference(load: Load, version: int, model: Any) -> float:
    """Over every token that claims the version."""
    worst = 0.0
    for ids, temperature, result in load.done:
        claims = torch.tensor(result.versions) == version
        if claims.any():
            plain = plain_logprobs(model, ids, result.token_ids, temperature=temperature)
            worst = max(worst, float((torch.tensor(result.logprobs) - plain)[claims].abs().max()))
    return worst


def check_nothing_lost(load: Load) -> int:
    """Returns the number of tokens."""
    assert len(load.done) == load.asked
    assert {r.finish_reason for _, _, r in load.done} == {"length"}
    versions = [v for _, _, r in load.done for v in r.versions]
    assert set(versions) >= set(range(1, SWAPS + 1))
    return len(versions)


async def test_fifty_versions_of_full_weights_under_load(
    full: VllmEngine,
    model_dir: Path,
    reference: Any,
    tolerance: float,
    tmp_path: Path,
    report: Callable[[str], None],
) -> None:
    load, seconds = await swap_under_load(full, lambda v: write_full_policy(tmp_path, perturbed_model(model_dir, v), v))

    tokens = check_nothing_lost(load)
    assert any(len(set(r.versions)) > 1 for _, _, r in load.done)  # requests lived through swaps
    worst = max(worst_difference(load, v, perturbed_model(model_dir, v) if v else reference) for v in range(SWAPS + 1))
    report(
        f"full weights: {SWAPS} swaps, {len(load.done)} requests, {tokens} tokens, worst difference {worst:.1e} nats, "
        f"median {statistics.median(seconds):.3f} s a swap"
    )
    assert worst <= tolerance


async def test_fifty_versions_of_an_adapter_under_load(
    lora: VllmEngine,
    model_dir: Path,
    reference: Any,
    tolerance: float,
    tmp_path: Path,
    report: Callable[[str], None],
) -> None:
    adapted = lora_model(model_dir)

    def publish_version(version: int) -> Path:
        randomize_adapter(adapted, version)
        return write_adapter_policy(tmp_path, adapted, version)

    load, seconds = await swap_under_load(lora, publish_version)

    tokens = check_nothing_lost(load)
    assert {len(set(r.versions)) for _, _, r in load.done} == {1}  # each finishes on the adapter that it started with
    worst = worst_difference(load, 0, reference)
    for version in range(1, SWAPS + 1):
        randomize_adapter(adapted, version)
        worst = max(worst, worst_difference(load, version, adapted))
    report(
        f"adapters: {SWAPS} swaps, {len(load.done)} requests, {tokens} tokens, worst difference {worst:.1e} nats, "
        f"median {statistics.median(seconds):.3f} s a swap"
    )
    assert worst <= tolerance
