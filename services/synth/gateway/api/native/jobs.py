"""Routes that submit, show, control and delete jobs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field, field_validator
from starlette.responses import Response

from synth.api.limits import MAX_CONFIG_BYTES, MAX_MODEL_ID, MAX_STEPS, MAX_URL
from synth.api.schemas import Checkpoint, Deleted, Job, JobCheck, JobWithConfig, LoggedLine, Points, SubmittedJob
from synth.errors import UserError
from synth.events import JobCreated
from synth.gateway.api.job_lists import find_jobs
from synth.gateway.api.openapi import json_response, list_response, returns, returns_list
from synth.gateway.api.parameters import IdempotencyKey, PageLimit
from synth.gateway.auth import CurrentKey
from synth.gateway.commands.check import check_job
from synth.gateway.commands.control import cancel_job, pause_job, resume_job
from synth.gateway.commands.delete import delete_job
from synth.gateway.commands.submit import submit_job
from synth.gateway.deps import Gateway, GatewayDep
from synth.gateway.presentation.job_log import read_lines
from synth.gateway.read_model.filters import JobFilter
from synth.gateway.read_model.projection import JobRow
from synth.jobs.lifecycle import State

router = APIRouter(prefix="/api/jobs", tags=["jobs"])

_ROUTE = "/api/jobs"
#: Seconds within which an equal submission is reported as a repeat.
_REPEATED_S = 60.0
#: The response of routes that change a job.
_CHANGED = returns(JobWithConfig, status=202)


class Submission(BaseModel):
    """A job to run: a whole configuration, and fields that override it as the command line's flags do."""

    model_config = ConfigDict(extra="forbid", strict=True)

    config: str = Field(description="The TOML, as it stands in the file: 256 KiB at most")
    config_name: str = Field(default="job.toml", max_length=255, description="The file's name, for messages")
    name: str | None = Field(default=None, min_length=1, max_length=255, description="The job's; the file's without it")
    model: str | None = Field(default=None, max_length=MAX_MODEL_ID)
    training_file: str | None = Field(default=None, max_length=128, description="Id of an uploaded file")
    validation_file: str | None = Field(default=None, max_length=128)
    task_url: str | None = Field(default=None, max_length=MAX_URL)
    examples: int | None = Field(default=None, ge=1, description="Only the first rows of the training file")
    seed: int | None = None
    allow_experimental: bool = Field(default=False, description="Take a model that is marked experimental")

    @field_validator("config")
    @classmethod
    def _small_enough(cls, config: str) -> str:
        # Measure it as JSON, the form in which it is sent: a control character takes six bytes.
        size = len(msgspec.json.encode(config))
        if size > MAX_CONFIG_BYTES:
            raise ValueError(f"{size} bytes; a job file may have {MAX_CONFIG_BYTES}: put data into files")
        return config


