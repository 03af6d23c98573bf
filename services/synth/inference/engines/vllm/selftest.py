"""Tests, without a reference model, that an engine serves the weights that it was given: at start and after swaps.

Each computes the same number twice with the engine, once on a path that the fault affects and once on a path that it
does not. The faults are silent otherwise (`synth.inference.engines.vllm`), and change logprobs by several nats.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from synth.errors import Permanent
from synth.inference.engines.settings import EngineSettings
from synth.inference.engines.vllm import process
from synth.inference.engines.vllm.adapters import AdapterPool
from synth.inference.engines.vllm.base_model import BaseModelInfo
from synth.inference.engines.vllm.prompts import text_input

log = logging.getLogger(__name__)

# A test has a meaning only if a fault would make a difference of at least this many times the tolerance.
_MIN_SIGNAL = 10
_CANDIDATES = 8
_BASE_TOKENS = 8


class TestedHost(Protocol):
    """The part of a `VllmHost` that a self-test uses."""

    @property
    def model(self) -> BaseModelInfo: ...

    @property
    def settings(self) -> EngineSettings: ...

    @property
    def adapters(self) -> AdapterPool: ...

    @property
    def max_context(self) -> int: ...

    @property
    def block_size(self) -> int: ...

    @property
    def tolerance(self) -> float: ...

    def new_request_id(self) -> str: ...

    def generate(self, prompt: Any, params: Any, *, name: str, lora: Any = None) -> AsyncGenerator[Any]: ...

    async def generate_final(self, prompt_ids: Sequence[int], params: Any, *, lora: Any = None) -> Any: ...

    async def score(self, token_ids: Sequence[int], *, lora: Any = None) -> list[float]: ...

    async def swap_weights(
        self, files: list[Path], version: int, *, swapped_rows: tuple[int, int] | None = None
    ) -> list[str]: ...


async def check_tied_head(host: TestedHost) -> None:
    """Check `tied_head`: if two rows of the embedding are exchanged, the logprobs of their tokens change places.

    The tokens do not occur in the probe, so nothing else changes. The base weights are loaded again at the end. Skipped
    on a GPU, where the fault cannot occur (the head is the same tensor that was reloaded) and two reloads of a large
    model take long; and with an untied head, which is a tensor like any other.

    Raises `Permanent` with the figures when the LM head does not follow the reload.
    """
    if not host.model.tied or not process.on_cpu():
        return
    probe, candidates = _probe(host, 8), _unprobed_tokens(host, _CANDIDATES)
    before = dict(zip(candidates, await _last_logprobs(host, probe, candidates), strict=True))
    i, j = min(candidates, key=before.__getitem__), max(candidates, key=before.__getitem__)
    if before[j] - before[i] < _MIN_SIGNAL * host.tolerance:
        log.warning("every probed token is equally likely: that a reload reaches the LM head is not proven")
        return
    await host.swap_weights(host.model.files, 0, swapped_rows=(i, j))
    after_i, after_j = await _last_logprobs(host, probe, [i, j])
    await host.swap_weights(host.model.files, 0)
    worst = max(abs(after_i - before[j]), abs(after_j - before[i]))
    if not worst <= host.tolerance:
        raise Permanent(
            f"vLLM's LM head does not follow a reload of the tied embedding: with the rows of tokens {i} and {j} "
            f"exchanged, their logprobs are {after_i:.4f} and {after_j:.4f}, expected {before[j]:.4f} and "
            f"{before[i]:.4f} (± {host.tolerance:g}); put the workaround 'tied_head' in force"
        )


async def check_packed_experts(host: TestedHost) -> None:
    """Check `packed_experts`: a reload of the same weights changes no logprob of a model with experts.

    Skipped on a GPU, where vLLM packs experts again with every reload. Raises `Permanent` with the figures.
    """
    if not host.model.experts or not process.on_cpu():
        return
    probe = _probe(host, 8)
    before = await host.score(probe)
    await host.swap_weights(host.model.files, 0)
    after = await host.score(probe)
    if not all(abs(a - b) <= host.tolerance for a, b in zip(before, after, strict=True)):
        raise Permanent(
            "vLLM's experts do not survive a reload of the weights that they have: logprobs are "
            f"{_numbers(before)} before and {_numbers(after)} after, expected the same "
            f"(± {host.tolerance:g}); put the workaround 'packed_experts' in force"
        )


async def check_lora_mask(host: TestedHost) -> None:
    """Check `lora_mask`: a request without an adapter gives the same logprobs alone and beside requests with one.

    As many adapters are loaded as fit a step, because the fault applies the last one. Raises `Permanent` with the
    figures when the logprobs differ.
    """
    config, tensors = _random_adapter(host)
    if not tensors:
        log.warning("no layer that an adapter is known for: that mixed batches are right is not proven")
        return
    count = min(host.settings.max_batch_adapters, host.settings.max_adapters)
    adapters = [await host.adapters.load(tensors, config) for _ in range(count)]
    try:
        probe = _probe(host, 8)
        alone = await _greedy(host, probe, _BASE_TOKENS)
        adapted = await _greedy(host, probe, _BASE_TOKENS, lora=adapters[-1].request)
        beside = await _greedy_beside_adapter(host, probe, adapters[-1].request)
    finally:
        for adapter in adapters:
            host.adapters.release(adapter)
    await host.adapters.wait_unloaded()
    if _max_difference(alone, adapted) < _MIN_SIGNAL * host.tolerance:
        log.warning("the probe's adapter changes nothing: that mixed batches are right is not proven")
    elif not _max_difference(alone, beside) <= host.tolerance:
        raise Permanent(
            "vLLM gives rows without an adapter another row's: logprobs of the base model are "
            f"{_format(alone)} alone and {_format(beside)} beside an adapter, expected the same "
            f"(± {host.tolerance:g}); put the workaround 'lora_mask' in force"
        )


@dataclass(frozen=True, slots=True)
class CachedPrompt:
    """A prompt that the prefix cache holds, longer than a block."""

    prompt: list[int]


async def fill_prefix_cache(host: TestedHost) -> CachedPrompt | None:
    """Cache a block that the current weights compute; None when the context is shorter than a block."""
    length = host.block_size + 1
    if length + 2 > host.max_context:
        return None
    prompt = _probe(host, length)
    await _greedy(host, prompt, 1)
    return CachedPrompt(prompt)


async def check_prefix_cache(host: TestedHost, cached_prompt: CachedPrompt | None, version: int) -> None:
    """Check `clear_cache`: after a swap, logprobs with and without the prefix cache are equal. Raises `Permanent`."""
    if cached_prompt is None:
        return
    ((token, cached),) = await _greedy(host, cached_prompt.prompt, 1)
    recomputed = (await host.score([*cached_prompt.prompt, token]))[-1]
    # Weights that are not finite come from the trainer, and are reported by the requests that they fail.
    if math.isfinite(recomputed) and not abs(cached - recomputed) <= host.tolerance:
        raise Permanent(
            f"policy version {version}: vLLM's prefix cache still holds the weights before it: the logprob of token "
            f"{token} is {cached:.4f} through the cache and {recomputed:.4f} without, expected the same "
            f"(± {host.tolerance:g}); put the workaround 'clear_cache' in force"
        )


async def _greedy(host: TestedHost, prompt: list[int], tokens: int, *, lora: Any = None) -> list[tuple[int, float]]:
    from vllm import SamplingParams  # pyright: ignore[reportMissingImports]

    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, logprobs=0, detokenize=False)
    completion = (await host.generate_final(prompt, params, lora=lora)).outputs[0]
    return [
        (token, position[token].logprob)
        for token, position in zip(completion.token_ids, completion.logprobs, strict=True)
    ]


async def _greedy_beside_adapter(host: TestedHost, probe: list[int], lora: Any) -> list[tuple[int, float]]:
    """Return the base's greedy tokens and logprobs while a request with an adapter runs in the same batch."""
    from vllm import SamplingParams  # pyright: ignore[reportMissingImports]
    from vllm.sampling_params import RequestOutputKind  # pyright: ignore[reportMissingImports]

    params = SamplingParams(
        max_tokens=host.max_context - len(probe),
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )
    running = asyncio.Event()

    async def keep_running() -> None:
        async for _ in host.generate(text_input(probe), params, name=host.new_request_id(), lora=lora):
            running.set()

    neighbour = asyncio.create_task(keep_running())
    begun = asyncio.create_task(running.wait())
    try:
        await asyncio.wait({neighbour, begun}, return_when=asyncio.FIRST_COMPLETED)
        return await _greedy(host, probe, _BASE_TOKENS)
    finally:
        begun.cancel()
        neighbour.cancel()
        await asyncio.gather(neighbour, begun, return_exceptions=True)


