"""What a collector has in the log, and how it adds to it: durable rollouts first, then the batch that they make."""

from __future__ import annotations

import hashlib

from synth.blobs import BlobStore
from synth.bus.connection import Connection
from synth.bus.publish import Publisher
from synth.bus.recorded import Recorded
from synth.bus.replay import replay
from synth.errors import Conflict, Problem
from synth.events import (
    BlobRef,
    EvalCompleted,
    RolloutBatched,
    RolloutBlocked,
    RolloutCompleted,
    RolloutFailed,
    RolloutRequested,
)
from synth.rollouts.collection.batching import Collected
from synth.rollouts.collection.types import Before, GivenUp, Kept, Request, Spot
from synth.trajectories import RecordedTrajectory, RolloutBatch


class RolloutLog:
    """The rollout events of one job, read once and appended to by its one collector."""

    def __init__(self, bus: Connection, blobs: BlobStore, org: str, job_id: str, *, term: int) -> None:
        """term: of the job, for what is said once in each."""
        self._bus = bus
        self._blobs = blobs
        self._publisher = Publisher(bus)
        self._org = org
        self._job_id = job_id
        self._term = term
        self._completed: dict[tuple[str, int], dict[int, RolloutCompleted]] = {}
        self._given_up: dict[tuple[str, int], dict[int, GivenUp]] = {}
        self._finished: set[tuple[str, int]] = set()
        self._evaluations: dict[int, EvalCompleted] = {}
        self._last_batch = 0

    async def read(self) -> None:
        """Read what collectors before us announced."""
        facts = ("rollout.completed", "rollout.failed", "rollout.batch", "eval.completed")
        for event in await replay(self._bus.nc, [f"{fact}.{self._org}.{self._job_id}" for fact in facts]):
            self._apply(event)

    def _apply(self, recorded: Recorded) -> None:
        match recorded.event:
            case RolloutCompleted() as event:
                self._completed.setdefault((event.mode, event.iteration), {})[event.index] = event
            case RolloutFailed() as event:
                given_up = GivenUp(event.problem, event.tries, late=event.late)
                self._given_up.setdefault((event.mode, event.iteration), {})[event.index] = given_up
            case RolloutBatched(iteration=iteration):
                self._finished.add(("train", iteration))
                self._last_batch = recorded.seq
            case EvalCompleted() as event:
                self._finished.add(("eval", event.iteration))
                self._evaluations[event.iteration] = event

    def finished(self, request: Request) -> bool:
        """Whether this request's batch or evaluation is in the log."""
        return (request.mode, request.iteration) in self._finished

    @property
    def batches(self) -> int:
        """The last iteration whose batch is in the log: they are announced in order."""
        return max((iteration for mode, iteration in self._finished if mode == "train"), default=0)

    def evaluation(self, iteration: int) -> EvalCompleted | None:
        """An evaluation that is in the log."""
        return self._evaluations.get(iteration)

    async def before(self, request: Request) -> Before:
        """What a collector before us completed of a request, with the trajectories, and what it gave up."""
        key = (request.mode, request.iteration)
        done: dict[int, Collected] = {}
        for index, event in self._completed.get(key, {}).items():
            trajectory = RecordedTrajectory.from_bytes(await self._blobs.get_bytes(event.trajectory))
            done[index] = Collected(
                rollout_id=event.rollout_id,
                group=event.group,
                seed=event.seed,
                reward=event.reward,
                branches=trajectory.branches,
                seconds=event.seconds,
                tries=event.tries,
            )
        # Two collectors, one of which did not know yet that it was replaced, may disagree: what is done is done.
        return Before(done, {i: g for i, g in self._given_up.get(key, {}).items() if i not in done})

    async def keep(self, request: Request, kept: Kept) -> None:
        """Make one rollout durable: its trajectory, then the event that names it."""
        c = kept.collected
        trajectory = RecordedTrajectory(branches=c.branches, reward=c.reward, info=kept.verdict.info)
        key = f"jobs/{self._job_id}/rollouts/{request.mode}-{request.iteration}/{kept.spot.index}"
        blob = await self._put(key, trajectory.to_bytes())
        versions = [int(v) for b in c.branches for v in b.versions[b.loss_mask]]
        event = RolloutCompleted(
            rollout_id=c.rollout_id,
            iteration=request.iteration,
            mode=request.mode,
            index=kept.spot.index,
            group=c.group,
            seed=c.seed,
            reward=c.reward,
            trajectory=blob,
            completion_tokens=sum(int(b.loss_mask.sum()) for b in c.branches),
            calls=kept.calls,
            versions=(min(versions, default=-1), max(versions, default=-1)),
            seconds=round(c.seconds, 4),
            tries=c.tries,
            outcome=kept.verdict.outcome,
        )
        await self._publisher.once(event, org=self._org, key=self._job_id, id=c.rollout_id)

    async def give_up(self, request: Request, spot: Spot, given_up: GivenUp) -> None:
        """Say that a rollout failed through its whole budget, or was cut off at its group's deadline."""
        event = RolloutFailed(
            rollout_id=spot.rollout_id,
            iteration=request.iteration,
            mode=request.mode,
            index=spot.index,
            group=spot.group,
            seed=spot.seed,
            problem=given_up.problem,
            tries=given_up.tries,
            late=given_up.late,
        )
        await self._publisher.once(event, org=self._org, key=self._job_id, id=spot.rollout_id)

    async def batch(self, batch: RolloutBatch, values: dict[str, float]) -> None:
        """Publish an iteration's batch, the next one of the chain. Another collector's batch is as good as ours."""
        k = batch.meta.iteration
        blob = await self._put(f"jobs/{self._job_id}/batches/{k}", batch.to_bytes())
        event = RolloutBatched(
            iteration=k,
            batch=blob,
            sequences=batch.sequences,
            groups_kept=batch.meta.groups_kept,
            groups_dropped=batch.meta.groups_dropped,
            values=values,
        )
        try:
            self._last_batch = await self._publisher.chained(
                event, org=self._org, key=self._job_id, id=str(k), after=self._last_batch
            )
        except Conflict:
            await self.read()
            if ("train", k) not in self._finished:
                raise
        self._finished.add(("train", k))

    async def _put(self, key: str, body: bytes) -> BlobRef:
        # The content is in the name: a collector that was replaced and does not know it yet, or one that plays a
        # rollout again, can never put other bytes where an event says that these are.
        return await self._blobs.put_bytes(f"{key}-{hashlib.sha256(body).hexdigest()[:16]}.safetensors", body)

    async def evaluated(self, event: EvalCompleted) -> None:
        """Publish an evaluation."""
        await self._publisher.once(event, org=self._org, key=self._job_id, id=f"eval:{event.iteration}")
        self._finished.add(("eval", event.iteration))

    async def blocked(self, iteration: int, problem: Problem) -> None:
        """Say that the job's environment is broken; its owner ends the job."""
        event = RolloutBlocked(iteration=iteration, problem=problem)
        await self._publisher.once(event, org=self._org, key=self._job_id, id=f"blocked:{self._term}:{iteration}")


def as_request(event: RolloutRequested) -> Request:
    """The request that an event carries."""
    return Request(
        iteration=event.iteration,
        mode=event.mode,
        seeds=event.seeds,
        group_size=event.group_size,
        oldest_version=event.oldest_version,
        pinned_version=event.pinned_version,
        refill_seeds=event.refill_seeds,
    )
