"""What the two kinds of collect task have in common: their job, their collector, and their place in the log."""

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
    """One job's collection, open for as long as its task, queued in this term of the job, is owned."""

    bus: Connection
    settings: RolloutsSettings
    history: JobHistory
    term: int
    collector: Collector
    versions: PolicyVersions
    event_log: RolloutLog

    def follow(self, *facts: str) -> AsyncGenerator[Recorded, None]:
        """These facts of the job, from its beginning on."""
        return follow(self.bus.nc, [f"{fact}.{self.history.org}.{self.history.job_id}" for fact in facts])
