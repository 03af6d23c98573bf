"""Jobs, events, metrics and timelines in the Synth API's shapes, by pure functions of our own views."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NamedTuple, cast

import msgspec

from synth.api.job_clock import Run
from synth.api.schemas import Checkpoint, Job
from synth.bus.recorded import Recorded
from synth.gateway.api.synth.schemas import (
    SynthCheckpoint,
    SynthEvent,
    SynthJob,
    SynthPhase,
    SynthPoint,
    SynthRun,
    SynthStatus,
)
from synth.gateway.presentation.vocabulary import STATUS, describe_event, metric_name
from synth.gateway.read_model.projection import JobRow
from synth.gateway.read_model.tables.job_metrics import PublishedPoint
from synth.models import parse_finetuned

_TRAINING_TYPE = {"sft": "sft_offline", "rl": "rl_online", "eval": "eval"}
_HYPERPARAMETERS = {"sft": "hyperparameters", "rl": "training"}


#: The names of a job's lifecycle facts in its timeline. Clients would read "cancelled" as a failure, so only the
#: status of a cancelled job shows it.
PHASES = {
    "job.created": "created",
    "job.validated": "validated",
    "job.verified": "ready",
    "job.started": "training",
    "job.cancel_requested": "cancelling",
    "job.pause_requested": "pausing",
    "job.paused": "paused",
    "job.resumed": "resumed",
    "job.withdrawn": "withdrawn",
    "job.cancelled": "stopped",
    "job.succeeded": "succeeded",
    "job.failed": "failed",
    "job.rejected": "failed",
    "job.refused": "failed",
}


def job_view(row: JobRow, config: str | None = None, *, message: str | None = None) -> SynthJob:
    """Return a job in the Synth API's shape. config: its text as it was submitted.

    `updated_at` changes only with the job's state, because a client prints a status line at each change.
    """
    job, status = row.job, status_view(row)
    sent = as_sent(config)
    made = parse_finetuned(job.source_model) if job.source_model else None
    kind = job.kind or ""
    return SynthJob(
        id=job.id,
        job_id=job.id,
        job_type=job.kind,
        type=job.kind,
        training_type=_TRAINING_TYPE.get(kind),
        status=status.status,
        name=job.name,
        model=job.source_model,
        model_id=job.source_model,
        base_model=made.base if made else job.source_model,
        stand_in=job.stand_in,
        linked_job_id=job.linked_job_id,
        fine_tuned_model=job.model,
        training_file_id=job.training_file,
        validation_file_id=job.validation_file,
        step=job.step,
        total_steps=job.steps,
        created_at=job.created_at,
        updated_at=row.state_since,
        started_at=job.started_at,
        finished_at=job.ended_at,
        queued_seconds=status.queued_seconds,
        execution_time=status.execution_time,
        error="\n".join(p.text() for p in job.problems) or None,
        warnings=[*job.warnings, *(warned.problem.text() for warned in job.warned.values())],
        hyperparameters=_table(sent, _HYPERPARAMETERS.get(kind, "")),
        config=sent,
        tags=job.tags,
        metadata=job.metadata,
        message=message,
    )


def status_view(row: JobRow) -> SynthStatus:
    """Return the status of a job."""
    status = STATUS[row.job.state].synth
    times, now = row.job.times, datetime.now(UTC)
    return SynthStatus(
        job_id=row.job.id,
        status=status,
        updated_at=row.state_since,
        queued_seconds=round(times.queued(now), 3),
        execution_time=round(times.ran(now), 3),
    )


def as_sent(config: str | None) -> Any:
    """Return the configuration as it was sent: parsed JSON, or the text of a TOML."""
    if config is None:
        return None
    try:
        return msgspec.json.decode(config)
    except msgspec.DecodeError:
        return config


def event_view(recorded: Recorded, kind: str | None) -> SynthEvent | None:
    """Return an event of a job of this kind; None for an event that is not shown."""
    words = describe_event(recorded, kind)
    if words is None:
        return None
    return SynthEvent(
        seq=recorded.seq,
        id=f"evt_{recorded.seq}",
        event_id=f"evt_{recorded.seq}",
        type=words.type,
        level=words.level,
        message=words.message,
        data=words.data,
        created_at=recorded.time,
        timestamp=recorded.time,
        job_id=recorded.key,
    )


def point_view(point: PublishedPoint, job_id: str) -> SynthPoint:
    """Return a point of a job's metrics."""
    name = metric_name(point.name)
    late = point.measured != point.step
    return SynthPoint(
        name=name,
        step=point.step,
        value=point.value,
        phase="eval" if name.startswith(("eval.", "val.")) else "train",
        created_at=point.time,
        job_id=job_id,
        data={"measured_at_step": point.measured} if late else {},
    )


def phase_view(recorded: Recorded, kind: str | None) -> SynthPhase | None:
    """Return a lifecycle fact's entry in the timeline; None for another event."""
    phase, words = PHASES.get(recorded.type), describe_event(recorded, kind)
    if phase is None or words is None:
        return None
    if phase == "training" and kind == "eval":
        phase = "evaluating"
    return SynthPhase(
        phase=phase,
        message=words.message,
        created_at=recorded.time,
        timestamp=recorded.time,
        job_id=recorded.key,
    )


class RunBounds(NamedTuple):
    """An attempt at a job: the fact that began it, and the one that began the next."""

    start: Recorded
    next: Recorded | None


def find_run(facts: list[Recorded], job_id: str, name: str) -> RunBounds | None:
    """Find the attempt with this number or id (`runs_view`) in the facts of the job's lifecycle."""
    starts = [fact for fact in facts if fact.type == "job.started"]
    for number, start in enumerate(starts, 1):
        if name in (str(number), f"{job_id}:{number}"):
            return RunBounds(start, starts[number] if number < len(starts) else None)
    return None


def runs_view(row: JobRow) -> list[SynthRun]:
    """Return the attempts at a job, in their order."""
    job, runs = row.job, row.clock.runs
    return [
        SynthRun(
            id=f"{job.id}:{number}",
            run_number=number,
            engine="synth",
            status=_run_status(run, job),
            created_at=run.started_at,
            started_at=run.started_at,
            ended_at=run.ended_at,
            duration_seconds=(run.ended_at - run.started_at).total_seconds() if run.ended_at else None,
        )
        for number, run in enumerate(runs, 1)
    ]


def _run_status(run: Run, job: Job) -> str:
    if run.ended_at is None:
        return "running"
    # An attempt ends with the first of these: the next attempt, a pause, or the end of the job.
    return STATUS[job.state].synth if run.ended_at == job.ended_at else "interrupted"


def checkpoint_view(checkpoint: Checkpoint) -> SynthCheckpoint:
    """Return a checkpoint, with its values under the Synth API's names."""
    return SynthCheckpoint(
        id=checkpoint.model,
        job_id=checkpoint.job_id,
        step=checkpoint.step,
        bytes=checkpoint.bytes,
        created_at=checkpoint.created_at,
        metrics={metric_name(name): value for name, value in checkpoint.values.items()},
    )


def _table(config: Any, name: str) -> dict[str, Any]:
    value = cast(dict[str, Any], config).get(name) if isinstance(config, dict) else None
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}
