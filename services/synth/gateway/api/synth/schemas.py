"""The shapes of the Synth API. A job and an event have each value under every name that any client reads."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from synth.gateway.presentation.vocabulary import Level


class SynthJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job in the Synth API. status: queued, running, succeeded, failed or cancelled.

    model: the trained model; fine_tuned_model: the result. config: as it was sent, null in a list. stand_in: the local
    model whose weights really run under the model's id. message: the effect of a request. queued_seconds: how long it
    waited for workers; execution_time: how many seconds it ran, without waits and pauses. A client prints the first 600
    characters of a job that has ended, so its result comes first.
    """

    id: str
    job_id: str
    status: str
    error: str | None
    fine_tuned_model: str | None
    warnings: list[str]
    object: str = "job"
    job_type: str | None
    type: str | None
    training_type: str | None
    name: str
    model: str | None
    model_id: str | None
    base_model: str | None
    stand_in: str | None
    linked_job_id: str | None = None
    training_file_id: str | None
    validation_file_id: str | None
    step: int
    total_steps: int | None
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    queued_seconds: float
    execution_time: float
    hyperparameters: dict[str, Any]
    config: Any
    tags: dict[str, Any]
    metadata: dict[str, Any]
    message: str | None = None


class SynthEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event in the Synth API. seq: the cursor, the same under every path; message: a sentence with its figures."""

    seq: int
    id: str
    event_id: str
    type: str
    level: Level
    message: str
    data: dict[str, Any]
    created_at: datetime
    timestamp: datetime
    job_id: str


class SynthPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A value of a metric in the Synth API. data.measured_at_step: the step of the evaluated version."""

    name: str
    step: int
    value: float
    phase: str
    created_at: datetime
    job_id: str
    data: dict[str, Any]


class SynthPhase(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of a timeline in the Synth API."""

    phase: str
    message: str
    created_at: datetime
    timestamp: datetime
    job_id: str


class SynthRun(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt at a job in the Synth API. duration_seconds: until its end, or its last sign of life if it died."""

    id: str
    run_number: int
    engine: str
    status: str
    created_at: datetime
    started_at: datetime
    ended_at: datetime | None
    duration_seconds: float | None


class SynthCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint in the Synth API. id: the model id under which it serves."""

    id: str
    object: str = "checkpoint"
    job_id: str
    step: int
    bytes: int
    created_at: datetime
    metrics: dict[str, float]


class SynthJobs(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs, newest first."""

    jobs: list[SynthJob]
    has_more: bool


class SynthEvents(msgspec.Struct, frozen=True, kw_only=True):
    """Events, ascending by `seq`."""

    events: list[SynthEvent]


class SynthPoints(msgspec.Struct, frozen=True, kw_only=True):
    """Metrics, ascending by step."""

    points: list[SynthPoint]


class SynthTimeline(msgspec.Struct, frozen=True, kw_only=True):
    """Phases in their order, under both names that clients read."""

    events: list[SynthPhase]
    timeline: list[SynthPhase]


class SynthRuns(msgspec.Struct, frozen=True, kw_only=True):
    """Attempts in their order."""

    runs: list[SynthRun]


class SynthCheckpoints(msgspec.Struct, frozen=True, kw_only=True):
    """Checkpoints, newest first."""

    object: str = "list"
    data: list[SynthCheckpoint]
    has_more: bool


class SynthStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A job's status, and how many seconds it was queued and ran."""

    job_id: str
    status: str
    updated_at: datetime
    queued_seconds: float
    execution_time: float


class SynthModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model in the Synth API. status: a model that can be named is ready.

    stand_in: the local model whose weights really run under its base's id.
    """

    id: str
    object: str = "model"
    base_model: str | None
    owner: str | None
    created_at: datetime | None
    job_id: str | None
    status: str = "ready"
    kind: str
    step: int | None
    stand_in: str | None
