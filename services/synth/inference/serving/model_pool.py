"""Which models this process holds: training policies for as long as their job says, served models by use.

A training policy is never evicted for a served model; an idle served model is evicted for either. What an evaluation
pins of a training policy stands beside it and takes no place: an evaluation that had to wait for another job's end
would fail its own. A model is loaded once however many ask for it at the same time, and one that nobody trains is let
go of when nobody has asked for it for a while.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from synth.errors import Transient
from synth.events import Canary, LoraShape
from synth.inference.chat.prompts import ChatFormat
from synth.inference.engines.protocol import Engine, EngineStats


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model on this machine's disk. adapter: a peft directory over it, or None.

    weights: a policy weights file to load over it, of this version; None for the model as it lies there.
    copied: weights is a copy for this one load, to be deleted after it. canary: what proves them.
    lora: the shape of the adapter, this one or the one that will be trained; None for full weights.
    trained: newer weights will come.
    """

    model_dir: Path
    adapter: Path | None = None
    weights: Path | None = None
    version: int = 0
    copied: bool = False
    canary: Canary | None = None
    lora: LoraShape | None = None
    trained: bool = False

    @property
    def replaced(self) -> bool:
        """Whether the weights of the model itself are replaced, so that nothing else can run on them."""
        return self.lora is None and (self.trained or self.weights is not None)


