"""The events of rollouts, one by one and in batches, and of evaluations."""

from __future__ import annotations

import msgspec

from synth.errors import Problem
from synth.events.catalogue import Event, Reading, Role, Write, event
from synth.events.references import BlobRef


@event("rollout.requested", by=Role.TRAINER, reads={Role.ROLLOUTS: Reading.FOLLOW}, write=Write.FENCED)
class RolloutRequested(Event, frozen=True, kw_only=True):
    """The trainer requests iteration k. mode: "train"; or "eval", with a pinned version, each rollout alone.

    oldest_version: the oldest policy version whose rollouts can still be trained when this iteration is. refill_seeds:
    the seeds of the groups that replace groups without a difference in their rewards, in this order. stage: the stage
    of the curriculum that the seeds are drawn from; 0 is `[data] seeds`.
    """

    iteration: int
    mode: str
    seeds: list[int]
    group_size: int
    oldest_version: int
    pinned_version: int | None = None
    refill_seeds: list[int] = msgspec.field(default_factory=list[int])
    stage: int = 0


@event("collection.started", by=Role.ROLLOUTS, reads={Role.ROLLOUTS: Reading.FOLLOW}, write=Write.CHAIN)
class CollectionStarted(Event, frozen=True, kw_only=True):
    """Collector k of an RL job has started: the server now refuses the rollouts, batches and evaluations of earlier
    ones. The collector of an evaluation job publishes `job.started` instead."""

    attempt: int
    worker: str


class FailedTries(msgspec.Struct, frozen=True, kw_only=True):
    """Tries of a rollout that failed one after the other, for the same reason."""

    problem: Problem
    times: int = 1


@event("rollout.completed", by=Role.ROLLOUTS, reads={Role.TRAINER: Reading.FOLLOW}, write=Write.FENCED, version=2)
class RolloutCompleted(Event, frozen=True, kw_only=True):
    """One rollout is done and durable. group: index of its seed in the request; tries: 1 when the first worked.

    completion_tokens: sampled tokens, without the tokens that were forced or that a grammar left no choice for. Refills
    are counted after the others: the groups behind `seeds` play `refill_seeds`. failed_tries: the tries before the last
    one. reward: the environment's, with its step rewards if the job has any; the rewards of a judged job are in
    `rollout.judged`. transcript: the messages of the last try and its task app's answer, as JSON (`synth.transcripts`),
    for people. traced: whether the transcript is whole, and kept as the rollout's trace; otherwise it may be shortened.
    """

    rollout_id: str
    iteration: int
    mode: str
    index: int
    group: int
    seed: int
    reward: float
    trajectory: BlobRef
    completion_tokens: int
    calls: int
    versions: tuple[int, int]
    seconds: float
    tries: int
    outcome: str = "ok"
    failed_tries: list[FailedTries] = msgspec.field(default_factory=list[FailedTries])
    transcript: BlobRef | None = None
    traced: bool = False


@event("rollout.judged", by=Role.ROLLOUTS, reads={Role.TRAINER: Reading.FOLLOW}, write=Write.FENCED)
class RolloutJudged(Event, frozen=True, kw_only=True):
    """The judges have scored a completed rollout, or failed for the reason `problem`: then its group is dropped.

    reward: the trained and reported one, `env · environment + event · Σ events + outcome · outcome`. environment: the
    reward of `rollout.completed`. events, outcome: the judges' scores, each None if it is not scored. review: the
    judges' scores and reasons, as JSON (`synth.judging.contract.RolloutReview`); transcript: the sha256 of the text
    that they read. calls, tokens, cost: of the judges, for this rollout; the first rollout of a ranked group has the
    whole group's.
    """

    rollout_id: str
    iteration: int
    mode: str
    index: int
    reward: float | None
    environment: float
    events: float | None = None
    outcome: float | None = None
    review: BlobRef | None = None
    transcript: str = ""
    problem: Problem | None = None
    calls: int = 0
    tokens: int = 0
    cost: float = 0.0
    unreadable: int = 0


@event("rollout.failed", by=Role.ROLLOUTS, reads={Role.TRAINER: Reading.FOLLOW}, write=Write.FENCED, version=2)
class RolloutFailed(Event, frozen=True, kw_only=True):
    """The environment failed a rollout through its whole retry budget: not a reward, its group is dropped.

    late: it was cut off at its group's deadline; the group continues without it. failed_tries: the tries before the
    last one, whose problem is `problem`. transcript: of the last try, None if there was nothing to keep.
    """

    rollout_id: str
    iteration: int
    mode: str
    index: int
    group: int
    seed: int
    problem: Problem
    tries: int
    late: bool = False
    failed_tries: list[FailedTries] = msgspec.field(default_factory=list[FailedTries])
    transcript: BlobRef | None = None


@event("rollout.batch", by=Role.ROLLOUTS, reads={Role.TRAINER: Reading.FOLLOW}, write=Write.FENCED)
class RolloutBatched(Event, frozen=True, kw_only=True):
    """Iteration k is collected: one batch blob (`synth.trajectories.RolloutBatch`).

    header_bytes, header_sha256: of the begin of the blob, which is read without its arrays; 0 and "" of an earlier
    version.
    """

    iteration: int
    batch: BlobRef
    sequences: int
    groups_kept: int
    groups_dropped: int
    values: dict[str, float]
    header_bytes: int = 0
    header_sha256: str = ""


@event("eval.completed", by=Role.ROLLOUTS, reads={Role.TRAINER: Reading.FOLLOW}, write=Write.FENCED)
class EvalCompleted(Event, frozen=True, kw_only=True):
    """An evaluation is done. step: the training step of the policy version, None in an evaluation job.

    instances: rollouts that count. success_threshold: of pass@k, or None.
    """

    model: str
    instances: int
    values: dict[str, float]
    step: int | None = None
    iteration: int = 0
    rollouts_per_seed: int = 1
    success_threshold: float | None = None


@event("rollout.blocked", by=Role.ROLLOUTS, reads={Role.OWNER: Reading.FOLLOW}, write=Write.FENCED)
class RolloutBlocked(Event, frozen=True, kw_only=True):
    """Too many rollouts failed, or could not be judged, or their teacher is away: the collector has stopped, and the
    owner fails the job.

    problem, code: the cause, and its word: "task_app_failed", "judge_failed", "grader_failed", "teacher_failed" or
    "plugin_failed".
    """

    iteration: int
    problem: Problem
    code: str = "task_app_failed"
