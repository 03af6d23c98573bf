"""The context of a collect task of either kind: its job, its collector and its log."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from synth.bus.connection import Connection
from synth.bus.history.job_log import JobHistory
from synth.bus.recorded import Recorded
from synth.bus.replay import follow
from synth.rollouts.collection.collector import Collector
from synth.rollouts.collection.policy_versions import PolicyVersions
from synth.rollouts.event_log import RolloutLog
from synth.rollouts.settings import RolloutsSettings


@dataclass(frozen=True)
class CollectionContext:
    """The collection of one job, open while its task is owned. term: the job's term when the task was queued."""

    bus: Connection
    settings: RolloutsSettings
    history: JobHistory
    term: int
    collector: Collector
    versions: PolicyVersions
    event_log: RolloutLog

    def follow(self, *facts: str) -> AsyncGenerator[Recorded, None]:
        """Follow the events of these types in the job's log, from its beginning, without an end."""
        return follow(self.bus, [f"{fact}.{self.history.org}.{self.history.job_id}" for fact in facts])
