"""One vLLM engine process: a base model and the policies that share it."""

from __future__ import annotations

import asyncio
import itertools
import logging
import shutil
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, Protocol, TypeVar

from synth.errors import Permanent, SynthError, Transient
from synth.fairness.tags import FairTags
from synth.inference.engines.image_prompts import check_no_images, read_prompt
from synth.inference.engines.limits import vllm_lora_rank
from synth.inference.engines.protocol import EngineImage
from synth.inference.engines.sampling_time import QueuedTimes
from synth.inference.engines.settings import WORKAROUNDS, EngineSettings
from synth.inference.engines.vllm import conversion, metrics, process, selftest
from synth.inference.engines.vllm.adapters import AdapterPool, make_host_folder
from synth.inference.engines.vllm.base_model import BaseModelInfo, read_base_model_info
from synth.inference.engines.vllm.image_patches import PatchStore
from synth.inference.engines.vllm.launch import launch
from synth.inference.engines.vllm.prompts import multimodal_input, text_input

log = logging.getLogger(__name__)

T = TypeVar("T")


class HostedEngine(Protocol):
    """The methods of its engines that a host calls when it ends."""

    def end_requests(self) -> None: ...

    async def close(self) -> None: ...


class VllmHost:
    """One AsyncLLM over a local model directory, and the EngineCore child process that runs it.

    It serves either many policies at once, the base and adapters over it (`max_lora_rank` given); or one policy whose
    full weights are swapped (`max_lora_rank` None).

    asleep: whether its memory was given back. engines: the policies on it. weights_replaced: whether its weights differ
    from the model directory's. queue: the times of the requests that vLLM has, or that wait for room.
    """

    def __init__(
        self, llm: Any, folder: Path, model: BaseModelInfo, settings: EngineSettings, rank: int | None
    ) -> None:
        self.llm = llm
        self.model = model
        self.settings = settings
        self.max_lora_rank = rank
        self.adapters = AdapterPool(llm, folder, settings, layers=model.adaptable())
        self.stats: metrics.HostStats = llm.synth_stats
        self.queue = QueuedTimes()
        self.stats.on_step = self.queue.update
        self.open_requests = 0
        self._tags = FairTags()
        self.engines: set[HostedEngine] = set()
        self.weights_replaced = False
        self._folder = folder
        self._patches = _patch_store(model, llm, settings)
        self._failure: str | None = None
        self._closed = False
        self.asleep = False
        self._names = itertools.count(1)
        self._swapping = asyncio.Lock()

    @classmethod
    async def start(cls, model_dir: Path, settings: EngineSettings, *, max_lora_rank: int | None) -> VllmHost:
        """Start the engine process and test it (see `selftest`).

        The first host of a process takes 16 CPU-seconds, of which 14 run on two cores; each further one takes 3.
        max_lora_rank: the largest rank of an adapter that can be loaded; None: a host of one policy's full weights.
        Raises `Permanent` for a model that cannot be served, and when the self-test finds that vLLM serves wrong
        weights.
        """
        rank = None if max_lora_rank is None else vllm_lora_rank(max_lora_rank)
        _check_workarounds(settings)
        model = await asyncio.to_thread(read_base_model_info, model_dir)
        launching = asyncio.ensure_future(asyncio.to_thread(launch, model_dir, model, settings, rank))
        try:
            llm = await asyncio.shield(launching)
        except asyncio.CancelledError:
            launching.add_done_callback(_shut_down_when_launched)  # no other code would close it
            raise
        except SynthError:
            raise
        except Exception as error:
            raise Permanent(f"vLLM cannot serve {model_dir.name!r}: {error}") from error
        host = cls(llm, make_host_folder(), model, settings, rank)
        metrics.register_host(llm.synth_registry)
        try:
            await host._set_up()
        except BaseException:
            await asyncio.shield(host.close())
            raise
        return host

    @property
    def healthy(self) -> bool:
        """False once the engine process has ended, the host was closed, or it was found to serve wrong weights."""
        return not (self._closed or self._failure or process.has_ended(self.llm))

    @property
    def pid(self) -> int:
        """The process id of the EngineCore child."""
        return process.engine_process(self.llm).pid

    @property
    def max_context(self) -> int:
        """Tokens that one request can have, by the model and by the KV budget."""
        return self.llm.model_config.max_model_len

    @property
    def block_size(self) -> int:
        """Tokens of one block of the KV cache; the prefix cache shares whole blocks."""
        return self.llm.vllm_config.cache_config.block_size

    @property
    def kv_tokens(self) -> int:
        """Tokens that the KV cache can hold."""
        return self.llm.vllm_config.cache_config.num_gpu_blocks * self.block_size

    @property
    def tolerance(self) -> float:
        """Nats by which two computations of one logprob may differ; in bfloat16, 0.15 was measured over 60 tokens."""
        import torch

        return 1e-3 if self.llm.model_config.dtype == torch.float32 else 0.3

    def check(self) -> None:
        """Raise `Transient` with the reason if the host has ended."""
        if self._failure is not None:
            raise Transient(self._failure)
        if not self.healthy:
            raise Transient("the engine is closed" if self._closed else "the engine process has ended")

    def fail(self, error: SynthError) -> SynthError:
        """End the host's requests with an error, because nothing that it serves can be trusted any more; returns it."""
        self._failure = f"the engine stopped: {error}"
        for engine in list(self.engines):
            engine.end_requests()
        return error

    def new_request_id(self) -> str:
        """Return a request id that is unique on this host."""
        return f"request-{next(self._names)}"

    @asynccontextmanager
    async def open_prompt(
        self, prompt_ids: Sequence[int], images: Sequence[EngineImage], *, policy: HostedEngine, name: str, org: str
    ) -> AsyncIterator[Any]:
        """Yield vLLM's input for these ids, which show these images, until its request ends. name: of the request. org:
        its owner.

        Waits until there is room for the images' patches. Raises `UserError` if the ids do not show them, and
        `GivenUp` when the request was aborted while it waited.
        """
        token = self.model.image_token
        if self._patches is None or token is None:
            check_no_images(images)
            yield text_input(prompt_ids, org=org)
            return
        # Only to check that the ids show the images: vLLM finds the positions by itself.
        if read_prompt(prompt_ids, images, image_token=token, merge_size=self._patches.merge_size) is None:
            yield text_input(prompt_ids, org=org)
            return
        async with self._patches.open(images, policy=policy, name=name) as patches:
            shown = [image.shown for image in images]
            yield multimodal_input(prompt_ids, shown, patches, image_token=token, org=org)

    def waiting_for_room(self, policy: HostedEngine) -> int:
        """Return how many requests of a policy wait in `open_prompt`."""
        return 0 if self._patches is None else self._patches.waiting(policy)

    def give_up(self, policy: HostedEngine, name: str) -> bool:
        """End the wait of a request in `open_prompt`; False for one that does not wait there."""
        return self._patches is not None and self._patches.give_up(policy, name)

    async def generate(
        self, prompt: Any, params: Any, *, name: str, lora: Any = None, org: str | None = None
    ) -> AsyncGenerator[Any]:
        """Yield vLLM's outputs for one request. prompt: of `open_prompt`. org: its owner; None for the host's own
        requests, which are served before all waiting ones.

        Raises `Transient` when the engine ends, and `Permanent` for a request that vLLM does not take.
        """
        from vllm.exceptions import VLLMClientError, VLLMError  # pyright: ignore[reportMissingImports]

        self.check()
        self.open_requests += 1
        try:
            # vLLM takes the lowest first.
            with nullcontext(-1) if org is None else self._tags.hold(org) as priority:
                outputs = self.llm.generate(prompt, params, name, lora_request=lora, priority=priority)
                async with aclosing(outputs):
                    async for output in outputs:
                        yield output
        except VLLMClientError as error:
            self.check()
            raise Permanent(f"vLLM refuses the request: {error}") from error
        except VLLMError as error:
            self.check()
            raise Transient(f"vLLM gave the request up: {error}") from error
        finally:
            self.open_requests -= 1

    async def generate_final(self, prompt_ids: Sequence[int], params: Any, *, lora: Any = None) -> Any:
        """Return the final output of a request of the host's own, which is served before all waiting ones."""
        try:
            async with asyncio.timeout(self.settings.call_s):
                outputs = [
                    output
                    async for output in self.generate(
                        text_input(prompt_ids), params, name=self.new_request_id(), lora=lora
                    )
                ]
        except TimeoutError:
            raise Transient(f"vLLM did not answer in {self.settings.call_s:g} s (SYNTH_ENGINE_CALL_S)") from None
        self.check()
        return outputs[-1]

    async def score(self, token_ids: Sequence[int], *, lora: Any = None) -> list[float]:
        """Return logprobs of token_ids[1:], without the prefix cache (see `Engine.score`)."""
        return conversion.prompt_logprobs(await self.generate_final(token_ids, conversion.scoring_params(), lora=lora))

    async def swap_weights(
        self, files: list[Path], version: int, *, swapped_rows: tuple[int, int] | None = None
    ) -> list[str]:
        """Load full weights from files that are known to fit: pause, update, resume. Returns the names of the tensors.

        Running requests continue after their KV was recomputed. swapped_rows: two rows of the embedding that change
        places on the way (for the self-test). Raises `Permanent`, after which the host is not healthy, when vLLM breaks
        off
        half-way, or when the prefix cache still answers with the old weights; `Transient` when the engine process ends.
        """
        # A caller that gives up must not leave the engine paused, or with half of the new weights.
        swapping = asyncio.create_task(self._swap(files, version, swapped_rows), name=f"swap to version {version}")
        swapping.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(swapping)

    async def set_weight_version(self, version: int) -> None:
        """Name the version of the weights that are already loaded."""
        await self._call(self.llm.update_weight_version(str(version)))

    async def sleep(self) -> None:
        """As `Engine.sleep`, for every policy on this host. On a CPU vLLM keeps its memory, and only stands still.

        Raises `Transient`, having ended the engine process, when vLLM does not: its end gives the memory back.
        """
        if self.asleep or self._closed:
            return
        self.check()
        self.asleep = True
        await self.adapters.pause()
        await self._move(self.llm.sleep(level=1, mode="keep"), "did not fall asleep")

    async def wake(self) -> None:
        """As `Engine.wake`. Raises `Transient` as `sleep` does."""
        if not self.asleep or self._closed:
            return
        self.check()
        await self._move(self.llm.wake_up(), "did not wake up")
        self.adapters.resume()
        self.asleep = False

    async def close(self) -> None:
        """Close the policies that are still loaded, and end the engine process."""
        if self._closed:
            return
        self._closed = True
        for engine in list(self.engines):
            await engine.close()
        self.adapters.close()
        metrics.unregister_host(self.llm.synth_registry)
        if self.llm.output_handler is not None:
            self.llm.output_handler.cancel()  # otherwise it reports the end as an error
        await asyncio.to_thread(process.shut_down, self.llm)
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _move(self, call: Coroutine[Any, Any, Any], failed: str) -> None:
        try:
            await self._call(call)
        except Exception as error:
            reason = self.fail(Transient(f"vLLM {failed}: {type(error).__name__}: {error}"))
            await self.close()
            raise reason from error

    async def _swap(self, files: list[Path], version: int, swapped_rows: tuple[int, int] | None) -> list[str]:
        update = {
            "files": [str(f) for f in files],
            "swapped_rows": [self.model.embedding, *swapped_rows] if swapped_rows else [],
        }
        async with self._swapping:
            self.check()
            cached_prompt = await selftest.fill_prefix_cache(self)
            self.weights_replaced = True
            try:
                taken = await self._call(self._update(update, version))
            except Exception as error:
                self.check()  # if the process was killed meanwhile, the weights are not to blame
                reason = f"policy version {version}: vLLM broke off half-way: {type(error).__name__}: {error}"
                raise self.fail(Permanent(reason)) from error
            try:
                await selftest.check_prefix_cache(self, cached_prompt, version)
            except Permanent as error:
                raise self.fail(error) from None
        return taken

    async def _update(self, update: dict[str, Any], version: int) -> list[str]:
        from vllm.distributed.weight_transfer.base import (  # pyright: ignore[reportMissingImports]
            WeightTransferUpdateRequest,
        )

        await self.llm.pause_generation(mode="keep", clear_cache="clear_cache" in self.settings.workarounds)
        await self.llm.start_weight_update()
        await self.llm.update_weights(WeightTransferUpdateRequest(update_info=update))
        taken = (await self.llm.collective_rpc("synth_loaded"))[0]
        await self.llm.finish_weight_update(str(version))
        await self.llm.resume_generation()
        return taken

    async def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return await process.call(self.llm, coroutine, timeout=self.settings.call_s)

    async def _set_up(self) -> None:
        await self._call(self.llm.collective_rpc("synth_setup", args=(sorted(self.settings.workarounds),)))
        if self.max_lora_rank is None:
            await selftest.check_tied_head(self)
            await selftest.check_packed_experts(self)
            self.weights_replaced = False  # the self-test has put the base weights back
        else:
            await selftest.check_lora_mask(self)


def _patch_store(model: BaseModelInfo, llm: Any, settings: EngineSettings) -> PatchStore | None:
    if model.image_processor is None:
        return None
    return PatchStore(
        model.image_processor,
        dtype=llm.model_config.dtype,
        open_bytes=settings.open_pixel_bytes,
        cache_bytes=settings.pixel_cache_bytes,
    )


def _check_workarounds(settings: EngineSettings) -> None:
    unknown = settings.workarounds - WORKAROUNDS
    if unknown:
        raise Permanent(f"workarounds names {sorted(unknown)}; expected some of {sorted(WORKAROUNDS)}")


def _shut_down_when_launched(launching: asyncio.Future[Any]) -> None:
    if not launching.cancelled() and launching.exception() is None:
        asyncio.get_running_loop().run_in_executor(None, process.shut_down, launching.result())
