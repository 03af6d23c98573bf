"""The vLLM hosts of this process, each shared by the policies that can run on it, and ended with the last of them.

A host holds one base model. Adapters over it share it, whatever job or model they are of, and so does the base itself;
a policy whose full weights are replaced has a host to itself.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from synth.inference.engines.limits import vllm_lora_rank
from synth.runtime import logs

log = logs.get("hosts")


class Host(Protocol):
    """What is asked here of a `synth.inference.engines.vllm.host.VllmHost`."""

    @property
    def healthy(self) -> bool: ...

    async def close(self) -> None: ...


H = TypeVar("H", bound=Host)
StartHost = Callable[[Path, int | None], Awaitable[H]]
"""Starts a host on a model folder: for adapters up to this rank, or, None, for full weights that are replaced."""


@dataclass(eq=False)
class HostLease(Generic[H]):
    """A place on a host, from `VllmPool.acquire` to `release`."""

    host: H
    _release: Callable[[], Awaitable[None]]
    _held: bool = True

    async def release(self) -> None:
        """Give the place back; the host ends with its last one. A second time does nothing."""
        if self._held:
            self._held = False
            await self._release()


@dataclass(eq=False)
class _PooledHost(Generic[H]):
    """number: of this process's hosts, from 1. rank: as in `StartHost`. leases: places that are taken or waited for."""

    number: int
    model_dir: Path
    rank: int | None
    starting: asyncio.Task[H]
    leases: int = 0

    @property
    def failed(self) -> bool:
        done = self.starting
        return done.done() and (done.cancelled() or done.exception() is not None or not done.result().healthy)


class VllmPool(Generic[H]):
    """Starts a host when it is needed, once however many need it at the same time.

    max_rank: what a host has room for although nobody asks for so much yet.
    """

    def __init__(self, start: StartHost[H], *, max_rank: int) -> None:
        self._start = start
        self._max_rank = max_rank
        self._hosts: list[_PooledHost[H]] = []
        self._numbers = itertools.count(1)

    def lease_counts(self) -> dict[tuple[str, int], int]:
        """How many policies are on each host or on their way, by the name of its base and its number."""
        return {(entry.model_dir.name, entry.number): entry.leases for entry in self._hosts}

    async def acquire(self, model_dir: Path, *, rank: int | None) -> HostLease[H]:
        """A place on a host of this base for an adapter of this rank (0: the base itself), or, None, a host alone.

        Raises `Permanent` for a rank beyond what vLLM has room for, and whatever starting a host raises.
        """
        room = None if rank is None else vllm_lora_rank(max(rank, self._max_rank))
        entry = next((e for e in self._hosts if self._can_share(e, model_dir, room)), None)
        if entry is None:
            log.info("starting vLLM, which takes half a minute", model=model_dir.name, max_rank=room)
            starting = asyncio.create_task(self._start_host(model_dir, room), name=f"vLLM on {model_dir.name}")
            entry = _PooledHost(next(self._numbers), model_dir, room, starting)
            self._hosts.append(entry)
        entry.leases += 1
        try:
            # Shielded: who gives up must not end what others wait for.
            host = await asyncio.shield(entry.starting)
        except BaseException:
            await self._release(entry)
            raise
        return HostLease(host, lambda: self._release(entry))

    def _can_share(self, entry: _PooledHost[H], model_dir: Path, room: int | None) -> bool:
        if entry.model_dir != model_dir or room is None or entry.rank is None:
            return False
        return entry.rank >= room and not entry.failed

    async def _start_host(self, model_dir: Path, rank: int | None) -> H:
        host = await self._start(model_dir, rank)
        log.info("vLLM is up", model=model_dir.name)
        return host

    async def _release(self, entry: _PooledHost[H]) -> None:
        entry.leases -= 1
        if entry.leases:
            return
        self._hosts.remove(entry)
        if not entry.starting.done():
            entry.starting.cancel()
            await asyncio.wait([entry.starting])
        if not entry.starting.cancelled() and entry.starting.exception() is None:
            await entry.starting.result().close()
            log.info("vLLM has ended: nothing runs on it any more", model=entry.model_dir.name)