async def _last_logprobs(host: TestedHost, probe: list[int], tokens: list[int]) -> list[float]:
    scored = await asyncio.gather(*(host.score([*probe, token]) for token in tokens))
    return [logprobs[-1] for logprobs in scored]


def _max_difference(one: list[tuple[int, float]], other: list[tuple[int, float]]) -> float:
    """Return the largest difference of two runs' logprobs, up to and with the first token in which they differ."""
    worst = 0.0
    for (token, logprob), (its_token, its_logprob) in zip(one, other, strict=True):
        worst = max(worst, abs(logprob - its_logprob))
        if token != its_token:
            break
    return worst


def _format(logprobs: list[tuple[int, float]]) -> str:
    return _numbers([logprob for _, logprob in logprobs])


def _numbers(logprobs: Sequence[float]) -> str:
    return "[" + ", ".join(f"{logprob:.4f}" for logprob in logprobs) + "]"


def _probe(host: TestedHost, length: int) -> list[int]:
    """Return a prompt of tokens from the lower half of the vocabulary, the same at every call."""
    half = host.model.vocabulary // 2
    return [(7 + 13 * k) % half for k in range(length)]


def _unprobed_tokens(host: TestedHost, count: int) -> list[int]:
    """Return tokens from the upper half of the vocabulary, which no probe holds."""
    half = host.model.vocabulary // 2
    return sorted({half + (11 * k) % half for k in range(count)})


def _random_adapter(host: TestedHost) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return a random adapter of rank 1 over every possible layer, with a large effect: configuration and tensors."""
    draws = torch.Generator().manual_seed(0)
    tensors: dict[str, Tensor] = {}
    for layer, (rows, columns) in host.model.adaptable().items():
        tensors[f"base_model.model.{layer}.lora_A.weight"] = torch.randn((1, columns), generator=draws) / columns**0.5
        tensors[f"base_model.model.{layer}.lora_B.weight"] = torch.randn((rows, 1), generator=draws)
    targets = {layer.rpartition(".")[2] for layer in host.model.adaptable()}
    config = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": sorted(targets), "bias": "none"}
    return config, tensors
