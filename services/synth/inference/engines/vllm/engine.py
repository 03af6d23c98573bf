"""One policy on a vLLM host: tokens in, tokens out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

from synth.errors import Permanent, Transient
from synth.inference.engines.limits import check_scorable, clamp_max_tokens, cut_off_delta
from synth.inference.engines.live_weights import check_fit, read_weights
from synth.inference.engines.protocol import (
    Delta,
    EngineCounters,
    EngineImage,
    EngineStats,
    SamplingParams,
    WeightProof,
)
from synth.inference.engines.sampling_time import OpenTimes, RequestTime, SamplingTime, late_completion
from synth.inference.engines.vllm import conversion
from synth.inference.engines.vllm.adapters import LoadedAdapter
from synth.inference.engines.vllm.host import VllmHost
from synth.inference.engines.vllm.image_patches import GivenUp
from synth.weights.policy_file import PolicyWeights

_ABORT_TIMEOUT_S = 10.0
_ADMISSION_POLL_S = 0.01


class VllmEngine:
    """See `synth.inference.engines.protocol.Engine`."""

    def __init__(self, host: VllmHost, adapter: LoadedAdapter | None, version: int) -> None:
        self._host = host
        self._adapter = adapter
        self._version = version
        self._open: dict[str, str] = {}
        self._aborting: set[asyncio.Task[None]] = set()
        self._counters = EngineCounters()
        self._times = OpenTimes()
        self._asleep = False
        self._closed = False

    @classmethod
    async def load(cls, host: VllmHost, *, adapter: Path | None = None, version: int = 0) -> VllmEngine:
        """Return a policy on a host: the base itself, or with a peft adapter directory over it.

        Raises `Permanent` for an adapter that the host cannot serve (any adapter on a host of full weights), and for
        a second policy on a host of full weights; `Transient` when the host has no room for another adapter.
        """
        host.check()
        if host.max_lora_rank is None:
            if adapter is not None:
                raise Permanent("an adapter for a host of full weights; expected a host with max_lora_rank")
            if host.engines:
                raise Permanent("a second policy on a host of full weights; expected a host for each")
        engine = cls(host, None, version)
        host.engines.add(engine)
        try:
            if adapter is not None:
                engine._adapter = await host.adapters.load_folder(adapter)
            elif host.max_lora_rank is None:
                if host.weights_replaced:  # by the policy before this one
                    await host.swap_weights(host.model.files, version)
                    host.weights_replaced = False
                await host.set_weight_version(version)
        except BaseException:
            host.engines.discard(engine)
            raise
        return engine

    @property
    def version(self) -> int:
        return self._version

    @property
    def healthy(self) -> bool:
        return not self._closed and self._host.healthy

    @property
    def max_context(self) -> int:
        """Tokens that one request can have."""
        return self._host.max_context

    @property
    def vocabulary(self) -> int:
        """The number of tokens of the model."""
        return self._host.model.vocabulary

    def stats(self) -> EngineStats:
        """Return its load. Steps and KV cache are the host's; each policy has its share of the requests that wait in
        vLLM, by its open ones, and its own that wait for room for their images."""
        host, counters = self._host, self._counters
        for_room = host.waiting_for_room(self)
        open_requests = len(self._open) - for_room
        waiting = (
            min(open_requests, -(-host.stats.waiting * open_requests // host.open_requests))
            if host.open_requests
            else 0
        )
        return EngineStats(
            running=open_requests - waiting,
            waiting=waiting + for_room,
            kv_tokens_used=round(host.stats.kv_usage * host.kv_tokens),
            kv_tokens_budget=host.kv_tokens,
            steps=host.stats.steps,
            sampled_tokens=counters.sampled_tokens,
            prefills=counters.prefills,
            prompts_shared=counters.prompts_shared,
        )

    async def generate(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        *,
        request_id: str,
        time: SamplingTime,
        stream: bool = False,
        images: Sequence[EngineImage] = (),
    ) -> AsyncIterator[Delta]:
        self._check()
        clamped = clamp_max_tokens(params, prompt=len(prompt_ids), context=self.max_context)
        vllm_params = conversion.vllm_params(clamped, stop_ids=self._host.model.stop_ids, stream=stream)
        name = self._open[request_id] = self._host.new_request_id()
        ids: list[int] = []
        try:
            with self._times.request(time, lambda: self.abort(request_id)) as ours:
                deltas = self._deltas(prompt_ids, images, vllm_params, name, ours, clamped.org)
                async with aclosing(deltas):
                    while True:
                        try:
                            async with ours.limit():
                                delta = await anext(deltas)
                        except StopAsyncIteration:
                            return
                        except TimeoutError:
                            raise late_completion() from None
                        ids += delta.token_ids
                        if delta.finish_reason == "abort" and ours.is_over:
                            if not ids:
                                raise late_completion()
                            delta = cut_off_delta(delta)
                        if delta.finish_reason == "stop" and delta.stop_text is None and clamped.grammar is not None:
                            # Thousands of tokens take a while.
                            await asyncio.to_thread(clamped.grammar.check_whole, ids)
                        yield delta
        finally:
            self._open.pop(request_id, None)

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        self._check()
        check_scorable(len(token_ids), self.max_context)
        async with self._host.adapters.using(self._adapter) as lora:
            return await self._host.score(token_ids, lora=lora)

    def abort(self, request_id: str) -> None:
        name = self._open.get(request_id)
        if name is not None and not self._host.give_up(self, name) and not self._host.llm.errored:
            task = asyncio.create_task(self._abort(request_id, name), name=f"abort {name}")
            self._aborting.add(task)
            task.add_done_callback(self._aborting.discard)

    async def _abort(self, request_id: str, name: str) -> None:
        known = self._host.llm.output_processor.external_req_ids
        # A thread of vLLM reads the prompt first, and until then vLLM ignores an abort of the request.
        while name not in known and self._open.get(request_id) == name and not self._host.llm.errored:  # noqa: ASYNC110
            await asyncio.sleep(_ADMISSION_POLL_S)  # vLLM has no event for it
        if name in known:
            await self._host.llm.abort(name)

    def end_requests(self) -> None:
        """Abort everything that is open."""
        for request_id in list(self._open):
            self.abort(request_id)

    async def update_weights(self, file: Path, version: int) -> WeightProof:
        self._check()
        weights = await asyncio.to_thread(read_weights, file, version)
        if (weights.kind == "lora") != (self._host.max_lora_rank is not None):
            raise Permanent(
                f"policy version {version} is of kind {weights.kind!r}, which this host cannot serve; expected "
                + ("an adapter" if weights.kind == "full" else "full weights")
            )
        if weights.kind == "lora":
            return await self._swap_adapter(weights)
        return await self._swap_full(weights, file)

    async def sleep(self) -> None:
        if not self._asleep:
            self._asleep = True
            self._times.hold()
        await self._host.sleep()

    async def wake(self) -> None:
        await self._host.wake()
        if self._asleep:
            self._asleep = False
            self._times.release()

    async def close(self) -> None:
        """Free the policy's adapters and end its requests; the host keeps running."""
        if self._closed:
            return
        self.end_requests()
        self._closed = True
        self._host.adapters.release(self._adapter)
        self._host.engines.discard(self)
        if self._aborting:
            await asyncio.wait(self._aborting, timeout=_ABORT_TIMEOUT_S)

    def _check(self) -> None:
        if self._closed:
            raise Transient("the engine is closed")
        self._host.check()

    async def _swap_adapter(self, weights: PolicyWeights) -> WeightProof:
        adapter = await self._host.adapters.load(weights.tensors, weights.lora or {})
        if self._closed:
            self._host.adapters.release(adapter)
            raise Transient("the engine is closed")
        old, self._adapter, self._version = self._adapter, adapter, weights.version
        self._host.adapters.release(old)
        return WeightProof(version=weights.version, tensors=len(weights.tensors), matched=len(weights.tensors))

    async def _swap_full(self, weights: PolicyWeights, file: Path) -> WeightProof:
        check_fit(weights, self._host.model.shapes)
        with self._times.held():
            taken = set(await self._host.swap_weights([file], weights.version))
        self._version = weights.version
        proof = WeightProof(
            version=weights.version, tensors=len(weights.digests), matched=len(taken & weights.digests.keys())
        )
        if proof.matched != proof.tensors:
            raise self._host.fail(
                Permanent(
                    f"policy version {proof.version}: vLLM took {proof.matched} of {proof.tensors} tensors; "
                    "the engine stops, load it again"
                )
            )
        return proof

    async def _deltas(
        self,
        prompt_ids: Sequence[int],
        images: Sequence[EngineImage],
        params: Any,
        name: str,
        time: RequestTime,
        org: str,
    ) -> AsyncGenerator[Delta]:
        """Convert vLLM's outputs to deltas, every token with its version.

        The policy that samples is the one that is live when there is room for the images.
        """
        async with AsyncExitStack() as stack:
            time.hold()  # while there is no room for its images or its adapter
            opening = self._host.open_prompt(prompt_ids, images, policy=self, name=name, org=org)
            try:
                prompt = await stack.enter_async_context(opening)
            except GivenUp:
                self._check()
                yield Delta([], [], [], finish_reason="abort")
                return
            self._check()
            version = self._version
            lora = await stack.enter_async_context(self._host.adapters.using(self._adapter))
            stack.enter_context(self._host.queue.request(time))
            time.release()
            outputs = self._host.generate(prompt, params, name=name, lora=lora, org=org)
            async with aclosing(outputs), aclosing(self._convert(outputs, name, version, params.logprobs)) as deltas:
                async for delta in deltas:
                    yield delta

    async def _convert(self, outputs: AsyncGenerator[Any], name: str, version: int, top: int) -> AsyncGenerator[Delta]:
        sent = 0
        processor = self._host.llm.output_processor
        async for output in outputs:
            self._check()  # when the host or the policy has ended, that is an error and not an abort
            completion = output.outputs[0]
            count = len(completion.token_ids)
            if self._host.max_lora_rank is not None:
                versions = [version] * count
            else:
                versions = conversion.version_per_token(_starts(processor, name, completion), sent, count)
            if sent == 0 and count:
                self._counters.prefills += 1
                self._counters.prompts_shared += output.num_cached_tokens > 0
            sent += count
            self._counters.sampled_tokens += count
            yield conversion.to_delta(completion, versions, version=self._version, top=top)


def _starts(processor: Any, name: str, completion: Any) -> list[tuple[str, int]]:
    """Return each version and the token at which it began, as vLLM counts them.

    They come with the last output; before that they are read from the request's state.
    """
    if completion.weight_versions is not None:
        return [(span.version, span.start) for span in completion.weight_versions]
    (internal,) = processor.external_req_ids[name]
    return processor.request_states[internal].weight_version_starts
