"""The catalogue: every event of the platform, the subject it travels on, and its only publisher.

An event is a fact, in the past tense, on `<entity>.<fact>.<org>.<key>` in the stream `EVENTS`; the key is the
job's id, or the file's for `file.*`. The stream's sequence is the event's `seq`, the server's timestamp its time,
and the subject says its type: none of them is repeated in the body. Events carry references, never tensors.

`by` is the role that alone may publish it. `owner` is the one process that holds the job's fenced attempt: the
trainer's of a training job, the collector's of an evaluation. `reads` names who acts on it and how:
QUEUE = a durable consumer, one of the service's replicas gets it; FOLLOW = an ordered reader of this job alone.
(The gateway projects every event into its read model; only what it acts upon is listed.)
"""

from __future__ import annotations

from typing import Any

import msgspec

from synth.catalogue import Event, Reading, Role, Write, event
from synth.errors import Problem


class BlobRef(msgspec.Struct, frozen=True, kw_only=True):
    """A blob that was written whole before anybody named it. uri: `blob://<key>` in the cluster's store."""

    uri: str
    size: int
    sha256: str


class LoraShape(msgspec.Struct, frozen=True, kw_only=True):
    """What two adapters must have in common for one to go on from the other."""

    r: int
    alpha: int
    targets: str | list[str]


class ModelRef(msgspec.Struct, frozen=True, kw_only=True):
    """A model that can be loaded: its id, and where its files are.

    kind: "full", or "lora" (then `tree` holds an adapter of this shape and `base` the model below it).
    path: a directory or hub id, for a base model of the registry. tree: the manifest of a model that we made.
    """

    id: str
    kind: str = "full"
    path: str | None = None
    tree: BlobRef | None = None
    base: ModelRef | None = None
    lora: LoraShape | None = None


# -- the job's lifecycle: few facts, each by compare-and-set --------------------------------------------------


@event("job.created", by=Role.GATEWAY, reads={Role.VALIDATOR: Reading.QUEUE}, write=Write.CAS)
class JobCreated(Event, frozen=True, kw_only=True):
    """A job was submitted. config: the whole TOML as sent. body_sha256: of the request, for idempotency."""

    config: str
    config_name: str
    body_sha256: str
    model: str | None = None
    training_file: str | None = None
    validation_file: str | None = None
    task_url: str | None = None
    examples: int | None = None
    seed: int | None = None
    allow_experimental: bool = False
    created_by: str = ""


@event("job.validated", by=Role.VALIDATOR, reads={Role.VERIFIER: Reading.QUEUE}, write=Write.CAS)
class JobValidated(Event, frozen=True, kw_only=True):
    """The TOML is right. job: the resolved job (`synth.jobs.resolved`) as JSON, tagged by its kind."""

    job: dict[str, Any]
    origins: dict[str, str]
    warnings: list[str]


@event("job.rejected", by=Role.VALIDATOR, write=Write.CAS)
class JobRejected(Event, frozen=True, kw_only=True):
    """The TOML is wrong: every problem at once."""

    problems: list[Problem]


@event("job.verified", by=Role.VERIFIER, reads={Role.INFERENCE: Reading.FOLLOW}, write=Write.CAS)
class JobVerified(Event, frozen=True, kw_only=True):
    """The job's world is there: task app, files, source model. task_key_id names the environment key that works."""

    source: ModelRef
    task_url: str | None = None
    task_key_id: str | None = None
    task_name: str | None = None
    training_data: BlobRef | None = None
    validation_data: BlobRef | None = None


@event("job.refused", by=Role.VERIFIER, write=Write.CAS)
class JobRefused(Event, frozen=True, kw_only=True):
    """The TOML is right and its world is not: the task app is down, the file has errors, the model is missing."""

    problems: list[Problem]


@event("job.started", by=Role.OWNER, write=Write.CAS)
class JobStarted(Event, frozen=True, kw_only=True):
    """Attempt k owns the job: from here on, events of earlier attempts are refused by the server."""

    attempt: int
    worker: str


