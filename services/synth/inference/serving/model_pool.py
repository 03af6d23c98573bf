"""The models that this process holds: a training policy until its job releases it, a served model while it is used.

A training policy is never evicted for a served model; an idle served model is evicted for either. A pinned version of
an evaluation is held beside its training policy and is not counted in `max_models`. If it were, an evaluation could
wait for a place until another job ended, and its own job would fail. A model is loaded once, however many requests need
it at the same time. A model that is not trained is unloaded when no request has used it for a while. No organisation
holds every place: the last free ones are for organisations that hold none.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

from synth.errors import Transient
from synth.events import Canary, LoraShape
from synth.inference.chat.prompts import ChatFormat
from synth.inference.engines.protocol import Engine, EngineStats


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model on this machine's disk. adapter: a peft directory over it, or None.

    weights: a policy weights file of this version to load over it; None for the model as it is on disk.
    weights_are_copy: the weights file is a copy for this load only, to be deleted after it. canary: proves the weights.
    lora: the shape of the adapter, present or yet to be trained; None: full weights.
    expects_new_weights: newer weights will come.
    """

    model_dir: Path
    adapter: Path | None = None
    weights: Path | None = None
    version: int = 0
    weights_are_copy: bool = False
    canary: Canary | None = None
    lora: LoraShape | None = None
    expects_new_weights: bool = False

    @property
    def swaps_full_weights(self) -> bool:
        """Whether the weights of the model itself are replaced, so that no other policy can share them."""
        return self.lora is None and (self.expects_new_weights or self.weights is not None)


