"""Jobs as the other services tell them: what a gateway test has to look at."""

from __future__ import annotations

from typing import Any

from synth.bus.connection import Connection
from synth.bus.history.job_log import append_as_owner, append_decided, start_attempt
from synth.bus.publish import Fence, Publisher
from synth.events import (
    BlobRef,
    JobSucceeded,
    JobValidated,
    JobVerified,
    ModelRef,
    RolloutCompleted,
    TrainStep,
)
from synth.events.catalogue import Event
from tests.service.jobs import unclaimed

RESOLVED = {"kind": "rl", "model": "tiny", "tags": {"team": "a"}}


async def append(bus: Connection, org: str, job: str, event: Event) -> None:
    await append_decided(bus, org, job, lambda _: event)


async def verify(bus_as, org: str, job: str, *, kind: str = "rl", **settings: Any) -> None:
    """From created to verified. settings: of the resolved job."""
    resolved = RESOLVED | {"kind": kind} | settings
    validated = JobValidated(job=resolved, origins={"model": "file"}, warnings=["top_p is off"])
    await append(await bus_as("validator"), org, job, validated)
    await append(await bus_as("verifier"), org, job, JobVerified(source=ModelRef(id="tiny", path="tiny")))


async def begin(
    bus_as, org: str, job: str, *, kind: str = "rl", devices: int = 0, **settings: Any
) -> tuple[Connection, Fence]:
    """From created to started, by a trainer with so many devices. settings: of the resolved job."""
    await verify(bus_as, org, job, kind=kind, **settings)
    trainer = await bus_as("trainer")
    _, fence = await start_attempt(trainer, org, job, worker="w", devices=lambda _: devices)
    assert fence is not None
    return trainer, fence


async def step(bus: Connection, fence: Fence, k: int, *, of: int = 100, **values: float) -> int:
    event = TrainStep(step=k, of=of, attempt=fence.attempt, values=values or {"loss": 1 / k})
    return await Publisher(bus).fenced(event, fence=fence, id=str(k))


async def succeed(bus: Connection, fence: Fence, *, steps: int) -> int | None:
    event = JobSucceeded(steps=steps, model=f"rl:tiny:{fence.job_id}")
    _, seq = await append_as_owner(bus, fence, lambda _: event)
    return seq


async def rollout(bus_as, org: str, job: str, index: int) -> None:
    """One rollout of the first iteration is done."""
    done = RolloutCompleted(
        rollout_id=f"{job}_t1_{index}",
        iteration=1,
        mode="train",
        index=index,
        group=0,
        seed=index,
        reward=1.0,
        trajectory=BlobRef(uri="blob://t", size=1, sha256="0"),
        completion_tokens=3,
        calls=1,
        versions=(0, 0),
        seconds=0.1,
        tries=1,
    )
    await Publisher(await bus_as("rollouts")).fenced(done, fence=unclaimed(org, job), id=str(index))
