"""The rollout events of one job: read from its log, and appended to it, each rollout before the batch it is in."""

from __future__ import annotations

import asyncio
import hashlib
from itertools import groupby

import msgspec

from synth.blobs import BlobStore
from synth.bus.connection import Connection
from synth.bus.publish import Publisher
from synth.bus.recorded import Recorded
from synth.bus.replay import replay
from synth.errors import Conflict, Problem
from synth.events import (
    BlobRef,
    EvalCompleted,
    FailedTries,
    RolloutBatched,
    RolloutBlocked,
    RolloutCompleted,
    RolloutFailed,
    RolloutRequested,
)
from synth.events.catalogue import MAX_EVENT_BODY_BYTES
from synth.rollouts.collection.batching import ScoredRollout
from synth.rollouts.collection.types import (
    AbandonedRollout,
    CollectRequest,
    CompletedRollout,
    PriorProgress,
    RolloutSpec,
)
from synth.trajectories import RecordedTrajectory, RolloutBatch


class RolloutLog:
    """The rollout events of one job, read once and appended to by its one collector."""

    def __init__(self, bus: Connection, blobs: BlobStore, org: str, job_id: str, *, term: int) -> None:
        """term: the job's, for the event that is published once in each (`rollout.blocked`)."""
        self._bus = bus
        self._blobs = blobs
        self._publisher = Publisher(bus)
        self._org = org
        self._job_id = job_id
        self._term = term
        self._completed: dict[tuple[str, int], dict[int, RolloutCompleted]] = {}
        self._abandoned: dict[tuple[str, int], dict[int, AbandonedRollout]] = {}
        self._finished: set[tuple[str, int]] = set()
        self._evaluations: dict[int, EvalCompleted] = {}
        self._last_batch_seq = 0

    async def read(self) -> None:
        """Read what earlier collectors announced."""
        facts = ("rollout.completed", "rollout.failed", "rollout.batch", "eval.completed")
        for event in await replay(self._bus.nc, [f"{fact}.{self._org}.{self._job_id}" for fact in facts]):
            self._apply(event)

    def _apply(self, recorded: Recorded) -> None:
        match recorded.event:
            case RolloutCompleted() as event:
                self._completed.setdefault((event.mode, event.iteration), {})[event.index] = event
            case RolloutFailed() as event:
                abandoned = AbandonedRollout(event.problem, event.tries, late=event.late)
                self._abandoned.setdefault((event.mode, event.iteration), {})[event.index] = abandoned
            case RolloutBatched(iteration=iteration):
                self._finished.add(("train", iteration))
                self._last_batch_seq = recorded.seq
            case EvalCompleted() as event:
                self._finished.add(("eval", event.iteration))
                self._evaluations[event.iteration] = event

    def finished(self, request: CollectRequest) -> bool:
        """Whether this request's batch or evaluation is in the log."""
        return (request.mode, request.iteration) in self._finished

    @property
    def last_batched_iteration(self) -> int:
        """The last iteration whose batch is in the log; batches are announced in order. 0 before the first."""
        return max((iteration for mode, iteration in self._finished if mode == "train"), default=0)

    def evaluation(self, iteration: int) -> EvalCompleted | None:
        """The evaluation of an iteration, if it is in the log."""
        return self._evaluations.get(iteration)

    async def prior_progress(self, request: CollectRequest) -> PriorProgress:
        """What earlier collectors completed of a request, with the trajectories, and what they abandoned."""
        key = (request.mode, request.iteration)
        done: dict[int, ScoredRollout] = {}
        for index, event in self._completed.get(key, {}).items():
            trajectory = RecordedTrajectory.from_bytes(await self._blobs.get_bytes(event.trajectory))
            done[index] = ScoredRollout(
                rollout_id=event.rollout_id,
                group=event.group,
                seed=event.seed,
                reward=event.reward,
                branches=trajectory.branches,
                seconds=event.seconds,
                tries=event.tries,
            )
        # A collector that did not know yet that it was replaced may have abandoned what another one completed.
        return PriorProgress(done, {i: g for i, g in self._abandoned.get(key, {}).items() if i not in done})

    async def complete(self, request: CollectRequest, completed: CompletedRollout) -> None:
        """Make one rollout durable: its trajectory, then the event that names it."""
        c = completed.rollout
        trajectory = RecordedTrajectory(branches=c.branches, reward=c.reward, info=completed.score.info)
        key = self._rollout_key(request, completed.spec)
        # Both before the event: what it names is there.
        blob, transcript = await asyncio.gather(
            self._put_blob(key, trajectory.to_bytes()), self._put_transcript(key, completed.transcript)
        )
        versions = [int(v) for b in c.branches for v in b.versions[b.loss_mask]]
        event = RolloutCompleted(
            rollout_id=c.rollout_id,
            iteration=request.iteration,
            mode=request.mode,
            index=completed.spec.index,
            group=c.group,
            seed=c.seed,
            reward=c.reward,
            trajectory=blob,
            completion_tokens=sum(int(b.loss_mask.sum()) for b in c.branches),
            calls=completed.calls,
            versions=(min(versions, default=-1), max(versions, default=-1)),
            seconds=round(c.seconds, 4),
            tries=c.tries,
            outcome=completed.score.outcome,
            failed_tries=_failed_tries(completed.failures),
            transcript=transcript,
            traced=request.mode == "eval",
        )
        await self._publisher.once(event, org=self._org, key=self._job_id, id=c.rollout_id)

    async def abandon(self, request: CollectRequest, spec: RolloutSpec, abandoned: AbandonedRollout) -> None:
        """Announce that a rollout failed in each of its tries, or was cut off at the deadline of its group."""
        transcript = await self._put_transcript(self._rollout_key(request, spec), abandoned.transcript)
        event = RolloutFailed(
            rollout_id=spec.rollout_id,
            iteration=request.iteration,
            mode=request.mode,
            index=spec.index,
            group=spec.group,
            seed=spec.seed,
            problem=abandoned.problem,
            tries=abandoned.tries,
            late=abandoned.late,
            failed_tries=_failed_tries(abandoned.failures),
            transcript=transcript,
        )
        await self._publisher.once(event, org=self._org, key=self._job_id, id=spec.rollout_id)

    async def publish_batch(self, batch: RolloutBatch, values: dict[str, float]) -> None:
        """Publish the batch of an iteration, the next one in order. Another collector's batch is as good as ours."""
        k = batch.meta.iteration
        blob = await self._put_blob(f"jobs/{self._job_id}/batches/{k}", batch.to_bytes())
        event = RolloutBatched(
            iteration=k,
            batch=blob,
            sequences=batch.sequences,
            groups_kept=batch.meta.groups_kept,
            groups_dropped=batch.meta.groups_dropped,
            values=values,
        )
        try:
            self._last_batch_seq = await self._publisher.chained(
                event, org=self._org, key=self._job_id, id=str(k), after=self._last_batch_seq
            )
        except Conflict:
            await self.read()
            if ("train", k) not in self._finished:
                raise
        self._finished.add(("train", k))

    def _rollout_key(self, request: CollectRequest, spec: RolloutSpec) -> str:
        return f"jobs/{self._job_id}/rollouts/{request.mode}-{request.iteration}/{spec.index}"

    async def _put_blob(self, key: str, body: bytes, *, suffix: str = "safetensors") -> BlobRef:
        # The name has a hash of the content: a collector that was replaced and does not know it yet, or one that plays
        # a rollout again, can never put other bytes at a name that an event refers to.
        return await self._blobs.put_bytes(f"{key}-{hashlib.sha256(body).hexdigest()[:16]}.{suffix}", body)

    async def _put_transcript(self, key: str, body: bytes) -> BlobRef | None:
        return await self._put_blob(key, body, suffix="transcript.json") if body else None

    async def publish_evaluation(self, event: EvalCompleted) -> None:
        """Publish an evaluation."""
        await self._publisher.once(event, org=self._org, key=self._job_id, id=f"eval:{event.iteration}")
        self._finished.add(("eval", event.iteration))

    async def publish_blocked(self, iteration: int, problem: Problem) -> None:
        """Announce that the job's environment is broken; its owner ends the job."""
        event = RolloutBlocked(iteration=iteration, problem=problem)
        await self._publisher.once(event, org=self._org, key=self._job_id, id=f"blocked:{self._term}:{iteration}")


def request_from_event(event: RolloutRequested) -> CollectRequest:
    """The request that an event carries."""
    return CollectRequest(
        iteration=event.iteration,
        mode=event.mode,
        seeds=event.seeds,
        group_size=event.group_size,
        oldest_version=event.oldest_version,
        pinned_version=event.pinned_version,
        refill_seeds=event.refill_seeds,
    )


def _failed_tries(problems: list[Problem]) -> list[FailedTries]:
    """The failures in their order, equal ones together; the oldest are left out where an event has no room for them."""
    found = [FailedTries(problem=problem, times=len(list(same))) for problem, same in groupby(problems)]
    room = MAX_EVENT_BODY_BYTES // 2
    sizes = [len(msgspec.json.encode(tries)) for tries in found]
    kept = 0
    while kept < len(found) and (room := room - sizes[-1 - kept]) >= 0:
        kept += 1
    if kept == len(found):
        return found
    older = found[: len(found) - kept]
    what = Problem(what=f"{len(older)} earlier reasons are left out")
    return [FailedTries(problem=what, times=sum(tries.times for tries in older)), *found[len(older) :]]
