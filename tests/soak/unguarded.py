"""A service without one of its guards: what the checker of histories must find then.

`python -m tests.soak.unguarded GUARD SERVICE` runs `synthd SERVICE` with the guard removed. Each guard answers to kinds
of faults; a storm of these kinds alone must break a promise without it, else the checker proves nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synth import service_secrets
from synth.blobs import store as blob_store
from synth.bus import publish
from synth.bus.history import fencing, ownership
from synth.bus.kv.replicas import ReplicaTable
from synth.bus.tasks.lease import Lease
from synth.errors import Transient
from synth.events.catalogue import Event
from synth.inference.engines.protocol import Delta
from synth.inference.engines.sampling_time import SamplingTime
from synth.runtime.process_end import run_and_end
from synth.synthd import main


@dataclass(frozen=True)
class Guard:
    """remove: takes it out of this process. faults: the kinds that it is there for; victims: of them, all when empty.

    at_least_s: how long each lasts. job_s: how long a job may take, as one that is lost takes for ever. jobs: the kinds
    that run meanwhile; all when empty.
    """

    remove: Callable[[], None]
    faults: tuple[str, ...]
    victims: tuple[str, ...] = ()
    at_least_s: float = 0.0
    job_s: float | None = None
    jobs: tuple[str, ...] = ()


def _fence() -> None:
    """An owner that was given up is not told, and the server lets it append."""

    async def fenced(self: publish.Publisher, event: Event, *, fence: publish.Fence, id: str, ttl: float | None = None):
        # A name of its own, too: the server would take the second owner's fact for a repetition of the first one's.
        own = f"{id}:{fence.seq}"
        return await self._append(event, fence.org, fence.job_id, own, publish._ttl(ttl), lost=publish.Fenced)

    async def never(bus: object, fence: object) -> None:
        await asyncio.Event().wait()

    publish.Publisher.fenced = fenced  # type: ignore[method-assign]
    fencing.lost = never  # type: ignore[assignment]
    ownership.lost = never  # type: ignore[assignment]


def _decision() -> None:
    """A fact of a job is appended though the job has moved on since it was decided."""

    async def lifecycle(self: publish.Publisher, event: Event, *, org: str, key: str, id: str, after: int) -> int:
        return await self._append(event, org, key, id, {}, lost=publish.Conflict)

    publish.Publisher.lifecycle = lifecycle  # type: ignore[method-assign]


def _identity() -> None:
    """An append that is tried again has another id each time."""
    send = publish.Publisher._send

    async def sends(self: publish.Publisher, subject: str, body: bytes, headers: dict[str, str], **options: Any) -> int:
        return await send(self, subject, body, _NewIds(headers), **options)

    publish.Publisher._send = sends  # type: ignore[method-assign]


class _NewIds(dict[str, str]):
    """Headers whose message id is another one each time that they are copied."""

    def keys(self):  # type: ignore[no-untyped-def]
        self[publish.MSG_ID] = uuid.uuid4().hex
        return super().keys()

    def __iter__(self):  # type: ignore[no-untyped-def]
        # A dict whose iteration is its own is copied by its keys, another one past them.
        return super().__iter__()


def _redelivery() -> None:
    """A task leaves the queue when it begins, so nobody is given it when its owner dies or is drained."""
    make = Lease.__init__
    acknowledging: set[asyncio.Future[Any]] = set()

    def begins(self: Lease, task: Any, msg: Any, **options: Any) -> None:
        make(self, task, msg, **options)
        acknowledging.add(asyncio.ensure_future(msg.ack()))

    async def nothing(self: Lease, *args: Any, **options: Any) -> None:
        return

    Lease.__init__ = begins  # type: ignore[method-assign]
    Lease.keep = Lease.done = Lease.give_back = nothing  # type: ignore[method-assign]


def _clocks() -> None:
    """The end of a rollout is taken from one machine's clock, and compared with another's; and a call whose end is
    over there is answered with nothing, as the policy's own."""

    def own(self: ReplicaTable, replica: object) -> float:
        return time.time()

    ReplicaTable.clock_of = own  # type: ignore[method-assign]
    if sys.argv[2] != "inference":
        return
    from synth.inference.engines.transformers import TransformersEngine

    generate = TransformersEngine.generate

    async def generates(self: TransformersEngine, *given: Any, time: SamplingTime, **options: Any):
        if time.seconds_left <= 0:
            yield Delta([], [], [], "length", out_of_time=True)
            return
        async for delta in generate(self, *given, time=time, **options):
            yield delta

    TransformersEngine.generate = generates  # type: ignore[method-assign]


