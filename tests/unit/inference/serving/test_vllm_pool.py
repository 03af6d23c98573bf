"""Which model_pool share a vLLM host, and when one ends."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from synth.errors import Permanent
from synth.inference.serving.vllm_pool import VllmPool

BASE, OTHER = Path("/models/base"), Path("/models/other")


@dataclass(eq=False)
class Process:
    """Stands for an engine process, which takes half a minute to start."""

    model_dir: Path
    rank: int | None
    healthy: bool = True
    closed: int = 0

    async def close(self) -> None:
        self.healthy = False
        self.closed += 1


@dataclass
class Machine:
    """Starts processes, held back while `gate` is closed; fails with `failure`."""

    started: list[Process] = field(default_factory=list[Process])
    asked: int = 0
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    failure: Exception | None = None

    async def start(self, model_dir: Path, rank: int | None) -> Process:
        self.asked += 1
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        self.started.append(Process(model_dir, rank))
        return self.started[-1]


@pytest.fixture
async def machine() -> Machine:
    made = Machine()
    made.gate.set()
    return made


@pytest.fixture
async def vllm_pool(machine: Machine) -> VllmPool[Process]:
    return VllmPool(machine.start, max_rank=64)


async def test_adapters_of_a_base_and_the_base_itself_share_a_host_which_ends_with_the_last(vllm_pool, machine) -> None:
    machine.gate.clear()
    waiting = [asyncio.create_task(vllm_pool.acquire(BASE, rank=rank)) for rank in (8, 16, 0)]
    await asyncio.sleep(0)
    machine.gate.set()
    leases = await asyncio.gather(*waiting)
    [process] = machine.started
    assert (process.model_dir, process.rank) == (BASE, 64)
    assert all(lease.host is process for lease in leases)
    assert vllm_pool.lease_counts() == {(BASE.name, 1): 3}
    for lease in leases[:2]:
        await lease.release()
        await lease.release()
    assert process.healthy
    await leases[2].release()
    assert process.closed == 1
    assert vllm_pool.lease_counts() == {}


async def test_replaced_weights_and_other_bases_have_hosts_of_their_own(vllm_pool, machine) -> None:
    for model_dir, rank in ((BASE, 8), (BASE, None), (BASE, None), (OTHER, 8)):
        await vllm_pool.acquire(model_dir, rank=rank)
    assert [(p.model_dir, p.rank) for p in machine.started] == [(BASE, 64), (BASE, None), (BASE, None), (OTHER, 64)]


async def test_a_larger_rank_gets_a_host_with_room_for_it_which_smaller_ones_may_share(vllm_pool, machine) -> None:
    large = await vllm_pool.acquire(BASE, rank=100)
    small = await vllm_pool.acquire(BASE, rank=8)
    assert small.host is large.host
    assert large.host.rank == 128
    with pytest.raises(Permanent, match="rank 513 cannot be served by vLLM; expected at most 512"):
        await vllm_pool.acquire(BASE, rank=513)


async def test_a_host_that_died_is_not_given_to_anybody_else(vllm_pool, machine) -> None:
    dead = await vllm_pool.acquire(BASE, rank=8)
    dead.host.healthy = False
    fresh = await vllm_pool.acquire(BASE, rank=8)
    assert fresh.host is not dead.host
    await dead.release()
    assert fresh.host.healthy


async def test_what_cannot_start_fails_for_all_who_wait_and_is_tried_anew_by_the_next(vllm_pool, machine) -> None:
    machine.gate.clear()
    machine.failure = Permanent("the self-test found a fault")
    waiting = [asyncio.create_task(vllm_pool.acquire(BASE, rank=8)) for _ in range(2)]
    await asyncio.sleep(0)
    machine.gate.set()
    assert [type(e) for e in await asyncio.gather(*waiting, return_exceptions=True)] == [Permanent, Permanent]
    assert vllm_pool.lease_counts() == {}
    machine.failure = None
    assert (await vllm_pool.acquire(BASE, rank=8)).host.healthy
    assert machine.asked == 2


async def test_who_gives_up_waiting_does_not_end_what_others_wait_for_and_the_last_one_does(vllm_pool, machine) -> None:
    machine.gate.clear()
    impatient, patient = (asyncio.create_task(vllm_pool.acquire(BASE, rank=8)) for _ in range(2))
    await asyncio.sleep(0)
    impatient.cancel()
    await asyncio.wait([impatient])
    assert list(vllm_pool.lease_counts().values()) == [1]
    patient.cancel()
    await asyncio.wait([patient])
    assert vllm_pool.lease_counts() == {}
    machine.gate.set()
    assert machine.started == []
