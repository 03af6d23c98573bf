"""What is done to the cluster: each fault has a victim, lasts for a while, and is taken back."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tests.soak.checkpoints import find_newest
from tests.soak.cluster import SoakCluster
from tests.soak.processes import ServiceProcess
from tests.soak.tcp_proxy import Link

#: Services whose files lie on the disk that is shared.
_WRITERS = ("gateway", "files", "rollouts", "trainer", "inference")
_SKEW_S = 90.0


@dataclass(frozen=True)
class Fault:
    """One thing that happens to one victim. seconds: until it is taken back."""

    kind: str
    victim: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.kind} {self.victim} for {self.seconds:.1f} s"


_Strike = Callable[[SoakCluster, Fault], AsyncGenerator[None]]
KINDS: dict[str, _Strike] = {}
#: How long each kind lasts, in seconds: from, to. Some are longer than the 10 s after which a task is given on.
_SECONDS: dict[str, tuple[float, float]] = {}
_VICTIMS: dict[str, tuple[str, ...]] = {}


def _kind(name: str, *, seconds: tuple[float, float], victims: tuple[str, ...]) -> Callable[[_Strike], _Strike]:
    def register(strike: _Strike) -> _Strike:
        KINDS[name], _SECONDS[name], _VICTIMS[name] = strike, seconds, victims
        return strike

    return register


_SERVICES = ("gateway", "validator", "verifier", "files", "rollouts", "inference", "judge", "trainer")
# Those that own work are struck more often than the others.
_OWNERS_OFTEN = (*_SERVICES, "rollouts", "inference", "trainer", "trainer")


@dataclass(frozen=True)
class Choice:
    """Which faults there may be. victims: services; all that a kind can strike when empty.

    at_least_s: how long each one lasts.
    """

    kinds: Sequence[str]
    victims: tuple[str, ...] = ()
    at_least_s: float = 0.0


def draw(rng: random.Random, choice: Choice, struck: Counter[str], busy: set[str]) -> Fault | None:
    """A fault at a victim that nothing is being done to; None if every drawn victim is busy.

    Kinds that struck least often are drawn first, so that a short storm has every kind. struck: how often each has.
    """
    for kind in sorted(rng.sample(choice.kinds, len(choice.kinds)), key=struck.__getitem__):
        victim = rng.choice(choice.victims or _VICTIMS[kind])
        if victim in _SERVICES:
            victim = f"{victim}-{rng.randrange(2)}"
        # Two of the three servers must stand, so the bus is one victim: without a majority it promises nothing.
        if victim not in busy:
            least, most = _SECONDS[kind]
            least = max(least, choice.at_least_s)
            return Fault(kind, victim, rng.uniform(least, max(most, least + 1)))
    return None


@asynccontextmanager
async def striking(cluster: SoakCluster, fault: Fault) -> AsyncGenerator[None]:
    """The fault is there meanwhile."""
    steps = KINDS[fault.kind](cluster, fault)
    await anext(steps)
    try:
        yield
    finally:
        async for _ in steps:
            raise AssertionError(f"{fault.kind} has more than two steps")


def _process(cluster: SoakCluster, fault: Fault) -> ServiceProcess:
    return next(process for process in cluster.services if process.name == fault.victim)


@_kind("kill", seconds=(0.5, 2), victims=_OWNERS_OFTEN)
async def _kill(cluster: SoakCluster, fault: Fault) -> AsyncGenerator[None]:
    _process(cluster, fault).strike(signal.SIGKILL)
    yield


@_kind("drain", seconds=(1, 8), victims=_OWNERS_OFTEN)
async def _drain(cluster: SoakCluster, fault: Fault) -> AsyncGenerator[None]:
    _process(cluster, fault).strike(signal.SIGTERM)
    yield


@_kind("freeze", seconds=(2, 16), victims=_OWNERS_OFTEN)
async def _freeze(cluster: SoakCluster, fault: Fault) -> AsyncGenerator[None]:
    process = _process(cluster, fault)
    process.strike(signal.SIGSTOP)
    yield
    process.strike(signal.SIGCONT)


def _bus_link(link: Link) -> _Strike:
    async def strike(cluster: SoakCluster, fault: Fault) -> AsyncGenerator[None]:
        process = _process(cluster, fault)
        process.cut_off(link)
        yield
        process.cut_off(Link.OPEN)

    return strike


_kind("partition", seconds=(2, 16), victims=_OWNERS_OFTEN)(_bus_link(Link.FROZEN))
_kind("one-way partition", seconds=(2, 16), victims=_OWNERS_OFTEN)(_bus_link(Link.ONE_WAY))
_kind("cut", seconds=(0.5, 12), victims=_OWNERS_OFTEN)(_bus_link(Link.CUT))
_kind("slow link", seconds=(5, 15), victims=_OWNERS_OFTEN)(_bus_link(Link.SLOW))


@_kind("wrong clock", seconds=(5, 20), victims=_OWNERS_OFTEN)
async def _skew(cluster: SoakCluster, fault: Fault) -> AsyncGenerator[None]:
    control = _process(cluster, fault).control
    control.skew_s = _SKEW_S if round(fault.seconds * 10) % 2 else -_SKEW_S
    control.write()
    yield
    control.skew_s = 0.0
    control.write()


@_kind("disk full", seconds=(3, 12), victims=_WRITERS)
async def _disk_full(cluster: SoakCluster, fault: Fault) -> AsyncGenerator[None]:
    control = _process(cluster, fault).control
    control.disk_full = True
    control.write()
    yield
    control.disk_full = False
    control.write()


@_kind("damage a checkpoint", seconds=(20, 30), victims=("checkpoint",))
async def _damage_checkpoint(cluster: SoakCluster, fault: Fault) -> AsyncGenerator[None]:
    """Damage the newest checkpoint of a job, and have its next attempt read it."""
    newest = await find_newest(cluster)
    if newest is not None:
        newest.flip()
        trainer = next(process for process in cluster.services if process.name == newest.worker)
        trainer.strike(signal.SIGKILL)
    yield
    if newest is not None:
        newest.flip()


@_kind("fill an organisation's share of the log", seconds=(8, 15), victims=("greedy",))
async def _fill_share(cluster: SoakCluster, fault: Fault) -> AsyncGenerator[None]:
    ports = [gateway.port for gateway in cluster.of("gateway")]
    submitting = asyncio.create_task(cluster.greedy.submit_for_ever(ports))
    yield
    submitting.cancel()
    await asyncio.gather(submitting, return_exceptions=True)


@_kind("rotate the cluster's secret", seconds=(1, 2), victims=("secret",))
async def _rotate(cluster: SoakCluster, fault: Fault) -> AsyncGenerator[None]:
    await cluster.rotate_secret()
    yield


@_kind("kill the leader of the log", seconds=(0.5, 5), victims=("bus",))
async def _kill_leader(cluster: SoakCluster, fault: Fault) -> AsyncGenerator[None]:
    server = await cluster.bus_servers.leader("EVENTS")
    server.kill()
    yield
    server.start()
    # A second server may only go when this one has caught up.
    await server.wait_healthy()


@_kind("freeze the leader of the log", seconds=(1, 10), victims=("bus",))
async def _freeze_leader(cluster: SoakCluster, fault: Fault) -> AsyncGenerator[None]:
    server = await cluster.bus_servers.leader("EVENTS")
    server.freeze(True)
    yield
    server.freeze(False)
    # A second server may only go when this one has caught up.
    await server.wait_healthy()


@_kind("cut a server of the bus off", seconds=(2, 12), victims=("bus",))
async def _partition_leader(cluster: SoakCluster, fault: Fault) -> AsyncGenerator[None]:
    server = await cluster.bus_servers.leader("EVENTS")
    cluster.bus_servers.partition(server, Link.FROZEN)
    yield
    cluster.bus_servers.partition(server, Link.OPEN)
    # A second server may only go when this one has caught up.
    await server.wait_healthy()


def _outside_link(link: Link) -> _Strike:
    async def strike(cluster: SoakCluster, fault: Fault) -> AsyncGenerator[None]:
        outside = cluster.task_app if fault.victim == "task app" else cluster.judge
        outside.link = link
        yield
        outside.link = Link.OPEN

    return strike


_OUTSIDE = ("task app", "judge model")
_kind("failing answers", seconds=(0.5, 3), victims=_OUTSIDE)(_outside_link(Link.FAILING))
_kind("nonsense for an answer", seconds=(0.5, 3), victims=_OUTSIDE)(_outside_link(Link.NONSENSE))
_kind("hanging answers", seconds=(1, 8), victims=_OUTSIDE)(_outside_link(Link.FROZEN))
