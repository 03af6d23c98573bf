"""The API's structs of rollouts: a summary, a page, and a rollout with its transcript."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from synth.errors import Problem
from synth.events import FailedTries
from synth.transcripts.transcript import Transcript

RolloutMode = Literal["train", "eval"]
RolloutSort = Literal["newest", "oldest", "worst", "best"]
RolloutOutcome = Literal["ok", "policy_failure", "failed", "late"]
RolloutState = Literal["waiting", "batched", "trained", "dropped"]
DropReason = Literal[
    "failed", "late", "sibling_failed", "unscored", "no_signal", "too_old", "mean_reward", "nothing_sampled"
]


class RolloutSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout that has ended.

    iteration: the iteration that requested it, or whose evaluation did; 0 in an evaluation job. group: index of its
    seed in the request. outcome: "ok", "policy_failure" (its reward is the job's `failure_reward`), "failed" (by the
    environment, in each of its tries) or "late" (cut off at its group's deadline); the last two have no reward. reward:
    the trained and reported one, null while judges have no scores for it. environment: the task app's own. versions: of
    the policy, the oldest and the newest that sampled it. problem: of the last try, if it failed. seq: of its event.
    """

    id: str
    object: str = "rollout"
    job_id: str
    mode: RolloutMode
    iteration: int
    index: int
    group: int
    seed: int
    outcome: RolloutOutcome
    reward: float | None = None
    environment: float | None = None
    completion_tokens: int | None = None
    calls: int | None = None
    versions: tuple[int, int] | None = None
    seconds: float | None = None
    tries: int
    problem: Problem | None = None
    ended_at: datetime
    seq: int


class RolloutPage(msgspec.Struct, frozen=True, kw_only=True):
    """Rollouts in the requested order. next: the `after` of the next page; null at the end."""

    object: str = "list"
    data: list[RolloutSummary]
    has_more: bool
    next: str | None = None


class GroupMember(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout of the same group, this one included."""

    id: str
    outcome: RolloutOutcome
    reward: float | None = None


class RolloutTraining(msgspec.Struct, frozen=True, kw_only=True):
    """How a rollout of mode "train" was trained.

    state: "waiting" (its iteration is not yet batched), "batched" (it is in the batch), "trained" (its step is done),
    or "dropped", for the given `reason`. advantage: null if its group is not in the batch. trained_tokens: sampled
    tokens that the step trains. sequences: of the rollout; sequences_too_old: sequences with a token that is older than
    `max_staleness` allows. note: which of these facts is unknown, and why.
    """

    state: RolloutState
    reason: DropReason | None = None
    advantage: float | None = None
    trained_tokens: int | None = None
    sequences: int | None = None
    sequences_too_old: int | None = None
    note: str = ""


class RolloutDetail(RolloutSummary, frozen=True, kw_only=True):
    """One rollout with its messages.

    failed_tries: why the tries before the last one failed. group_members: in the order of their indices.
    pinned_version: of an evaluation within a training job. oldest_version: the oldest policy that its step trains.
    training: null in an evaluation. transcript: of its last try; if it is null, transcript_note has the reason.
    """

    failed_tries: list[FailedTries] = []
    group_members: list[GroupMember] = []
    pinned_version: int | None = None
    oldest_version: int | None = None
    training: RolloutTraining | None = None
    transcript: Transcript | None = None
    transcript_note: str = ""
