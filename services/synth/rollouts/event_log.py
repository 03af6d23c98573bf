"""The rollout events of one job: read from its log, and appended to it, each rollout before the batch it is in.

Invariants. Every append expects this collector's claim, so that a replaced collector appends nothing. Every event that
earlier collectors could append is read before anything is played. So there is one batch per iteration, built from the
rollouts in the log.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from itertools import groupby

import msgspec

from synth.blobs import BlobStore
from synth.blobs.packs import PackWriter
from synth.bus.connection import Connection
from synth.bus.publish import Fence, Publisher
from synth.bus.recorded import Recorded
from synth.bus.replay import replay
from synth.errors import Problem
from synth.events import (
    BlobRef,
    EvalCompleted,
    FailedTries,
    RolloutBatched,
    RolloutBlocked,
    RolloutCompleted,
    RolloutFailed,
    RolloutJudged,
    RolloutRequested,
)
from synth.events.catalogue import MAX_EVENT_BODY_BYTES, Event
from synth.judging.contract import JudgeUsage, RolloutReview
from synth.methods.rewards import RewardSettings
from synth.rollouts.collection.batching import ScoredRollout
from synth.rollouts.collection.judged import add_review, with_sources
from synth.rollouts.collection.types import (
    AbandonedRollout,
    CollectRequest,
    CompletedRollout,
    DurableRollout,
    EnvironmentBroken,
    PriorProgress,
    RolloutSpec,
)
from synth.trajectories import RecordedTrajectory, RolloutBatch
from synth.transcripts.batch_header import LENGTH_BYTES, header_length


class RolloutLog:
    """The rollout events of one job, read once and appended to by its one collector."""

    def __init__(
        self,
        bus: Connection,
        blobs: BlobStore,
        fence: Fence,
        *,
        rewards: RewardSettings,
        advanced: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """fence: the collector's claim; for an evaluation, its attempt. advanced: called after each durable event."""
        self._bus = bus
        self._blobs = blobs
        self._packs = PackWriter(blobs)
        self._publisher = Publisher(bus)
        self._fence = fence
        self._advanced = advanced
        self._org = fence.org
        self._job_id = fence.job_id
        self._rewards = rewards
        self._judged: dict[tuple[str, int], dict[int, RolloutJudged]] = {}
        self.judge_usage = JudgeUsage()
        """The calls and the cost of all judged rollouts."""
        self._completed: dict[tuple[str, int], dict[int, RolloutCompleted]] = {}
        self._abandoned: dict[tuple[str, int], dict[int, AbandonedRollout]] = {}
        self._finished: set[tuple[str, int]] = set()
        self._evaluations: dict[int, EvalCompleted] = {}

    async def read(self) -> None:
        """Read the events of earlier collectors."""
        facts = ("rollout.completed", "rollout.judged", "rollout.failed", "rollout.batch", "eval.completed")
        for event in await replay(self._bus, [f"{fact}.{self._org}.{self._job_id}" for fact in facts], whole=True):
            self._apply(event)
        judged = [event for of_request in self._judged.values() for event in of_request.values()]
        self.judge_usage = JudgeUsage(calls=sum(e.calls for e in judged), cost=sum(e.cost for e in judged))

    def _apply(self, recorded: Recorded) -> None:
        match recorded.event:
            case RolloutCompleted() as event:
                self._completed.setdefault((event.mode, event.iteration), {})[event.index] = event
            case RolloutJudged() as event:
                self._judged.setdefault((event.mode, event.iteration), {})[event.index] = event
            case RolloutFailed() as event:
                abandoned = AbandonedRollout(event.problem, event.tries, late=event.late)
                self._abandoned.setdefault((event.mode, event.iteration), {})[event.index] = abandoned
            case RolloutBatched(iteration=iteration):
                self._finished.add(("train", iteration))
            case EvalCompleted() as event:
                self._finished.add(("eval", event.iteration))
                self._evaluations[event.iteration] = event

    def finished(self, request: CollectRequest) -> bool:
        """Return whether this request's batch or evaluation is in the log."""
        return (request.mode, request.iteration) in self._finished

    @property
    def last_batched_iteration(self) -> int:
        """The last iteration whose batch is in the log; batches are announced in order. 0 before the first."""
        return max((iteration for mode, iteration in self._finished if mode == "train"), default=0)

    def evaluation(self, iteration: int) -> EvalCompleted | None:
        """Return the evaluation of an iteration, if it is in the log."""
        return self._evaluations.get(iteration)

    async def prior_progress(self, request: CollectRequest) -> PriorProgress:
        """Return the rollouts of a request that earlier collectors completed, with trajectories, or abandoned."""
        key = (request.mode, request.iteration)
        done: dict[int, ScoredRollout] = {}
        unjudged: dict[int, DurableRollout] = {}
        abandoned: dict[int, AbandonedRollout] = {}
        reviews = self._reviews(key)
        for index, event in self._completed.get(key, {}).items():
            judged = reviews.get(index)
            if judged is not None and judged.problem is not None:
                abandoned[index] = AbandonedRollout(judged.problem, event.tries, unjudged=True)
                continue
            trajectory = RecordedTrajectory.from_bytes(await self._blobs.get_bytes(event.trajectory))
            durable = self._durable(event, trajectory)
            if self._rewards.judging is None:
                done[index] = durable.rollout
            elif judged is None or judged.review is None:
                unjudged[index] = durable
            else:
                review = msgspec.json.decode(await self._blobs.get_bytes(judged.review), type=RolloutReview)
                done[index] = with_sources(
                    durable.rollout, add_review(durable.sources, review, self._rewards), self._rewards
                )
        # In logs from before collectors were fenced, a replaced one may have abandoned rollouts that another completed.
        failed = {i: a for i, a in self._abandoned.get(key, {}).items() if i not in done and i not in unjudged}
        return PriorProgress(done, failed | abandoned, unjudged)

    def _reviews(self, key: tuple[str, int]) -> dict[int, RolloutJudged]:
        """Return the reviews of a request's rollouts, if they are of the transcripts in the log, by index.

        Leave out a ranked group of which a rollout has no place yet, because places are among all rollouts of a group.
        """
        completed = self._completed.get(key, {})
        results = {
            index: judged
            for index, judged in self._judged.get(key, {}).items()
            if index in completed and judged.transcript == _digest(completed[index].transcript)
        }
        if self._rewards.judging is None or not self._rewards.judging.ranking or key[0] == "eval":
            return results
        half = {event.group for index, event in completed.items() if index not in results}
        return {index: judged for index, judged in results.items() if completed[index].group not in half}

    def _durable(self, event: RolloutCompleted, trajectory: RecordedTrajectory) -> DurableRollout:
        rollout = ScoredRollout(
            rollout_id=event.rollout_id,
            group=event.group,
            seed=event.seed,
            reward=event.reward,
            turn_rewards=trajectory.sources.environment,
            branches=trajectory.branches,
            seconds=event.seconds,
            tries=event.tries,
            steps_missing=trajectory.steps_missing,
            cut_off=trajectory.cut_off,
            images_dropped=trajectory.images_dropped,
        )
        if self._rewards.judging is None:
            rollout = with_sources(rollout, trajectory.sources, self._rewards)
        return DurableRollout(event.index, rollout, trajectory.sources, event.transcript, trajectory.info)

    async def complete(self, request: CollectRequest, completed: CompletedRollout) -> DurableRollout:
        """Make one rollout durable: its trajectory, then the event that names it."""
        spec, score = completed.spec, completed.score
        trajectory = RecordedTrajectory(
            completed.branches,
            score.sources,
            score.steps_missing,
            score.info,
            cut_off=completed.cut_off,
            images_dropped=completed.images_dropped,
        )
        # Put both blobs before the event, so that the blobs that it names exist.
        blob, transcript = await asyncio.gather(
            self._packs.put(self._folder(request), trajectory.to_bytes()),
            self._put_transcript(request, spec, completed.transcript, traced=completed.traced),
        )
        versions = [int(v) for b in completed.branches for v in b.versions[b.loss_mask]]
        paid = sum(score.sources.environment if self._rewards.judging else score.sources.turns(self._rewards.weights))
        event = RolloutCompleted(
            rollout_id=spec.rollout_id,
            iteration=request.iteration,
            mode=request.mode,
            index=spec.index,
            group=spec.group,
            seed=spec.seed,
            reward=paid,
            trajectory=blob,
            completion_tokens=sum(int(b.loss_mask.sum()) for b in completed.branches),
            calls=completed.calls,
            versions=(min(versions, default=-1), max(versions, default=-1)),
            seconds=round(completed.seconds, 4),
            tries=completed.tries,
            outcome=score.outcome,
            failed_tries=_failed_tries(completed.failures),
            transcript=transcript,
            traced=completed.traced and transcript is not None,
        )
        await self._append(event, id=spec.rollout_id)
        return self._durable(event, trajectory)

    async def judged(
        self,
        request: CollectRequest,
        durable: DurableRollout,
        review: RolloutReview | None,
        usage: JudgeUsage,
        *,
        problem: Problem | None = None,
    ) -> ScoredRollout | None:
        """Make a rollout's review durable, or why it has none. Returns the rollout with its judged reward."""
        rollout = None
        blob = None
        if review is not None:
            rollout = with_sources(durable.rollout, add_review(durable.sources, review, self._rewards), self._rewards)
            key = f"{self._folder(request)}/{durable.index}"
            blob = await self._put_blob(key, msgspec.json.encode(review), suffix="review.json")
        scores = rollout.sources if rollout else {}
        event = RolloutJudged(
            rollout_id=durable.rollout.rollout_id,
            iteration=request.iteration,
            mode=request.mode,
            index=durable.index,
            reward=rollout.reward if rollout else None,
            environment=scores.get("env", sum(durable.sources.environment)),
            events=scores.get("event"),
            outcome=scores.get("outcome"),
            review=blob,
            transcript=_digest(durable.transcript),
            problem=problem,
            calls=usage.calls,
            tokens=usage.prompt_tokens + usage.completion_tokens,
            cost=usage.cost,
            unreadable=usage.unreadable,
        )
        await self._append(event, id=f"judged:{durable.rollout.rollout_id}")
        total = self.judge_usage
        self.judge_usage = JudgeUsage(calls=total.calls + usage.calls, cost=total.cost + usage.cost)
        return rollout

    async def put_prompts(self, request: CollectRequest, durable: DurableRollout, body: bytes) -> BlobRef:
        """Store the prompts of a rollout's graders as a blob that the judge service reads."""
        return await self._put_blob(f"{self._folder(request)}/{durable.index}", body, suffix="prompts.json")

    async def abandon(self, request: CollectRequest, spec: RolloutSpec, abandoned: AbandonedRollout) -> None:
        """Announce that a rollout failed in each of its tries, or was cut off at the deadline of its group."""
        transcript = await self._put_transcript(request, spec, abandoned.transcript)
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
        await self._append(event, id=spec.rollout_id)

    async def publish_batch(self, batch: RolloutBatch, values: dict[str, float]) -> None:
        """Publish the batch of an iteration, the next one in order."""
        k = batch.meta.iteration
        body = batch.to_bytes()
        header = body[: LENGTH_BYTES + header_length(body)]
        blob = await self._put_blob(f"jobs/{self._job_id}/batches/{k}", body)
        event = RolloutBatched(
            iteration=k,
            batch=blob,
            sequences=batch.sequences,
            groups_kept=batch.meta.groups_kept,
            groups_dropped=batch.meta.groups_dropped,
            values=values,
            header_bytes=len(header),
            header_sha256=hashlib.sha256(header).hexdigest(),
        )
        await self._append(event, id=str(k))
        self._finished.add(("train", k))

    def _folder(self, request: CollectRequest) -> str:
        return f"jobs/{self._job_id}/rollouts/{request.mode}-{request.iteration}"

    async def _put_blob(self, key: str, body: bytes, *, suffix: str = "safetensors") -> BlobRef:
        # The name has a hash of the content: a collector that was replaced and does not know it yet, or one that plays
        # a rollout again, can never put other bytes at a name to which an event refers.
        digest = hashlib.sha256(body).hexdigest()
        return await self._blobs.put_bytes(f"{key}-{digest[:16]}.{suffix}", body, sha256=digest)

    async def _put_transcript(
        self, request: CollectRequest, spec: RolloutSpec, body: bytes, *, traced: bool = False
    ) -> BlobRef | None:
        if not body:
            return None
        # A trace expires by itself. A judge's transcript is in a request that has no schema: an earlier version of the
        # judge service would misread a part.
        if traced or self._rewards.judging is not None:
            return await self._put_blob(f"{self._folder(request)}/{spec.index}", body, suffix="transcript.json")
        return await self._packs.put(self._folder(request), body)

    async def publish_evaluation(self, event: EvalCompleted) -> None:
        """Publish an evaluation."""
        await self._append(event, id=f"eval:{event.iteration}")
        self._finished.add(("eval", event.iteration))

    async def publish_blocked(self, iteration: int, broken: EnvironmentBroken) -> None:
        """Announce that the job's environment or its judges are broken; the job's owner ends it."""
        event = RolloutBlocked(iteration=iteration, problem=broken.problem, code=broken.code)
        await self._append(event, id=f"blocked:{iteration}")

    async def _append(self, event: Event, *, id: str) -> None:
        # The id has the attempt: an event that another collector appended under the same name is no retry of ours.
        await self._publisher.fenced(event, fence=self._fence, id=f"{self._fence.attempt}:{id}")
        if self._advanced is not None and not isinstance(event, RolloutBlocked):
            await self._advanced()


def _digest(transcript: BlobRef | None) -> str:
    return "" if transcript is None else transcript.sha256


def request_from_event(event: RolloutRequested) -> CollectRequest:
    """Return the request that an event carries."""
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
    """Return the failures in order, equal ones together; the oldest are left out if the event has no room for them."""
    results = [FailedTries(problem=problem, times=len(list(same))) for problem, same in groupby(problems)]
    room = MAX_EVENT_BODY_BYTES // 2
    sizes = [len(msgspec.json.encode(tries)) for tries in results]
    kept = 0
    while kept < len(results) and (room := room - sizes[-1 - kept]) >= 0:
        kept += 1
    if kept == len(results):
        return results
    older = results[: len(results) - kept]
    what = Problem(what=f"{len(older)} earlier reasons are left out")
    return [FailedTries(problem=what, times=sum(tries.times for tries in older)), *results[len(older) :]]