def _whole_blobs() -> None:
    """A blob is named though it could not be written."""
    write, take = blob_store.write_bytes, blob_store.take_file

    def writes(root: Path, key: str, body: bytes) -> None:
        with contextlib.suppress(OSError, Transient):
            write(root, key, body)

    def takes(root: Path, key: str, path: Path, *, move: bool) -> None:
        with contextlib.suppress(OSError, Transient):
            take(root, key, path, move=move)

    blob_store.write_bytes = writes
    blob_store.take_file = takes


def _checked_files() -> None:
    """A file of a stored tree is used though it is not what was written."""

    async def checks(path: Path, ref: object, progress: object = None) -> None:
        return

    blob_store._check = checks  # type: ignore[assignment]


def _share() -> None:
    """An organisation may take all of the log."""
    if sys.argv[2] != "gateway":
        return
    from synth.gateway.commands import quotas

    def unlimited(gateway: object, org: str) -> None:
        return

    quotas._log_quota = unlimited  # type: ignore[assignment]


def _earlier_secret() -> None:
    """What was made with another secret of the cluster than the current one is refused."""
    os.environ.pop(service_secrets.CLUSTER_SECRET_EARLIER, None)


def _nothing() -> None:
    """The guard is in the job's file."""


EARLIER_SECRET = "earlier secret"
#: Name → what is removed. "retries": the jobs' own budget of retries, which the workload leaves out.
GUARDS: dict[str, Guard] = {
    "fence": Guard(_fence, ("freeze", "partition", "cut"), victims=("rollouts", "trainer"), at_least_s=12.0),
    # What is read, decided and appended in milliseconds takes most of a second: a cancellation comes in between.
    "decision": Guard(_decision, ("slow link",), victims=("gateway", "verifier"), at_least_s=30.0, jobs=("cancelled",)),
    # A task that is stuck on its way to one owner has another by the time that it arrives.
    "fence of the late": Guard(_fence, ("one-way partition",), victims=("rollouts", "trainer"), at_least_s=14.0),
    # What arrived is said again where the server that has it goes before it has acknowledged it.
    "identity at the bus": Guard(
        _identity, ("kill the leader of the log", "freeze the leader of the log", "cut a server of the bus off")
    ),
    "redelivery": Guard(_redelivery, ("kill", "drain"), victims=("rollouts", "trainer"), job_s=150.0),
    "clocks": Guard(_clocks, ("wrong clock",), victims=("inference",), at_least_s=15.0),
    "whole blobs": Guard(_whole_blobs, ("disk full",)),
    "checked files": Guard(_checked_files, ("damage a checkpoint",), jobs=("rl",)),
    "share of the log": Guard(_share, ("fill an organisation's share of the log",), at_least_s=15.0),
    # The cluster does not seal what is stored again either (`SoakCluster.rotate_secret`).
    EARLIER_SECRET: Guard(_earlier_secret, ("rotate the cluster's secret",)),
    "retries": Guard(_nothing, ("failing answers", "nonsense for an answer", "hanging answers")),
}


if __name__ == "__main__":
    GUARDS[sys.argv[1]].remove()
    run_and_end(lambda: main([sys.argv[2]]))
