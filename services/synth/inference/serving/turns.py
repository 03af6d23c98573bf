"""A device that this process shares with a trainer: its engines sleep while the trainer has its turn.

Invariants: an engine is awake only while this process holds the turn; every operation that allocates or reads memory of
the device (loading, sampling, scoring, new weights) runs within `SharedDevice.use`; the turn is given up only when
every engine sleeps. Before that, sampling is paused between two tokens, and all other operations end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import cast

from synth.errors import SynthError
from synth.inference.engines.protocol import Delta, Engine, EngineImage, EngineStats, SamplingParams, WeightProof
from synth.inference.engines.sampling_time import SamplingTime
from synth.inference.serving.model_pool import EngineFactory, ModelFiles, ServedModel
from synth.runtime import logs
from synth.runtime.device_turn import POLL_S, DeviceTurn, TurnTimeout, timeout_message

log = logs.get("turns")

#: Whether this task is within `use` already: a nested `use` needs no second permission.
_inside: ContextVar[bool] = ContextVar("inside", default=False)


class SharedDevice:
    """This process's side of the turns at a device. `run` has to run.

    file: the file of the turn. turn_s: how long requests may still be served while a trainer waits. wait_s: how long a
    request waits for the turn.
    """

    def __init__(self, file: Path, *, who: str, turn_s: float, wait_s: float) -> None:
        self._file = file
        self._turn = DeviceTurn(file, who=who)
        self._turn_s = turn_s
        self._wait_s = wait_s
        self._engines: set[Engine] = set()
        self._wanted = asyncio.Event()
        self._open = asyncio.Event()
        self._busy = 0  # operations that cannot be paused
        self._sampling = 0
        self._waiting = 0

    async def run(self) -> None:
        """Take the turn when a request waits for it, and give it up when a trainer waits, without an end."""
        try:
            while True:
                await self._wanted.wait()
                await self._take()
                await _until(self._is_due)
                await self._give_up()
        finally:
            # Keep the turn: the engines are awake. The end of the process frees the lock and their memory together.
            self._turn.leave_queue()

    @asynccontextmanager
    async def use(self, *, pausable: bool = False) -> AsyncGenerator[None]:
        """Use the device within this process's turn; waits for it first.

        pausable: sampling, which goes on by itself in the next turn. Raises `TurnTimeout` if the turn does not come.
        """
        if _inside.get():
            yield
            return
        await self.wait_for_turn()
        self._busy += not pausable
        self._sampling += pausable
        self._wanted.set()
        token = _inside.set(True) if not pausable else None
        try:
            yield
        finally:
            if token is not None:
                _inside.reset(token)
            self._busy -= not pausable
            self._sampling -= pausable

    def add(self, engine: Engine) -> None:
        """Add an engine, which then sleeps with the others. It was loaded within `use`, and is awake."""
        self._engines.add(engine)

    def remove(self, engine: Engine) -> None:
        """Remove an engine that is closed."""
        self._engines.discard(engine)

    @property
    def asleep(self) -> bool:
        """Whether another process has the device."""
        return not self._turn.held

    async def wait_for_turn(self) -> None:
        """Return when this process has the device. Raises `TurnTimeout` if the turn does not come."""
        self._waiting += 1
        self._wanted.set()
        try:
            async with asyncio.timeout(self._wait_s):
                while not self._open.is_set():
                    await self._open.wait()
        except TimeoutError:
            raise TurnTimeout(timeout_message(self._file, self._wait_s), delay=5) from None
        finally:
            self._waiting -= 1

    async def _take(self) -> None:
        began = asyncio.get_running_loop().time()
        await _until(self._turn.try_take)
        seconds = asyncio.get_running_loop().time() - began
        if seconds > POLL_S:
            log.info("took the turn at the shared device", waited_s=round(seconds, 3), requests=self._waiting)
        for engine in list(self._engines):
            await _attempt(engine, engine.wake())
        self._open.set()

    def _is_due(self) -> bool:
        """Return whether to give up the turn: a trainer waits, and nothing here uses the device, or for long enough."""
        used = self._busy or self._sampling or self._waiting
        return self._turn.is_awaited() and (self._turn.held_s >= self._turn_s or not used)

    async def _give_up(self) -> None:
        self._open.clear()
        await _until(lambda: not self._busy)
        for engine in list(self._engines):
            await _attempt(engine, engine.sleep())
        log.info("gave the turn up", held_s=round(self._turn.held_s, 3), paused=self._sampling)
        self._turn.release()
        if not (self._waiting or self._sampling):
            self._wanted.clear()


async def _until(reached: Callable[[], bool]) -> None:
    """Poll a condition: the other side is another process, and sends no event."""
    while not reached():  # noqa: ASYNC110
        await asyncio.sleep(POLL_S)


async def _attempt(engine: Engine, change: Awaitable[None]) -> None:
    """Let an engine sleep or wake. If it cannot, it has died: its next call gets the error, and the others go on."""
    try:
        await change
    except SynthError as error:
        log.warning("an engine does not follow the turns", version=engine.version, error=str(error))


class TurnTakingEngine:
    """An engine on a shared device. See `synth.inference.engines.protocol.Engine`."""

    def __init__(self, engine: Engine, device: SharedDevice) -> None:
        self._engine = engine
        self._device = device
        self._waiting: dict[str, asyncio.Event] = {}
        device.add(engine)

    @property
    def version(self) -> int:
        return self._engine.version

    @property
    def healthy(self) -> bool:
        return self._engine.healthy

    @property
    def max_context(self) -> int:
        return self._engine.max_context

    @property
    def vocabulary(self) -> int:
        return self._engine.vocabulary

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
        aborted = self._waiting[request_id] = asyncio.Event()
        try:
            with time.request(lambda: None) as waiting:
                waiting.hold()
                has_turn = await self._wait_for_turn(aborted)
            if not has_turn:
                yield Delta([], [], [], finish_reason="abort")
                return
            async with self._device.use(pausable=True):
                # From here on the engine knows the request; an abort may have arrived after the turn.
                del self._waiting[request_id]
                if aborted.is_set():
                    yield Delta([], [], [], finish_reason="abort")
                    return
                deltas = self._engine.generate(
                    prompt_ids, params, request_id=request_id, time=time, stream=stream, images=images
                )
                async with aclosing(cast(AsyncGenerator[Delta], deltas)):
                    async for delta in deltas:
                        yield delta
        finally:
            self._waiting.pop(request_id, None)

    def abort(self, request_id: str) -> None:
        if request_id in self._waiting:
            self._waiting[request_id].set()
        else:
            self._engine.abort(request_id)

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        async with self._device.use():
            return await self._engine.score(token_ids)

    async def update_weights(self, file: Path, version: int) -> WeightProof:
        async with self._device.use():
            return await self._engine.update_weights(file, version)

    async def sleep(self) -> None:
        await self._engine.sleep()

    async def wake(self) -> None:
        await self._engine.wake()

    def stats(self) -> EngineStats:
        """Return the engine's stats. Requests that wait for the turn count as running: they are no sign of overload."""
        stats = self._engine.stats()
        if not self._device.asleep:
            return replace(stats, running=stats.running + len(self._waiting))
        return replace(stats, running=stats.running + stats.waiting + len(self._waiting), waiting=0)

    async def close(self) -> None:
        self._device.remove(self._engine)
        await self._engine.close()

    async def _wait_for_turn(self, aborted: asyncio.Event) -> bool:
        """Wait until this process has the device; returns False if the request is aborted first."""
        turn = asyncio.ensure_future(self._device.wait_for_turn())
        abort = asyncio.ensure_future(aborted.wait())
        try:
            await asyncio.wait({turn, abort}, return_when=asyncio.FIRST_COMPLETED)
            if turn.done():
                turn.result()
            return turn.done()
        finally:
            turn.cancel()
            abort.cancel()
            await asyncio.gather(turn, abort, return_exceptions=True)


def take_turns(load: EngineFactory, device: SharedDevice) -> EngineFactory:
    """Return a factory whose engines share a device: they are loaded within this process's turn."""

    async def load_in_turn(files: ModelFiles) -> ServedModel:
        async with device.use():
            loaded = await load(files)
            return replace(loaded, engine=TurnTakingEngine(loaded.engine, device))

    return load_in_turn