async def _no_op() -> None:
    """Do nothing: the engine has no host to release."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """An engine and the chat format of its model.

    half_precision: whether it computes in 16 bits. release_host: called after the engine was closed.
    """

    engine: Engine
    chat: ChatFormat
    half_precision: bool = False
    release_host: Callable[[], Awaitable[None]] = _no_op

    async def close(self) -> None:
        """Close the engine, and release its host."""
        try:
            await self.engine.close()
        finally:
            await self.release_host()


FindFiles = Callable[[str], Awaitable[ModelFiles]]
"""Resolves a model id to files on this machine; raises `UserError` for an unknown one."""

EngineFactory = Callable[[ModelFiles], Awaitable[ServedModel]]
"""Loads files as the policy version that they hold."""


@dataclass(eq=False, slots=True)
class _PooledModel:
    """A model of the pool, loading or loaded. last_used: by the clock. leases: each organisation's requests on it.

    trained_by: the organisation whose policy it is, None for a served model.
    pinned_from: the training policy of which this is a pinned version; it is unloaded together with that policy.
    """

    loading: asyncio.Task[ServedModel]
    trained_by: str | None
    pinned_from: str | None = None
    last_used: float = 0.0
    leases: Counter[str] = field(default_factory=Counter[str])

    @property
    def training(self) -> bool:
        return self.trained_by is not None

    @property
    def evictable(self) -> bool:
        return not self.training and not self.leases.total() and self.loading.done()

    def is_held_by(self, org: str) -> bool:
        return self.trained_by == org or self.leases[org] > 0


@dataclass(eq=False)
class ModelPool:
    """The loaded models of one inference process, at most `max_models`.

    spare: how many of these places are for organisations that hold none. load_timeout: seconds that a model may take to
    load. clock: returns seconds from any starting point.
    """

    find_files: FindFiles
    engine_factory: EngineFactory
    _: KW_ONLY
    max_models: int
    spare: int = 0
    load_timeout: float
    clock: Callable[[], float] = time.monotonic
    _models: dict[str, _PooledModel] = field(default_factory=dict[str, _PooledModel])
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def names(self) -> list[str]:
        """Return the names of the loaded models, training policies included."""
        return [name for name, model in self._models.items() if _is_ready(model)]

    def stats(self) -> dict[str, EngineStats]:
        """Return the stats of every loaded engine, by the name of its model."""
        return {name: model.loading.result().engine.stats() for name, model in self._models.items() if _is_ready(model)}

    def training(self, name: str) -> ServedModel | None:
        """Return a training policy, if it is loaded."""
        model = self._models.get(name)
        return model.loading.result() if model is not None and model.training and _is_ready(model) else None

    async def hold(self, name: str, files: ModelFiles, *, org: str) -> ServedModel:
        """Load a training policy, and keep it until `release`. Raises `Transient` if there is no place for `org`."""
        async with self._lock:
            model = await self._get_alive(name)
            if model is None:
                model = await self._start_loading(name, lambda: self.engine_factory(files), org, training=True)
        return await self._loaded(name, model)

    async def release(self, name: str) -> None:
        """Unload a training policy and its pinned versions: its job is over. Does nothing if it is not held."""
        model = self._models.get(name)
        if model is not None and model.training:
            await self._unload(name, model)
        for pinned, version in list(self._models.items()):
            if version.pinned_from == name:
                await self._unload(pinned, version)

    async def try_unload(self, name: str) -> bool:
        """Unload a served model, so that its files are looked up again at its next use; False while it is in use."""
        model = self._models.get(name)
        if model is not None and model.evictable:
            await self._unload(name, model)
        return name not in self._models

    @asynccontextmanager
    async def lease(self, name: str, *, org: str, pinned_from: str | None = None) -> AsyncIterator[ServedModel]:
        """Lease a served model for one request; it is loaded first if necessary, and not evicted during the lease.

        org: the organisation of the request. pinned_from: the training policy of which this is a pinned version.
        Raises `UserError` for an unknown model, `Transient` if there is no place for `org` or loading takes too long.
        """
        model = await self._get_alive(name)
        if model is None:
            async with self._lock:
                model = self._models.get(name)  # another request may have begun to load it
                if model is None:
                    model = await self._start_loading(
                        name, lambda: self._find_and_load(name), org, training=False, pinned_from=pinned_from
                    )
        model.leases[org] += 1
        model.last_used = self.clock()
        try:
            yield await self._loaded(name, model)
        finally:
            model.leases[org] -= 1
            model.last_used = self.clock()

    async def unload_idle(self, seconds: float) -> list[str]:
        """Unload the models that are not trained and that no request used for so many seconds; returns their names."""
        since = self.clock() - seconds
        idle = [(name, model) for name, model in self._models.items() if model.evictable and model.last_used <= since]
        for name, model in idle:
            # Closing the previous model took a while: a request may use this one by now.
            if model.evictable:
                await self._unload(name, model)
        return [name for name, _ in idle]

    async def close(self) -> None:
        """Stop every engine."""
        await asyncio.gather(*(self._unload(name, model) for name, model in list(self._models.items())))

    async def _find_and_load(self, name: str) -> ServedModel:
        return await self.engine_factory(await self.find_files(name))

    async def _start_loading(
        self,
        name: str,
        load: Callable[[], Awaitable[ServedModel]],
        org: str,
        *,
        training: bool,
        pinned_from: str | None = None,
    ) -> _PooledModel:
        rivals = {n: p for n, p in self._models.items() if p.pinned_from == pinned_from}
        if pinned_from is None:
            self._require_share(name, org, list(rivals.values()))
        # A training policy has room for one pinned version beside it; an idle earlier version is unloaded.
        if len(rivals) >= (self.max_models if pinned_from is None else 1):
            idle = [(p.last_used, n) for n, p in rivals.items() if p.evictable]
            if not idle:
                places = f"all {self.max_models} places for a model (SYNTH_MAX_MODELS) are"
                taken = places if pinned_from is None else "another version is"
                raise Transient(f"{taken} in use; {name!r} has to wait", delay=5)
            _, oldest = min(idle)
            await self._unload(oldest, self._models[oldest])

        async def bounded() -> ServedModel:
            seconds = asyncio.timeout(self.load_timeout)
            try:
                async with seconds:
                    return await load()
            except TimeoutError as error:
                late = f"{name!r} did not load in {self.load_timeout:g} s (SYNTH_LOAD_TIMEOUT_S)"
                # A hub or a store may have timed out by itself.
                why = late if seconds.expired() else f"{name!r} cannot be loaded now: {error!r}"
                raise Transient(why, delay=30) from error

        model = _PooledModel(
            asyncio.create_task(bounded(), name=f"load {name}"), org if training else None, pinned_from
        )
        self._models[name] = model
        return model

    def _require_share(self, name: str, org: str, placed: list[_PooledModel]) -> None:
        """Raise `Transient` if only spare places are free and the organisation holds a place."""
        free = self.max_models - sum(not model.evictable for model in placed)
        if 0 < free <= self.spare and any(model.is_held_by(org) for model in placed):
            raise Transient(
                f"{name!r} has to wait: the last of {self.max_models} places for a model (SYNTH_MAX_MODELS) is for an "
                "organisation that holds none",
                delay=5,
            )

    async def _loaded(self, name: str, model: _PooledModel) -> ServedModel:
        """Wait until a model is loaded; remove it from the pool if it cannot be loaded."""
        try:
            # Shielded, because a client that hangs up must not cancel the load that others wait for.
            loaded = await asyncio.shield(model.loading)
        except asyncio.CancelledError:
            raise
        except BaseException:
            self._remove(name, model)
            raise
        if not loaded.engine.healthy:
            raise Transient(f"the engine of {name!r} has stopped", delay=5)
        return loaded

    async def _get_alive(self, name: str) -> _PooledModel | None:
        """Return a model of the pool, or None; if its engine has died, it is unloaded, so that it is loaded again."""
        model = self._models.get(name)
        if model is not None and model.loading.done() and not _is_ready(model):
            await self._unload(name, model)
            return None
        return model

    def _remove(self, name: str, model: _PooledModel) -> None:
        if self._models.get(name) is model:
            del self._models[name]

    async def _unload(self, name: str, model: _PooledModel) -> None:
        self._remove(name, model)
        if not model.loading.done():
            model.loading.cancel()
            await asyncio.wait([model.loading])
        if not model.loading.cancelled() and model.loading.exception() is None:
            await model.loading.result().close()


def _is_ready(model: _PooledModel) -> bool:
    task = model.loading
    return task.done() and not task.cancelled() and task.exception() is None and task.result().engine.healthy