@router.post(
    "",
    status_code=201,
    summary="Submit a job",
    responses=returns(SubmittedJob, status=201) | returns(SubmittedJob, "The same job"),
)
async def submit(
    submission: Submission,
    caller: CurrentKey,
    gateway: GatewayDep,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Submit a job. An `Idempotency-Key` again returns the same job (200) for the same body, and 422 for another."""
    created = _created(submission, caller)
    row, new = await submit_job(gateway, caller.org, created, route=_ROUTE, key=idempotency_key)
    repeats = gateway.read_model.first_equal(caller.org, row.job.id, within_s=_REPEATED_S) if new else None
    answer = SubmittedJob(**msgspec.structs.asdict(await _with_config(gateway, row)), repeats=repeats)
    return json_response(answer, 201 if new else 200)


@router.post("/check", summary="Whether a job would be refused", responses=returns(JobCheck))
async def check(submission: Submission, caller: CurrentKey, gateway: GatewayDep) -> Response:
    """Check a submission as the validator and the verifier would, without creating a job or calling its task app.

    A dataset may be a path: only uploaded files (`file_…`) are checked.
    """
    return json_response(await check_job(gateway, caller.org, _created(submission, caller)))


def _created(submission: Submission, caller: CurrentKey) -> JobCreated:
    return JobCreated(**submission.model_dump(), body_sha256="", created_by=caller.key_id)


@router.get("", summary="List jobs, newest first", responses=returns_list(Job))
async def list_jobs(
    caller: CurrentKey,
    gateway: GatewayDep,
    state: State | None = None,
    kind: str | None = None,
    prefix: Annotated[str | None, Query(max_length=64, description="Only jobs whose id begins with this")] = None,
    limit: PageLimit = 20,
    after: Annotated[str | None, Query(description="Go on after this job id")] = None,
    name: Annotated[str | None, Query(max_length=255, description="Only jobs with this name or label")] = None,
    tag: Annotated[list[str] | None, Query(description="Only jobs with this tag, as `owner=ada`; repeatable")] = None,
) -> Response:
    """List jobs without their texts, which `GET /api/jobs/{id}` returns."""
    wanted = JobFilter(
        states=[state] if state else None,
        kinds=[kind] if kind else None,
        prefix=prefix,
        name=name,
        tags=_tags(tag or []),
    )
    rows, more = await find_jobs(gateway, caller.org, limit=limit, wanted=wanted, after=after)
    return list_response([gateway.queue.show(row) for row in rows], more=more)


@router.get("/{job_id}", summary="One job, with its configuration", responses=returns(JobWithConfig))
async def get_job(job_id: str, caller: CurrentKey, gateway: GatewayDep) -> Response:
    """Return a job with `config` (the TOML as sent), `resolved` (with every default) and each value's `origins`."""
    return await _job_response(gateway, await gateway.job(caller.org, job_id))


@router.get("/{job_id}/logs", summary="What the services logged about a job", responses=returns_list(LoggedLine))
async def job_logs(
    job_id: str,
    caller: CurrentKey,
    gateway: GatewayDep,
    since: Annotated[datetime | None, Query(description="Only lines that are not older")] = None,
) -> Response:
    """Return log lines of trainer, rollouts and inference, oldest first, without secrets.

    The lines of a running job arrive a few seconds late. Each process stores its last lines about the job
    (`SYNTH_JOB_LOG_BYTES`).
    """
    row = await gateway.job(caller.org, job_id)
    return list_response(await read_lines(gateway.blobs, row.job.id, since and since.astimezone(UTC)))


@router.delete("/{job_id}", summary="Delete a job that has ended", responses=returns(Deleted))
async def delete(job_id: str, caller: CurrentKey, gateway: GatewayDep) -> Response:
    """Delete a job at once, with its rollouts, checkpoints and model.

    Their bytes are removed when no job and no model needs them. Repeating the request changes nothing. A job that has
    not ended returns 409: cancel it first.
    """
    await delete_job(gateway, caller, job_id)
    return json_response(Deleted(id=job_id, object="job"))


@router.post("/{job_id}/cancel", status_code=202, summary="Cancel a job", responses=_CHANGED)
async def cancel(job_id: str, caller: CurrentKey, gateway: GatewayDep) -> Response:
    """Withdraw a job that has no owner yet, or request that its owner stop it. Repeating it changes nothing."""
    return await _job_response(gateway, await cancel_job(gateway, caller, job_id), 202)


@router.post("/{job_id}/pause", status_code=202, summary="Pause a job that runs", responses=_CHANGED)
async def pause(job_id: str, caller: CurrentKey, gateway: GatewayDep) -> Response:
    """Pause a job: its owner releases it, and its workers can take other jobs. Repeating it changes nothing."""
    return await _job_response(gateway, await pause_job(gateway, caller, job_id), 202)


@router.post("/{job_id}/resume", status_code=202, summary="Resume a paused or failed job", responses=_CHANGED)
async def resume(job_id: str, caller: CurrentKey, gateway: GatewayDep) -> Response:
    """Resume a job from its last checkpoint. Repeating it changes nothing.

    For a failed job the response is a new job that continues it, with the same configuration and `linked_job_id`.
    """
    return await _job_response(gateway, await resume_job(gateway, caller, job_id), 202)


@router.get("/{job_id}/checkpoints", summary="A job's checkpoints, newest first", responses=returns_list(Checkpoint))
async def checkpoints(job_id: str, caller: CurrentKey, gateway: GatewayDep) -> Response:
    """List the checkpoints that exist. Use a checkpoint's `model` to serve, evaluate or train from it."""
    await gateway.job(caller.org, job_id)
    return list_response(gateway.read_model.checkpoints(job_id))


@router.get("/{job_id}/metrics", summary="A job's metrics by step", responses=returns(Points))
async def metrics(
    job_id: str,
    caller: CurrentKey,
    gateway: GatewayDep,
    after_step: Annotated[int, Query(ge=-1, le=1 << 53)] = -1,
    name: str | None = None,
    limit: Annotated[int, Query(ge=1, le=MAX_STEPS, description="Steps, each with all its values")] = 2000,
) -> Response:
    """Return every value of `train.step`, and the values of evaluations as `eval.…`.

    A page has at most 10,000 values, or those of one step. If `more` is true, continue with `after_step`.
    """
    await gateway.job(caller.org, job_id)
    points, more = gateway.read_model.points(job_id, after_step=after_step, name=name, steps=limit)
    return json_response(Points(points=points, more=more))


def _tags(wanted: list[str]) -> dict[str, str]:
    tags: dict[str, str] = {}
    for text in wanted:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UserError(f"{text[:100]!r} is no tag", expected="name=value", where="query tag")
        if tags.setdefault(name, value) != value:
            what = f"a job has one value of the tag {name[:100]!r}"
            raise UserError(what, expected="each tag once", where="query tag")
    return tags


async def _job_response(gateway: Gateway, row: JobRow, status: int = 200) -> Response:
    return json_response(await _with_config(gateway, row), status)


async def _with_config(gateway: Gateway, row: JobRow) -> JobWithConfig:
    texts = await gateway.texts(row.job.id)
    validated = (texts.validated if texts else None) or {}
    return JobWithConfig(
        **msgspec.structs.asdict(gateway.queue.show(row)),
        config=texts.config if texts else None,
        resolved=validated.get("job"),
        origins=validated.get("origins"),
    )
