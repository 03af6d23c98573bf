"""The vLLM hosts of this process: policies share a host where they can, and a host is closed with its last policy.

A host holds one base model. The base itself and all adapters over it, of any job or model, share a host; a policy whose
full weights are replaced has a host of its own.
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

log = logs.get("vllm_pool")


class Host(Protocol):
    """The part of a `synth.inference.engines.vllm.host.VllmHost` that the pool uses."""

    @property
    def healthy(self) -> bool: ...

    async def close(self) -> None: ...


H = TypeVar("H", bound=Host)
StartHost = Callable[[Path, int | None], Awaitable[H]]
"""Starts a host on a model folder, for adapters up to this rank; None: for full weights that are replaced."""


@dataclass(eq=False)
class HostLease(Generic[H]):
    """The right of one policy to run on a host, from `VllmPool.acquire` to `release`."""

    host: H
    _release: Callable[[], Awaitable[None]]
    _held: bool = True

    async def release(self) -> None:
        """Leave the host, which is closed with its last lease. A second call does nothing."""
        if self._held:
            self._held = False
            await self._release()


@dataclass(eq=False)
class _PooledHost(Generic[H]):
    """A host of the pool. number: counts this process's hosts from 1. rank: as in `StartHost`.

    leases: how many policies run on it or wait for it.
    """

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
    """The vLLM hosts of a process: a host starts when it is needed, and only once for concurrent requests.

    max_rank: every host for adapters has room for at least this rank.
    """

    def __init__(self, start: StartHost[H], *, max_rank: int) -> None:
        self._start = start
        self._max_rank = max_rank
        self._hosts: list[_PooledHost[H]] = []
        self._numbers = itertools.count(1)

    def lease_counts(self) -> dict[tuple[str, int], int]:
        """Return how many policies run on each host or wait for it, by the name of its base and its number."""
        return {(entry.model_dir.name, entry.number): entry.leases for entry in self._hosts}

    async def acquire(self, model_dir: Path, *, rank: int | None) -> HostLease[H]:
        """Lease a host of this base, for an adapter of this rank (0: the base itself); None: a host of its own.

        Raises `Permanent` for a rank that vLLM does not support, and the errors of starting a host.
        """
        max_lora_rank = None if rank is None else vllm_lora_rank(max(rank, self._max_rank))
        entry = next((e for e in self._hosts if self._can_share(e, model_dir, max_lora_rank)), None)
        if entry is None:
            log.info("starting vLLM, which takes half a minute", model=model_dir.name, max_rank=max_lora_rank)
            starting = asyncio.create_task(self._start_host(model_dir, max_lora_rank), name=f"vLLM on {model_dir.name}")
            entry = _PooledHost(next(self._numbers), model_dir, max_lora_rank, starting)
            self._hosts.append(entry)
        entry.leases += 1
        try:
            # Shielded, because a caller that gives up must not cancel the start that others wait for.
            host = await asyncio.shield(entry.starting)
        except BaseException:
            await self._release(entry)
            raise
        return HostLease(host, lambda: self._release(entry))

    def _can_share(self, entry: _PooledHost[H], model_dir: Path, max_lora_rank: int | None) -> bool:
        if entry.model_dir != model_dir or max_lora_rank is None or entry.rank is None:
            return False
        return entry.rank >= max_lora_rank and not entry.failed

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