@event("job.cancel_requested", by=Role.GATEWAY, reads={Role.OWNER: Reading.FOLLOW}, write=Write.CAS)
class JobCancelRequested(Event, frozen=True, kw_only=True):
    """The user asked a started job to stop; its owner ends it."""

    requested_by: str = ""


@event("job.withdrawn", by=Role.GATEWAY, write=Write.CAS)
class JobWithdrawn(Event, frozen=True, kw_only=True):
    """The user cancelled the job before anybody owned it."""

    requested_by: str = ""


@event("job.cancelled", by=Role.OWNER, write=Write.CAS)
class JobCancelled(Event, frozen=True, kw_only=True):
    """The owner has stopped a job whose cancellation was requested."""

    step: int


@event("job.succeeded", by=Role.OWNER, write=Write.CAS)
class JobSucceeded(Event, frozen=True, kw_only=True):
    """The job is done. model: the id it serves under (none for an evaluation)."""

    steps: int
    model: str | None = None
    values: dict[str, float] = msgspec.field(default_factory=dict[str, float])


@event("job.failed", by=Role.OWNER, write=Write.CAS)
class JobFailed(Event, frozen=True, kw_only=True):
    """The job cannot go on. code: a stable word for programs; problem: what, expected, fix, for people."""

    code: str
    problem: Problem


# -- files -----------------------------------------------------------------------------------------------------


@event("file.uploaded", by=Role.GATEWAY, reads={Role.FILES: Reading.QUEUE})
class FileUploaded(Event, frozen=True, kw_only=True):
    """A file's bytes are stored. name is metadata, never a path."""

    name: str
    purpose: str
    blob: BlobRef


@event("file.ready", by=Role.FILES, reads={Role.VERIFIER: Reading.FOLLOW})
class FileReady(Event, frozen=True, kw_only=True):
    """The file is valid JSONL of conversations. rows: one per conversation; characters: of all message text."""

    rows: int
    messages: int
    characters: int


