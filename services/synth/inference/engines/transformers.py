"""The embedded engine: our own continuous batcher over a transformers model, on the CPU or on one GPU.

All of torch runs in one thread that the engine owns. The asyncio side puts commands into an inbox; the thread carries
them out between two steps, and after each step hands all new tokens to the event loop in one call.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from synth.errors import Permanent, SynthError, Transient
from synth.inference.engines.limits import check_scorable, clamp_max_tokens, cut_off_delta
from synth.inference.engines.protocol import Delta, EngineImage, EngineStats, SamplingParams, WeightProof
from synth.inference.engines.sampling_time import OpenTimes, SamplingTime, late_completion
from synth.inference.engines.settings import EngineSettings

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from synth.inference.engines.batcher import Batcher
    from synth.inference.engines.image_prompts import ImagePrompt, ImageReader
    from synth.inference.engines.live_weights import LiveModel
    from synth.inference.engines.running_batch import SequenceRequest

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_CLOSE_TIMEOUT = 30.0


@dataclass(frozen=True, slots=True)
class _Command:
    """A command for the engine's thread, run between two steps. fail: passes an error to its caller."""

    run: Callable[[], None]
    fail: Callable[[SynthError], None] = lambda error: None


class TransformersEngine:
    """See `synth.inference.engines.protocol.Engine`."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._wake = threading.Condition()
        self._inbox: deque[_Command] = deque()
        self._outbox: list[tuple[asyncio.Queue[Delta | Exception | None], Delta | Exception | None]] = []
        self._requests: dict[str, SequenceRequest] = {}
        self._times = OpenTimes()
        self._closing = False
        self._asleep = False
        self._fatal_error: SynthError | None = None
        self._batcher: Batcher
        self._live: LiveModel
        self._images: ImageReader | None = None
        self._max_context = 0
        self._vocabulary = 0
        self._version = 0
        self._cpu_seconds = 0.0
        self._thread: threading.Thread

    @classmethod
    async def load(
        cls,
        model_dir: Path,
        *,
        adapter: Path | None = None,
        version: int = 0,
        settings: EngineSettings,
    ) -> TransformersEngine:
        """Load a local model directory (and an adapter over it) in the engine's own thread.

        Raises `Permanent` for a model that cannot be served, with the reason.
        """
        engine = cls(settings)
        engine._version = version
        ready: Future[None] = Future()
        thread = threading.Thread(
            target=engine._run, args=(model_dir, adapter, ready), name=f"engine-{model_dir.name}", daemon=True
        )
        engine._thread = thread
        thread.start()
        await asyncio.wrap_future(ready)
        return engine

    @property
    def version(self) -> int:
        return self._version

    @property
    def healthy(self) -> bool:
        return self._fatal_error is None and not self._closing

    @property
    def max_context(self) -> int:
        return self._max_context

    @property
    def vocabulary(self) -> int:
        return self._vocabulary

    def stats(self) -> EngineStats:
        return replace(self._batcher.stats(), cpu_seconds=self._cpu_seconds)

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
        from synth.inference.engines.running_batch import SequenceRequest

        params = clamp_max_tokens(params, prompt=len(prompt_ids), context=self._max_context)
        queue: asyncio.Queue[Delta | Exception | None] = asyncio.Queue()
        request = SequenceRequest(
            request_id, list(prompt_ids), params, stream, lambda item: self._outbox.append((queue, item))
        )
        request.admitted = lambda: self._outbox.append((queue, None))
        request.images = self._shown_images(prompt_ids, images)
        self._requests[request_id] = request
        finished = added = sampled = False
        try:
            with self._times.request(time, lambda: self.abort(request_id)) as ours:
                ours.hold()  # until it is admitted
                self._post(_Command(lambda: self._batcher.add(request), request.deliver))
                added = True
                while not finished:
                    try:
                        async with ours.limit():
                            item = await queue.get()
                    except TimeoutError:
                        raise late_completion() from None
                    if item is None:
                        ours.release()
                        continue
                    finished = isinstance(item, Exception) or item.finish_reason is not None
                    if isinstance(item, Exception):
                        raise item
                    sampled = sampled or bool(item.token_ids)
                    if item.finish_reason == "abort" and ours.is_over:
                        if not sampled:
                            raise late_completion()
                        item = cut_off_delta(item)
                    yield item
        finally:
            del self._requests[request_id]
            if added and not finished and self.healthy:
                self._post(_Command(lambda: self._batcher.abort(request)))

    def abort(self, request_id: str) -> None:
        request = self._requests.get(request_id)
        if request is not None and self.healthy:
            self._post(_Command(lambda: self._batcher.abort(request)))

    def _shown_images(self, prompt_ids: Sequence[int], images: Sequence[EngineImage]) -> ImagePrompt | None:
        if self._images is not None:
            return self._images.prompt(prompt_ids, images)
        from synth.inference.engines.image_prompts import check_no_images

        check_no_images(images)
        return None

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        check_scorable(len(token_ids), self._max_context)
        ids = list(token_ids)
        return await self._run_in_thread(lambda: self._batcher.score(ids))

    async def update_weights(self, file: Path, version: int) -> WeightProof:
        from synth.inference.engines.live_weights import read_weights

        # In another thread than the engine's, so that running requests do not wait for the disk.
        weights = await asyncio.to_thread(read_weights, file, version)
        done: Future[WeightProof] = Future()

        def swap() -> None:
            if not done.set_running_or_notify_cancel():
                return  # nobody waits for it any more
            try:
                proof = self._live.load(weights)
                if proof.matched != proof.tensors:
                    raise _WeightsMismatch(_mismatch_message(proof))
                self._batcher.recompute()
            except BaseException as error:
                done.set_exception(error)
                if type(error) is Permanent:
                    return  # the file does not fit: nothing has changed, and the old version stays
                raise  # half-loaded weights must not be served
            self._batcher.version = self._version = version
            done.set_result(proof)

        with self._times.held():
            self._post(_Command(swap, lambda error: None if done.done() else done.set_exception(error)))
            return await asyncio.wrap_future(done)

    async def sleep(self) -> None:
        if not self._asleep:
            self._times.hold()
            await asyncio.shield(self._run_in_thread(self._fall_asleep))

    async def wake(self) -> None:
        if self._asleep:
            await asyncio.shield(self._run_in_thread(self._wake_up))
            self._times.release()

    async def close(self) -> None:
        with self._wake:
            self._closing = True
            self._wake.notify()
        await asyncio.to_thread(self._thread.join, _CLOSE_TIMEOUT)

    def _run_in_thread(self, act: Callable[[], _T]) -> asyncio.Future[_T]:
        """Run something in the engine's thread between two steps. An error of it ends the engine."""
        done: Future[_T] = Future()

        def run() -> None:
            if not done.set_running_or_notify_cancel():
                return  # nobody waits for it any more
            try:
                done.set_result(act())
            except BaseException as error:
                done.set_exception(Transient(f"the engine died: {type(error).__name__}: {error}"))
                raise

        self._post(_Command(run, lambda error: None if done.done() else done.set_exception(error)))
        return asyncio.wrap_future(done)

    def _fall_asleep(self) -> None:
        self._batcher.sleep()
        self._live.move("cpu")
        self._asleep = True

    def _wake_up(self) -> None:
        self._live.move(self._live.device)
        self._batcher.wake()
        self._asleep = False

    def _post(self, command: _Command) -> None:
        with self._wake:
            if self._fatal_error is not None or self._closing:
                raise self._fatal_error or Transient("the engine is closed")
            self._inbox.append(command)
            self._wake.notify()

    def _run(self, model_dir: Path, adapter: Path | None, ready: Future[None]) -> None:
        try:
            self._load(model_dir, adapter)
        except BaseException as error:  # noqa: BLE001 - the caller of `load` gets every error
            if not ready.cancelled():
                ready.set_exception(error)
            return
        if ready.cancelled():
            return  # the caller has given up, so the engine would never be closed
        ready.set_result(None)
        try:
            self._serve()
            self._fail_all(Transient("the engine is closed"))
        except BaseException as error:
            log.exception("engine died")
            self._fail_all(Transient(f"the engine died: {type(error).__name__}: {error}"))
        finally:
            if self._images is not None:
                self._images.close()

    def _load(self, model_dir: Path, adapter: Path | None) -> None:
        from synth.inference.engines.loading import load_model

        loaded = load_model(model_dir, adapter, self._settings, decode=self._decode, on_image=self._look_again)
        self._live, self._batcher = loaded.live, loaded.batcher
        self._batcher.version = self._version
        self._max_context, self._vocabulary = loaded.max_context, loaded.vocabulary
        self._images = loaded.images

    def _decode(self, image: EngineImage) -> npt.NDArray[np.uint8]:
        return asyncio.run_coroutine_threadsafe(image.pixels(), self._loop).result()

    def _look_again(self) -> None:
        """Wake the engine after an image was read: a request that waits for it may be next."""
        with self._wake:
            self._wake.notify()

    def _serve(self) -> None:
        import torch

        with torch.inference_mode():
            while True:
                with self._wake:
                    while not self._inbox and (self._batcher.idle or self._asleep) and not self._closing:
                        self._wake.wait()
                    if self._closing:
                        return
                while self._inbox:
                    self._inbox[0].run()
                    # Only now: if the command kills the thread, `_fail_all` still passes the error to its caller.
                    self._inbox.popleft()
                if not self._batcher.idle and not self._asleep:
                    self._batcher.step()
                self._flush()
                self._cpu_seconds = time.thread_time()

    def _fail_all(self, error: SynthError) -> None:
        with self._wake:
            self._fatal_error = error
        for command in self._inbox:
            command.fail(error)
        self._batcher.fail_all(error)
        self._flush()

    def _flush(self) -> None:
        if self._outbox:
            batch, self._outbox = self._outbox, []
            self._loop.call_soon_threadsafe(_dispatch, batch)


class _WeightsMismatch(Permanent):
    """The served weights are not the announced ones, so the engine has to stop."""


def _mismatch_message(proof: WeightProof) -> str:
    return (
        f"policy version {proof.version}: {proof.tensors - proof.matched} of {proof.tensors} tensors read back "
        "otherwise than the trainer wrote them; the engine stops, load it again"
    )


def _dispatch(batch: list[tuple[asyncio.Queue[Any], Any]]) -> None:
    for queue, item in batch:
        queue.put_nowait(item)
