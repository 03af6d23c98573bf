"""The logs of the services that own a job's tasks."""

from __future__ import annotations

from synth.events.catalogue import Event, Role, event
from synth.events.references import BlobRef


class Logged(Event, frozen=True, kw_only=True):
    """A task of the job is done, and its owner's log is stored. bytes: of all stored logs of the job."""

    blob: BlobRef
    bytes: int


@event("train.logged", by=Role.TRAINER)
class TrainLogged(Logged, frozen=True, kw_only=True):
    """The log of the trainer."""


@event("collection.logged", by=Role.ROLLOUTS)
class CollectionLogged(Logged, frozen=True, kw_only=True):
    """The log of the rollouts service."""


@event("policy.logged", by=Role.INFERENCE)
class PolicyLogged(Logged, frozen=True, kw_only=True):
    """The log of a process of the inference service."""
