"""Jobs, checkpoints, files and models in OpenAI's shapes, by pure functions of the read model's rows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from synth.api.fine_tuning.translate import GROUP_SIZE, SEEDS, THOUGHTS
from synth.api.schemas import Checkpoint, File, Job, Model
from synth.gateway.api.openai.places import Method, name_fields
from synth.gateway.presentation.vocabulary import STATUS
from synth.gateway.read_model.projection import FileRow, JobRow
from synth.jobs.lifecycle import State
from synth.methods.job import TrainedJob
from synth.methods.rl import RlJob
from synth.methods.rollouts import RolloutSettings

_METHODS: dict[str, Method] = {"sft": "supervised", "dpo": "dpo", "rl": "reinforcement"}
_FILE_STATUS = {"processing": "uploaded", "ready": "processed", "failed": "error"}
_PROBLEMS_SHOWN = 5
_FILE_FIELDS = ("training_file", "validation_file")


class JobError(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why a job failed. param: the field of the request that caused it, if any."""

    code: str
    message: str
    param: str | None


class FineTuningJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job in OpenAI's shape. Times are unix seconds.

    linked_job_id: the failed job that it continues. queued_seconds: how long it waited for workers; execution_time:
    how many seconds it ran, without waits and pauses.
    """

    id: str
    object: str = "fine_tuning.job"
    created_at: int
    error: JobError | None
    fine_tuned_model: str | None
    finished_at: int | None
    hyperparameters: dict[str, Any]
    model: str
    organization_id: str
    result_files: list[str] = []
    seed: int
    status: str
    trained_tokens: int | None
    training_file: str
    validation_file: str | None
    estimated_finish: int | None
    linked_job_id: str | None
    queued_seconds: float
    execution_time: float
    integrations: list[Any] = []
    metadata: dict[str, str]
    method: dict[str, Any] | None
    user_provided_suffix: str | None


class FineTuningCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that serves under `fine_tuned_model_checkpoint`."""

    id: str
    object: str = "fine_tuning.job.checkpoint"
    created_at: int
    fine_tuned_model_checkpoint: str
    fine_tuning_job_id: str
    metrics: dict[str, float]
    step_number: int


class FileObject(msgspec.Struct, frozen=True, kw_only=True):
    """A file in OpenAI's shape. status_details: its first problems."""

    id: str
    object: str = "file"
    bytes: int
    created_at: int
    expires_at: int | None = None
    filename: str
    purpose: str
    status: str
    status_details: str | None


class ModelObject(msgspec.Struct, frozen=True, kw_only=True):
    """A model in OpenAI's shape. stand_in: the local model that replaces its base, if any."""

    id: str
    object: str = "model"
    created: int
    owned_by: str
    stand_in: str | None = None


def job_object(row: JobRow, resolved: TrainedJob | None) -> FineTuningJob:
    """Return a job in OpenAI's shape. resolved: the job with every default applied; None if its config is invalid."""
    job = row.job
    status, now = STATUS[job.state].openai, datetime.now(UTC)
    return FineTuningJob(
        id=job.id,
        created_at=unix_time(job.created_at),
        error=_error(job, method_of(resolved)),
        fine_tuned_model=job.model if job.state is State.SUCCEEDED else None,
        finished_at=unix_time(job.ended_at) if job.ended_at else None,
        hyperparameters=_hyperparameters(resolved) if resolved is not None and resolved.play is None else {},
        model=job.source_model or (resolved.model if resolved else ""),
        organization_id=row.org,
        result_files=[result_file_id(job.id)] if job.state is State.SUCCEEDED else [],
        seed=resolved.seed if resolved else 0,
        status=status,
        trained_tokens=job.trained_tokens if job.ended_at else None,
        training_file=_training_file(job, resolved),
        validation_file=_validation_file(job, resolved),
        estimated_finish=_estimate(row, now) if status == "running" else None,
        linked_job_id=job.linked_job_id,
        queued_seconds=round(job.times.queued(now), 3),
        execution_time=round(job.times.ran(now), 3),
        metadata={k: v if isinstance(v, str) else msgspec.json.encode(v).decode() for k, v in job.metadata.items()},
        method=_method(resolved),
        user_provided_suffix=suffix_of(job, resolved),
    )


def result_file_id(job_id: str) -> str:
    """Return the id of the file with the metrics of a job."""
    return f"file-result-{job_id}"


def suffix_of(job: Job, resolved: TrainedJob | None) -> str | None:
    """Return the label that the request gave its job."""
    suffix = (resolved.tags if resolved else job.tags).get("suffix")
    return suffix if isinstance(suffix, str) else None


def checkpoint_object(checkpoint: Checkpoint) -> FineTuningCheckpoint:
    """Return a checkpoint in OpenAI's shape, with the metrics of its step."""
    values = checkpoint.values
    metrics = {"step": float(checkpoint.step)} | losses(values)
    if "reward_mean" in values:
        metrics["reward_mean"] = values["reward_mean"]
    return FineTuningCheckpoint(
        id=f"ftckpt_{checkpoint.job_id}_{checkpoint.step}",
        created_at=unix_time(checkpoint.created_at),
        fine_tuned_model_checkpoint=checkpoint.model,
        fine_tuning_job_id=checkpoint.job_id,
        metrics=metrics,
        step_number=checkpoint.step,
    )


