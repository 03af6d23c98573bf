"""The lifecycle of a job: few facts, each by compare-and-set."""

from __future__ import annotations

from typing import Any

import msgspec

from synth.errors import Problem
from synth.estimates.verdict import Verdict
from synth.events.catalogue import Event, Reading, Role, Write, event
from synth.events.references import BlobRef, ModelRef

#: Who owns a task of a job reads the job's own configuration and sources from its log.
_TASK_OWNERS = {Role.ROLLOUTS: Reading.FOLLOW, Role.INFERENCE: Reading.FOLLOW, Role.TRAINER: Reading.FOLLOW}
#: Who collects for a job, or serves it, stops once it has ended or is paused. Its owner is the one that ends it.
_UNTIL_OVER = {Role.ROLLOUTS: Reading.FOLLOW, Role.INFERENCE: Reading.FOLLOW}


class Continuation(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoint of a failed job that another job continues from, with its optimizer, its seeds and its step.

    model: the id that the checkpoint serves under; version: the policy version that it holds.
    """

    job: str
    model: str
    step: int
    version: int
    tree: BlobRef


@event("job.created", by=Role.GATEWAY, reads={Role.VALIDATOR: Reading.QUEUE}, write=Write.CAS, version=2)
class JobCreated(Event, frozen=True, kw_only=True):
    """A job was submitted. config: the whole configuration as sent. body_sha256: of the request, for idempotency.

    config_blob: the configuration where it is too long for an event; `config` is "" then.

    config_format: "toml" as in the file, or "json" from a client that sends it parsed. kind: "sft", "rl" or "eval"
    where the client's request already says it. metadata: the client's own, given back with the job. name: of the job;
    that of its configuration where it is None. continues: where the job begins; None for its source model. The rest
    overrides the configuration.
    """

    config: str
    config_name: str
    body_sha256: str
    config_blob: BlobRef | None = None
    config_format: str = "toml"
    kind: str | None = None
    metadata: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    model: str | None = None
    training_file: str | None = None
    validation_file: str | None = None
    task_url: str | None = None
    examples: int | None = None
    seed: int | None = None
    allow_experimental: bool = False
    created_by: str = ""
    name: str | None = None
    continues: Continuation | None = None


@event("job.validated", by=Role.VALIDATOR, reads={Role.VERIFIER: Reading.QUEUE, **_TASK_OWNERS}, write=Write.CAS)
class JobValidated(Event, frozen=True, kw_only=True):
    """The TOML is valid. job: the resolved job (`synth.methods.job`) as JSON, tagged by its kind.

    name: of the job, if its file has one and the submission has none. continues: as it was submitted; the checkpoint is
    leased.
    """

    job: dict[str, Any]
    origins: dict[str, str]
    warnings: list[str]
    name: str | None = None
    continues: Continuation | None = None


@event("job.rejected", by=Role.VALIDATOR, write=Write.CAS)
class JobRejected(Event, frozen=True, kw_only=True):
    """The TOML is wrong: every problem at once."""

    problems: list[Problem]


@event("job.verified", by=Role.VERIFIER, reads=_TASK_OWNERS, write=Write.CAS)
class JobVerified(Event, frozen=True, kw_only=True):
    """The job's task app, files and source model are available. task_key_id: the working environment key.

    rubric: the task app's (`synth.judging.settings.Rubric`), if its judges apply that one. teacher: of a distillation
    job.
    """

    source: ModelRef
    task_url: str | None = None
    task_key_id: str | None = None
    task_name: str | None = None
    training_data: BlobRef | None = None
    validation_data: BlobRef | None = None
    rubric: dict[str, Any] | None = None
    teacher: ModelRef | None = None


@event("job.refused", by=Role.VERIFIER, write=Write.CAS)
class JobRefused(Event, frozen=True, kw_only=True):
    """The TOML is right and its world is not: the task app is down, the file has errors, the model is missing."""

    problems: list[Problem]


@event("job.started", by=Role.OWNER, reads={Role.OWNER: Reading.FOLLOW}, write=Write.CAS)
class JobStarted(Event, frozen=True, kw_only=True):
    """Attempt k owns the job: from here on, events of earlier attempts are refused by the server, and they end.

    devices: GPUs that train it, or processes on CPUs; 0 for an evaluation, whose collector has none.
    """

    attempt: int
    worker: str
    devices: int = 0


@event("job.cancel_requested", by=Role.GATEWAY, reads={Role.OWNER: Reading.FOLLOW}, write=Write.CAS)
class JobCancelRequested(Event, frozen=True, kw_only=True):
    """The user requested a started job to stop; its owner ends it."""

    requested_by: str = ""


@event("job.pause_requested", by=Role.GATEWAY, reads={Role.OWNER: Reading.FOLLOW}, write=Write.CAS)
class JobPauseRequested(Event, frozen=True, kw_only=True):
    """A started job is to pause; its owner releases it, and keeps its durable state.

    requested_by: the requesting key; "" for the platform itself, with its `reason`.
    """

    requested_by: str = ""
    reason: str = ""


@event("job.paused", by=Role.OWNER, reads=_UNTIL_OVER, write=Write.CAS)
class JobPaused(Event, frozen=True, kw_only=True):
    """The owner has released the job after this step: it holds no worker until it is resumed.

    reason: why, if the user did not request it.
    """

    step: int
    reason: str = ""


@event("job.resumed", by=Role.GATEWAY, reads={Role.VERIFIER: Reading.QUEUE, **_UNTIL_OVER}, write=Write.CAS)
class JobResumed(Event, frozen=True, kw_only=True):
    """The user requested a paused job to continue: its first tasks are due again, and the next attempt resumes."""

    requested_by: str = ""


@event("job.parked", by=Role.VERIFIER, reads=_UNTIL_OVER, write=Write.CAS)
class JobParked(Event, frozen=True, kw_only=True):
    """The tasks of a verified or resumed job cannot be queued: it holds no worker until it is resumed, as when paused.

    problem: why, with the id of the dead letter that has the details.
    """

    problem: Problem


@event("job.withdrawn", by=Role.GATEWAY, reads=_UNTIL_OVER, write=Write.CAS)
class JobWithdrawn(Event, frozen=True, kw_only=True):
    """The user cancelled the job while it had no owner: before its start, or while it was paused."""

    requested_by: str = ""


@event("job.cancelled", by=Role.OWNER, reads=_UNTIL_OVER, write=Write.CAS)
class JobCancelled(Event, frozen=True, kw_only=True):
    """The owner has stopped a job whose cancellation was requested."""

    step: int


@event("job.succeeded", by=Role.OWNER, reads=_UNTIL_OVER, write=Write.CAS)
class JobSucceeded(Event, frozen=True, kw_only=True):
    """The job is done. model: the id it serves under (none for an evaluation).

    reason: why it ended, if it did not do all of its steps or none of them changed the policy. verdict: whether the
    model is better than its source; None if the job did not evaluate both.
    """

    steps: int
    model: str | None = None
    values: dict[str, float] = msgspec.field(default_factory=dict[str, float])
    reason: str = ""
    verdict: Verdict | None = None


@event("job.failed", by=Role.OWNER, reads=_UNTIL_OVER, write=Write.CAS)
class JobFailed(Event, frozen=True, kw_only=True):
    """The job cannot continue. code: a stable word for programs; problem: what, expected, fix, for people.

    verdict: of a job that trained, and that the collapse watch ended; None if the job did not evaluate both policies.
    """

    code: str
    problem: Problem
    verdict: Verdict | None = None


@event("job.deleted", by=Role.GATEWAY, reads={Role.VERIFIER: Reading.FOLLOW, Role.INFERENCE: Reading.FOLLOW})
class JobDeleted(Event, frozen=True, kw_only=True):
    """A job that had ended is deleted with its results; its blobs are deleted when nothing needs them any more.

    This is not part of the lifecycle: the job's last state does not change.
    """

    requested_by: str