async def _nothing() -> None:
    """There is nothing but the engine."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """An engine and the chat format of its model.

    half: it computes in 16 bits. let_go: frees what the engine stands on, once it is closed.
    """

    engine: Engine
    chat: ChatFormat
    half: bool = False
    let_go: Callable[[], Awaitable[None]] = _nothing

    async def close(self) -> None:
        """Stop the engine, and free what it stands on."""
        try:
            await self.engine.close()
        finally:
            await self.let_go()


Loader = Callable[[str], Awaitable[ModelFiles]]
"""Resolves a model id to files on this machine; raises `UserError` for an unknown one."""

Opener = Callable[[ModelFiles], Awaitable[Loaded]]
"""Loads files as the policy version that they are."""


@dataclass(eq=False, slots=True)
class _Place:
    """One of the process's places for a model. used: when it was last used; leases: requests that run on it.

    beside: the training policy of which this is another version, and which it goes with.
    """

    loading: asyncio.Task[Loaded]
    training: bool
    beside: str | None = None
    used: float = 0.0
    leases: int = 0

    @property
    def evictable(self) -> bool:
        return not self.training and self.leases == 0 and self.loading.done()


class Policies:
    """The loaded models of one inference process, at most `max_models`.

    load_timeout: seconds for one to load. clock: seconds, of any beginning.
    """

    def __init__(
        self,
        loader: Loader,
        opener: Opener,
        *,
        max_models: int = 3,
        load_timeout: float = 300,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loader = loader
        self._opener = opener
        self._max_models = max_models
        self._load_timeout = load_timeout
        self._places: dict[str, _Place] = {}
        self._clock = clock
        self._room = asyncio.Lock()

    def names(self) -> list[str]:
        """What is loaded, training policies included."""
        return [name for name, place in self._places.items() if _ready(place)]

    def stats(self) -> dict[str, EngineStats]:
        """A reading of every loaded engine, by the name of its model."""
        return {name: place.loading.result().engine.stats() for name, place in self._places.items() if _ready(place)}

    def training(self, name: str) -> Loaded | None:
        """A training policy, if it is loaded."""
        place = self._places.get(name)
        return place.loading.result() if place is not None and place.training and _ready(place) else None

    async def hold(self, name: str, files: ModelFiles) -> Loaded:
        """Load a training policy, and keep it until `release`. Raises `Transient` when every place is taken."""
        async with self._room:
            place = await self._unless_dead(name)
            if place is None:
                place = await self._take_place(name, lambda: self._opener(files), training=True)
        return await self._loaded(name, place)

    async def release(self, name: str) -> None:
        """Let go of a training policy: its job is over. Releasing one that is not held does nothing."""
        place = self._places.get(name)
        if place is not None and place.training:
            await self._drop(name, place)
        for pinned, version in list(self._places.items()):
            if version.beside == name:
                await self._drop(pinned, version)

    async def forget(self, name: str) -> bool:
        """Let go of a served model, so that its files are looked for anew; False while somebody uses it."""
        place = self._places.get(name)
        if place is not None and place.evictable:
            await self._drop(name, place)
        return name not in self._places

    @asynccontextmanager
    async def lease(self, name: str, *, beside: str | None = None) -> AsyncIterator[Loaded]:
        """A served model for one request, loaded first if need be; it is not evicted meanwhile.

        beside: the training policy that this is another version of.
        Raises `UserError` for an unknown model, `Transient` when every place is taken or it takes too long to load.
        """
        place = await self._unless_dead(name)
        if place is None:
            async with self._room:
                place = self._places.get(name)  # another request may have begun to load it meanwhile
                if place is None:
                    place = await self._take_place(
                        name, lambda: self._find_and_open(name), training=False, beside=beside
                    )
        place.leases += 1
        place.used = self._clock()
        try:
            yield await self._loaded(name, place)
        finally:
            place.leases -= 1
            place.used = self._clock()

    async def unload_idle(self, seconds: float) -> list[str]:
        """Let go of the models that nobody trains and nobody has used for so long; returns their names."""
        since = self._clock() - seconds
        idle = [(name, place) for name, place in self._places.items() if place.evictable and place.used <= since]
        for name, place in idle:
            # Closing the one before took its time: somebody may use this one by now.
            if place.evictable:
                await self._drop(name, place)
        return [name for name, _ in idle]

    async def close(self) -> None:
        """Stop every engine."""
        await asyncio.gather(*(self._drop(name, place) for name, place in list(self._places.items())))

    async def _find_and_open(self, name: str) -> Loaded:
        return await self._opener(await self._loader(name))

    async def _take_place(
        self, name: str, load: Callable[[], Awaitable[Loaded]], *, training: bool, beside: str | None = None
    ) -> _Place:
        rivals = {n: p for n, p in self._places.items() if p.beside == beside}
        # Beside a training policy there is room for one more version of it; the idle ones before it are history.
        if len(rivals) >= (self._max_models if beside is None else 1):
            idle = [(p.used, n) for n, p in rivals.items() if p.evictable]
            if not idle:
                taken = f"all {self._max_models} places for a model are" if beside is None else "another version is"
                raise Transient(f"{taken} in use; {name!r} has to wait", delay=5)
            _, oldest = min(idle)
            await self._drop(oldest, self._places[oldest])

        async def bounded() -> Loaded:
            async with asyncio.timeout(self._load_timeout):
                return await load()

        place = _Place(asyncio.create_task(bounded(), name=f"load {name}"), training, beside)
        self._places[name] = place
        return place

    async def _loaded(self, name: str, place: _Place) -> Loaded:
        """Wait for a model that is loading; one that cannot be loaded gives its place back."""
        try:
            # Shielded: a client that hangs up must not cancel the load that others wait for.
            loaded = await asyncio.shield(place.loading)
        except TimeoutError:
            self._vacate(name, place)
            raise Transient(f"{name!r} did not load in {self._load_timeout:g} s", delay=30) from None
        except asyncio.CancelledError:
            raise
        except BaseException:
            self._vacate(name, place)
            raise
        if not loaded.engine.healthy:
            raise Transient(f"the engine of {name!r} has stopped", delay=5)
        return loaded

    async def _unless_dead(self, name: str) -> _Place | None:
        """A model's place; one whose engine has died is given up, so that it is loaded anew."""
        place = self._places.get(name)
        if place is not None and place.loading.done() and not _ready(place):
            await self._drop(name, place)
            return None
        return place

    def _vacate(self, name: str, place: _Place) -> None:
        if self._places.get(name) is place:
            del self._places[name]

    async def _drop(self, name: str, place: _Place) -> None:
        self._vacate(name, place)
        if not place.loading.done():
            place.loading.cancel()
            await asyncio.wait([place.loading])
        if not place.loading.cancelled() and place.loading.exception() is None:
            await place.loading.result().close()


def _ready(place: _Place) -> bool:
    task = place.loading
    return task.done() and not task.cancelled() and task.exception() is None and task.result().engine.healthy