def losses(values: dict[str, float]) -> dict[str, float]:
    """Return a step's losses under OpenAI's names; a validation always covers the whole file."""
    named = {"train_loss": "loss", "valid_loss": "validation_loss", "full_valid_loss": "validation_loss"}
    return {theirs: values[ours] for theirs, ours in named.items() if ours in values}


def file_object(row: FileRow) -> FileObject:
    """Return a file in OpenAI's shape."""
    file = row.file
    return FileObject(
        id=file.id,
        bytes=file.bytes,
        created_at=unix_time(file.created_at),
        filename=file.filename,
        purpose=file.purpose,
        status=_FILE_STATUS.get(file.status, "uploaded"),
        status_details=file_problems(file) if file.status == "failed" else None,
    )


def file_problems(file: File) -> str:
    """Return the first invalid lines, and the number of all of them, as text."""
    first = "; ".join(f"line {p.line} {p.path}: {p.reason}" for p in file.problems[:_PROBLEMS_SHOWN])
    return f"{file.bad_lines} bad lines: {first}"


def model_object(model: Model, org: str) -> ModelObject:
    """Return a model that a job of this organisation made, or a base, in OpenAI's shape."""
    return ModelObject(
        id=model.id,
        created=unix_time(model.created_at) if model.created_at else 0,
        owned_by=org if model.job_id else "base",
        stand_in=model.stand_in,
    )


def _error(job: Job, method: Method) -> JobError | None:
    if job.state not in (State.FAILED, State.REJECTED):
        return None
    places = [p.where.split(" ", 1)[0] for p in job.problems]
    return JobError(
        code=job.code or "failed",
        message=name_fields("\n".join(p.text() for p in job.problems), method),
        param=next((place for place in places if place in _FILE_FIELDS), None),
    )


def method_of(job: TrainedJob | None) -> Method:
    """Return this API's name for the job's training method."""
    return "supervised" if job is None else _METHODS[job.method]


def _method(job: TrainedJob | None) -> dict[str, Any] | None:
    if job is None:
        return None
    settings: dict[str, Any] = {"hyperparameters": _hyperparameters(job)}
    if job.play is not None:
        rows = job.graded_rows
        settings["grader"] = rows.grader if rows is not None else _task_app(job.play)
    return {"type": method_of(job), method_of(job): settings}


def _hyperparameters(job: TrainedJob) -> dict[str, Any]:
    common = {
        "batch_size": job.batch_size,
        "learning_rate_multiplier": round(job.lr / job.learning_rates[job.mode], 6),
        "lora_rank": job.lora.r if job.lora else None,
    }
    if not isinstance(job, RlJob):
        beta = {"beta": job.dpo.beta} if job.dpo else {}
        # A number of steps takes precedence over the epochs.
        return {**beta, "n_epochs": job.epochs if job.steps is None else "auto", **common}
    evaluation = job.evaluation
    return {
        "n_epochs": max(1, round(job.iterations * job.batch_size / len(job.train_seeds))),
        **common,
        "compute_multiplier": job.group_size / GROUP_SIZE,
        "eval_interval": evaluation.every_n_iters if evaluation else None,
        "eval_samples": len(evaluation.seeds) if evaluation else None,
        "reasoning_effort": _effort(job),
    }


def _effort(job: RlJob) -> str:
    """Return the reasoning effort that is nearest to this job's limit on thinking."""
    sampling = job.rollout.sampling
    if not sampling.thinking or sampling.thinking_budget is None:
        return "default"
    part = sampling.thinking_budget / sampling.max_tokens
    return min(THOUGHTS, key=lambda effort: abs(THOUGHTS[effort] - part))


def _task_app(rollout: RolloutSettings) -> dict[str, Any]:
    return {
        "type": "task_app",
        "name": rollout.env_name or rollout.task_url,
        "url": rollout.task_url,
        "env_name": rollout.env_name,
        "policy_name": rollout.policy_name,
        "max_turns": rollout.max_turns,
        "env_config": rollout.env_config,
        "policy_config": rollout.policy_config
        | {"temperature": rollout.sampling.temperature, "max_tokens": rollout.sampling.max_tokens},
    }


def _file(role: str, resolved: TrainedJob | None) -> str | None:
    return next((file.id for file in resolved.files if file.role == role), None) if resolved is not None else None


def _training_file(job: Job, resolved: TrainedJob | None) -> str:
    seeds = resolved.app_seeds if resolved is not None else None
    if seeds is not None:
        return _seeds(seeds.listed or range(seeds.start, seeds.start + seeds.count))
    return _file("training_file", resolved) or job.training_file or ""


def _validation_file(job: Job, resolved: TrainedJob | None) -> str | None:
    if resolved is not None and resolved.app_seeds is not None:
        return _seeds(resolved.evaluated_seeds) if resolved.evaluated_seeds is not None else None
    return _file("validation_file", resolved) or job.validation_file


def _seeds(seeds: list[int] | range) -> str:
    first, last = seeds[0], seeds[-1]
    if isinstance(seeds, range) or seeds == list(range(first, last + 1)):
        return f"{SEEDS}{first}-{last}"
    return SEEDS + ",".join(map(str, seeds))


def _estimate(row: JobRow, now: datetime) -> int | None:
    """Estimate the job's end from the time of its steps so far, without waits and pauses; unix seconds."""
    left = row.clock.seconds_left(now, steps=row.job.steps)
    return None if left is None else unix_time(now + timedelta(seconds=left))


def unix_time(time: datetime) -> int:
    return int(time.timestamp())
