"""The values that the parts of a collector hand to each other: requests, rollouts and results."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from synth.errors import Problem
from synth.events import BlobRef
from synth.ids import JobId, RolloutId, rollout_id_for
from synth.rollouts.collection.batching import ScoredRollout
from synth.rollouts.collection.deadline import Deadline
from synth.rollouts.concurrency.controller import Overload
from synth.rollouts.rewards.scoring import EnvironmentFailed, Rewarded
from synth.trajectories import Branch, CompletionRecord, RewardSources


@dataclass(frozen=True)
class RolloutSpec:
    """One rollout to run: its index in the request, its group and its seed."""

    rollout_id: RolloutId
    index: int
    group: int
    seed: int


@dataclass(frozen=True)
class CollectRequest:
    """One `rollout.requested`. Group g plays seed g of seeds + refill_seeds; rollout i is in group i // group_size.

    refill_seeds: the seeds of the groups that replace groups without a signal, in this order.
    """

    iteration: int
    mode: str
    seeds: list[int]
    group_size: int
    oldest_version: int
    pinned_version: int | None = None
    refill_seeds: list[int] = field(default_factory=list[int])

    @property
    def size(self) -> int:
        """The number of rollouts without any refill."""
        return len(self.seeds) * self.group_size

    @property
    def compares(self) -> bool:
        """Whether the rollouts of a group are compared with each other. Evaluations measure each rollout alone."""
        return self.mode == "train" and self.group_size > 1

    @property
    def max_groups(self) -> int:
        """The number of groups with every refill."""
        return len(self.seeds) + len(self.refill_seeds)

    def specs(self, job_id: str, group: int) -> list[RolloutSpec]:
        """Return the rollouts of one group."""
        seed = [*self.seeds, *self.refill_seeds][group]
        first = group * self.group_size
        return [
            RolloutSpec(rollout_id_for(JobId(job_id), self.mode, self.iteration, i), i, group, seed)
            for i in range(first, first + self.group_size)
        ]


@dataclass(frozen=True)
class TryResult:
    """One try of a rollout. records: the policy's samples. overload: a sign that too many rollouts run at once.

    transcript: the result of `transcript_to_bytes`. traced: whether the transcript is whole.
    """

    score: Rewarded | EnvironmentFailed
    records: list[CompletionRecord]
    overload: Overload | None = None
    transcript: bytes = b""
    traced: bool = False


@dataclass
class CutOff:
    """The transcript that a cancelled try leaves, written before the cancellation is over."""

    transcript: bytes = b""


@dataclass(frozen=True)
class CompletedRollout:
    """A finished rollout, to be made durable. seconds: from the first try to the last reply. tries: at least 1.

    calls: how often it called the model. transcript: its last try. traced: whether the transcript is whole.
    failures: why the earlier tries failed. cut_off: its last reply is not complete. images_dropped: the images, over
    all its calls, that the model was not shown.
    """

    spec: RolloutSpec
    score: Rewarded
    branches: list[Branch]
    seconds: float
    tries: int
    calls: int
    transcript: bytes = b""
    traced: bool = False
    failures: list[Problem] = field(default_factory=list[Problem])
    cut_off: bool = False
    images_dropped: int = 0


@dataclass(frozen=True)
class DurableRollout:
    """A rollout that is in the log, with the reward of its environment. transcript: None if none was kept.

    info: the details that were recorded when it was scored.
    """

    index: int
    rollout: ScoredRollout
    sources: RewardSources
    transcript: BlobRef | None
    info: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class AbandonedRollout:
    """A rollout that its group goes without. late: nothing failed, it was cut off at the deadline of its group.

    unjudged: it was played, and its judges gave no scores. transcript: its last try. failures: why the earlier tries
    failed.
    """

    problem: Problem
    tries: int
    late: bool = False
    unjudged: bool = False
    transcript: bytes = b""
    failures: list[Problem] = field(default_factory=list[Problem])


@dataclass(frozen=True)
class PriorProgress:
    """The rollouts of a request that are in the log already: done and abandoned ones, by index.

    unjudged: the rollouts that have been played and wait for their judges.
    """

    done: dict[int, ScoredRollout]
    abandoned: dict[int, AbandonedRollout]
    unjudged: dict[int, DurableRollout] = field(default_factory=dict[int, DurableRollout])


@dataclass(frozen=True)
class RequestResult:
    """The rollouts of a request that count. groups, num_rollouts: how many were run, refills included.

    failed: how many rollouts the environment failed. late: how many were cut off at their deadline, by group.
    """

    rollouts: list[ScoredRollout]
    groups: int
    num_rollouts: int
    failed: int
    late: dict[int, int]


@dataclass(frozen=True)
class EnvironmentBroken:
    """A request that cannot be collected: its environment, its judges or its teacher fail too often.

    problem: the last failure. code: the part that fails.
    """

    problem: Problem
    code: Literal["task_app_failed", "judge_failed", "grader_failed", "teacher_failed", "plugin_failed"] = (
        "task_app_failed"
    )


class CollectionBlocked(Exception):
    """An error that ends the collection of a request."""

    def __init__(self, broken: EnvironmentBroken) -> None:
        super().__init__(broken.problem.text())
        self.broken = broken


class Judge(Protocol):
    """The judges of a job. by_group: they compare the rollouts of a group; else they judge each rollout alone."""

    @property
    def by_group(self) -> bool: ...

    async def judge(
        self, request: CollectRequest, rollouts: list[DurableRollout]
    ) -> list[ScoredRollout | AbandonedRollout]:
        """Return the rollouts with their judged rewards, made durable; abandoned if the judges could not score them.

        It waits while the judges are unavailable. Raises `CollectionBlocked` if they will never answer.
        """
        ...


RunTry = Callable[[CollectRequest, RolloutSpec, Deadline, CutOff], Awaitable[TryResult]]
"""Runs one try of a rollout, which begins away from its task app, and marks in the deadline when it arrives there.

A cancelled try leaves its transcript so far in the `CutOff`."""
Complete = Callable[[CollectRequest, CompletedRollout], Awaitable[DurableRollout]]
"""Makes a rollout durable."""
Abandon = Callable[[CollectRequest, RolloutSpec, AbandonedRollout], Awaitable[None]]
"""Records durably that a group goes without a rollout."""
