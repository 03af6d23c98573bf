"""What is asked of a collector, and what becomes of it: the values that its parts hand to each other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from synth.errors import Problem
from synth.ids import JobId, RolloutId, rollout_id_for
from synth.rollouts.collection.batching import ScoredRollout
from synth.rollouts.collection.scoring import EnvironmentFailed, Rewarded
from synth.rollouts.concurrency.controller import Overload
from synth.trajectories import CompletionRecord


@dataclass(frozen=True)
class RolloutSpec:
    """One rollout to run: which of the request's, and its seed."""

    rollout_id: RolloutId
    index: int
    group: int
    seed: int


@dataclass(frozen=True)
class CollectRequest:
    """One `rollout.requested`. Group g plays seed g of seeds + refill_seeds, rollout i is of group i // group_size.

    refill_seeds: of the groups that stand in, in this order, for those that came without a signal.
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
        """Rollouts, without any refill."""
        return len(self.seeds) * self.group_size

    @property
    def max_groups(self) -> int:
        """With every refill."""
        return len(self.seeds) + len(self.refill_seeds)

    def specs(self, job_id: str, group: int) -> list[RolloutSpec]:
        """The rollouts of one group."""
        seed = [*self.seeds, *self.refill_seeds][group]
        first = group * self.group_size
        return [
            RolloutSpec(rollout_id_for(JobId(job_id), self.mode, self.iteration, i), i, group, seed)
            for i in range(first, first + self.group_size)
        ]


@dataclass(frozen=True)
class TryResult:
    """What one try gave: a verdict, what the policy sampled, and what it says against so many at once."""

    score: Rewarded | EnvironmentFailed
    records: list[CompletionRecord]
    overload: Overload | None = None


@dataclass(frozen=True)
class CompletedRollout:
    """A finished rollout, to be made durable."""

    spec: RolloutSpec
    rollout: ScoredRollout
    score: Rewarded
    calls: int


@dataclass(frozen=True)
class AbandonedRollout:
    """A rollout that is not part of its group. late: it was cut off at the group's deadline, nothing failed."""

    problem: Problem
    tries: int
    late: bool = False


@dataclass(frozen=True)
class PriorProgress:
    """What the log has of a request already: rollouts that are done, and those that were given up, by index."""

    done: dict[int, ScoredRollout]
    abandoned: dict[int, AbandonedRollout]


NO_PRIOR_PROGRESS = PriorProgress({}, {})


@dataclass(frozen=True)
class RequestResult:
    """What came of a request. rollouts: those that count. groups, spent: groups and rollouts played, refills included.

    failed: rollouts that the environment failed. late: rollouts cut off at their group's deadline, by group.
    """

    rollouts: list[ScoredRollout]
    groups: int
    spent: int
    failed: int
    late: dict[int, int]


@dataclass(frozen=True)
class EnvironmentBroken:
    """A request that cannot be collected: the environment failed too often, last of all like this."""

    problem: Problem


AtApp = Callable[[bool], None]
"""Called with whether a rollout is at its task app: False while it waits for a replica that can serve it."""
RunTry = Callable[[CollectRequest, RolloutSpec, int, AtApp], Awaitable[TryResult]]
Complete = Callable[[CollectRequest, CompletedRollout], Awaitable[None]]
Abandon = Callable[[CollectRequest, RolloutSpec, AbandonedRollout], Awaitable[None]]