class LineProblem(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with one line of a file. path: the place inside it, as `$.messages[0].role`."""

    line: int
    path: str
    reason: str


@event("file.rejected", by=Role.FILES, reads={Role.VERIFIER: Reading.FOLLOW})
class FileRejected(Event, frozen=True, kw_only=True):
    """The file cannot be trained on: the first problems, and how many lines have one."""

    bad_lines: int
    problems: list[LineProblem]


# -- rollouts --------------------------------------------------------------------------------------------------


@event("rollout.requested", by=Role.TRAINER, reads={Role.ROLLOUTS: Reading.FOLLOW}, write=Write.FENCED)
class RolloutRequested(Event, frozen=True, kw_only=True):
    """The trainer wants iteration k. mode "train", or "eval": group size 1, the policy version pinned.

    oldest_version: the oldest policy version whose rollouts can still be trained when this iteration is.
    """

    iteration: int
    mode: str
    seeds: list[int]
    group_size: int
    oldest_version: int
    pinned_version: int | None = None


@event("rollout.completed", by=Role.ROLLOUTS)
class RolloutCompleted(Event, frozen=True, kw_only=True):
    """One rollout is done and durable. group: index of its seed in the request; tries: 1 when the first worked."""

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


@event("rollout.failed", by=Role.ROLLOUTS)
class RolloutFailed(Event, frozen=True, kw_only=True):
    """The environment failed a rollout through its whole retry budget: not a reward, its group is dropped."""

    rollout_id: str
    iteration: int
    mode: str
    index: int
    group: int
    seed: int
    problem: Problem
    tries: int


@event("rollout.batch", by=Role.ROLLOUTS, reads={Role.TRAINER: Reading.FOLLOW}, write=Write.CHAIN)
class RolloutBatched(Event, frozen=True, kw_only=True):
    """Iteration k is collected: one batch blob (`synth.trajectories.RolloutBatch`)."""

    iteration: int
    batch: BlobRef
    sequences: int
    groups_kept: int
    groups_dropped: int
    values: dict[str, float]


@event("eval.completed", by=Role.ROLLOUTS, reads={Role.TRAINER: Reading.FOLLOW})
class EvalCompleted(Event, frozen=True, kw_only=True):
    """An evaluation is done. step: the training step of the policy version, None in an evaluation job."""

    model: str
    instances: int
    values: dict[str, float]
    step: int | None = None
    iteration: int = 0


@event("rollout.blocked", by=Role.ROLLOUTS, reads={Role.OWNER: Reading.FOLLOW})
class RolloutBlocked(Event, frozen=True, kw_only=True):
    """Too many rollouts failed: the collector has stopped, and the owner fails the job with this cause."""

    iteration: int
    problem: Problem


# -- policies, training, models --------------------------------------------------------------------------------


@event("policy.published", by=Role.TRAINER, reads={Role.INFERENCE: Reading.FOLLOW}, write=Write.FENCED)
class PolicyPublished(Event, frozen=True, kw_only=True):
    """Weights to serve, in one file that holds a digest of each tensor (`synth.weights`). kind "full" or "lora"."""

    version: int
    attempt: int
    kind: str
    weights: BlobRef


@event("policy.loaded", by=Role.INFERENCE, reads={Role.ROLLOUTS: Reading.FOLLOW})
class PolicyLoaded(Event, frozen=True, kw_only=True):
    """A replica serves this version. proven: tensors whose digest was computed on what is live, and matched."""

    version: int
    replica: str
    seconds: float
    proven: int


@event("policy.refused", by=Role.INFERENCE, reads={Role.OWNER: Reading.FOLLOW})
class PolicyRefused(Event, frozen=True, kw_only=True):
    """The job's policy cannot be served, however often it is tried; the job's owner ends it with this cause."""

    problem: Problem


@event("checkpoint.saved", by=Role.TRAINER, write=Write.FENCED)
class CheckpointSaved(Event, frozen=True, kw_only=True):
    """A durable point to resume from. tree: the manifest; version: the policy version it holds."""

    step: int
    version: int
    attempt: int
    tree: BlobRef
    size: int


@event("train.step", by=Role.TRAINER, write=Write.FENCED)
class TrainStep(Event, frozen=True, kw_only=True):
    """One step, counted from 1: an iteration with all its minibatches (RL), one optimizer step (SFT)."""

    step: int
    of: int
    attempt: int
    values: dict[str, float]


@event("train.resumed", by=Role.TRAINER, write=Write.FENCED)
class TrainResumed(Event, frozen=True, kw_only=True):
    """A later attempt goes on from a checkpoint; the loss of its stored batch, then and now, is the proof."""

    step: int
    attempt: int
    loss_then: float | None
    loss_now: float | None
    same_fingerprint: bool


@event("train.handed_back", by=Role.TRAINER, write=Write.FENCED)
class TrainHandedBack(Event, frozen=True, kw_only=True):
    """An attempt ended in good order before its job (a drain, a wait that was too long): the next one goes on."""

    attempt: int
    reason: str


@event("model.published", by=Role.TRAINER, write=Write.FENCED)
class ModelPublished(Event, frozen=True, kw_only=True):
    """The finished model: it serves under this id from now on."""

    model: ModelRef
    kind: str
    step: int


@event("blob.expired", by=Role.TRAINER, write=Write.FENCED)
class BlobExpired(Event, frozen=True, kw_only=True):
    """Blobs that earlier events named and that are gone from now on (old weights, superseded checkpoints)."""

    uris: list[str]


# -- the watch: what the gateway says of jobs that are silent --------------------------------------------------


@event("watch.heartbeat", by=Role.GATEWAY)
class Heartbeat(Event, frozen=True, kw_only=True):
    """A live job has been silent for a while; nothing is wrong. Some clients give up without it."""

    state: str


@event("queue.waiting", by=Role.GATEWAY)
class QueueWaiting(Event, frozen=True, kw_only=True):
    """A job lacks a worker. need: "trainer", "inference", "rollouts"; position: 1 is next."""

    need: str
    pool: str
    position: int
    seconds: float
