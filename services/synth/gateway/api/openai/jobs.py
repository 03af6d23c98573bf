"""Fine-tuning jobs: create, list, look at, steer, their events and checkpoints."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response

from synth.bus.kv.secrets import ApiKey
from synth.errors import Problem, UserError
from synth.events import JobCreated
from synth.gateway.api.openai.configs import Submission, in_words_of_the_request, submission_of
from synth.gateway.api.openai.events import FineTuningEvent, event_object, newest_first, sequence_of
from synth.gateway.api.openai.files import page
from synth.gateway.api.openai.requests import FineTuningRequest
from synth.gateway.api.openai.views import (
    FineTuningCheckpoint,
    FineTuningJob,
    checkpoint_object,
    file_problems,
    job_object,
    suffix_of,
)
from synth.gateway.api.openapi import json_response, many, one
from synth.gateway.api.pagination import after_id
from synth.gateway.auth import Caller
from synth.gateway.commands.control import cancel_job, pause_job, resume_job
from synth.gateway.commands.submit import submit_job
from synth.gateway.deps import Gateway, Parts
from synth.gateway.errors import ApiError, not_found
from synth.gateway.read_model.filters import JobFilter
from synth.gateway.read_model.projection import JobRow
from synth.jobs.parse.toml import read_data
from synth.jobs.resolve.job import Overrides, resolve_job
from synth.jobs.resolved import EvalJob, RlJob, SftJob, job_from_data

router = APIRouter(tags=["openai"])

_ROUTE = "/v1/fine_tuning/jobs"
_NAME = "fine_tuning.job"
_KINDS = ("sft", "rl")
_METADATA = re.compile(r"metadata\[(.+)\]")
_Limit = Annotated[int, Query(ge=1, le=100)]
_After = Annotated[str | None, Query(description="Go on after this id")]


@router.post("/fine_tuning/jobs", summary="Create a fine-tuning job", responses=one(FineTuningJob))
async def create(
    body: FineTuningRequest,
    caller: Caller,
    parts: Parts,
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=255)] = None,
) -> Response:
    """Supervised on an uploaded file, or by reinforcement on seeds of a task app, which the method's grader names.

    Everything that is wrong with the request is one 400.
    """
    try:
        submission = submission_of(body)
    except UserError as error:
        raise _refused(error.problems) from error
    problems = await _files(parts, caller.org, body) if submission.kind == "sft" else []
    bad_files = {problem.where for problem in problems}
    problems += [p for p in _configuration(parts, body, submission) if p.where not in bad_files]
    if problems:
        raise _refused(problems)
    created = JobCreated(
        config=msgspec.json.encode(submission.config).decode(),
        config_name=_NAME,
        config_format="json",
        kind=submission.kind,
        metadata=dict(body.metadata or {}),
        model=body.model,
        training_file=body.training_file,
        validation_file=body.validation_file,
        allow_experimental=body.allow_experimental,
        body_sha256="",
        created_by=caller.key_id,
    )
    row, _ = await submit_job(parts, caller.org, created, route=_ROUTE, key=idempotency_key)
    return _shown(parts, row)


@router.get("/fine_tuning/jobs", summary="List fine-tuning jobs, newest first", responses=many(FineTuningJob))
async def list_jobs(
    request: Request, caller: Caller, parts: Parts, limit: _Limit = 20, after: _After = None
) -> Response:
    """However they were submitted. `metadata[name]=value` keeps those with this pair."""
    before = (await _job(parts, caller, after)).created_seq if after else None
    metadata = {found[1]: value for key, value in request.query_params.items() if (found := _METADATA.fullmatch(key))}
    if "metadata" in request.query_params:
        problem = Problem(
            what="a filter by all metadata at once", expected="metadata[name]=value", where="query.metadata"
        )
        raise ApiError(400, problem.text(), param="metadata", problems=[problem])
    wanted = JobFilter(kinds=_KINDS, metadata=metadata)
    rows = parts.model.jobs(caller.org, limit=limit + 1, wanted=wanted, before=before)
    return page([job_object(row, _resolved(parts, row)) for row in rows[:limit]], more=len(rows) > limit)


@router.get("/fine_tuning/jobs/{job_id}", summary="One fine-tuning job", responses=one(FineTuningJob))
async def get_job(job_id: str, caller: Caller, parts: Parts) -> Response:
    """The job, with its hyperparameters as they are used."""
    return _shown(parts, await _job(parts, caller, job_id))


@router.post("/fine_tuning/jobs/{job_id}/cancel", summary="Cancel a job", responses=one(FineTuningJob))
async def cancel(job_id: str, caller: Caller, parts: Parts) -> Response:
    """A job that has ended is a 409."""
    await _job(parts, caller, job_id)
    return _shown(parts, await cancel_job(parts, caller, job_id))


@router.post("/fine_tuning/jobs/{job_id}/pause", summary="Pause a job that runs", responses=one(FineTuningJob))
async def pause(job_id: str, caller: Caller, parts: Parts) -> Response:
    """Its workers are free for others until it is resumed."""
    await _job(parts, caller, job_id)
    return _shown(parts, await pause_job(parts, caller, job_id))


@router.post("/fine_tuning/jobs/{job_id}/resume", summary="Resume a paused job", responses=one(FineTuningJob))
async def resume(job_id: str, caller: Caller, parts: Parts) -> Response:
    """It goes on from its last checkpoint."""
    await _job(parts, caller, job_id)
    return _shown(parts, await resume_job(parts, caller, job_id))


@router.get(
    "/fine_tuning/jobs/{job_id}/events", summary="A job's events, newest first", responses=many(FineTuningEvent)
)
async def events(job_id: str, caller: Caller, parts: Parts, limit: _Limit = 20, after: _After = None) -> Response:
    """`metrics` are those of a training step or an evaluation; `after` goes on to older ones."""
    row = await _job(parts, caller, job_id)
    before = sequence_of(after) if after else None
    if after and before is None:
        raise not_found("event", after)
    found, more = await newest_first(parts.bus, row, before=before, limit=limit)
    suffix = suffix_of(row.job, _resolved(parts, row))
    return page([event_object(event, suffix=suffix) for event in found], more=more)


@router.get(
    "/fine_tuning/jobs/{job_id}/checkpoints",
    summary="A job's checkpoints, newest first",
    responses=many(FineTuningCheckpoint),
)
async def checkpoints(job_id: str, caller: Caller, parts: Parts, limit: _Limit = 10, after: _After = None) -> Response:
    """Those that are still there: each serves under its `fine_tuned_model_checkpoint`."""
    await _job(parts, caller, job_id)
    found = [checkpoint_object(checkpoint) for checkpoint in parts.model.checkpoints(job_id)]
    found = after_id(found, after, kind="checkpoint", id_of=lambda checkpoint: checkpoint.id)
    return page(found[:limit], more=len(found) > limit)


async def _job(parts: Gateway, caller: ApiKey, id: str) -> JobRow:
    """A training job of this organisation. Raises a 404, for an evaluation too."""
    row = await parts.job(caller.org, id)
    if row.job.kind == "eval":
        raise not_found("job", id)
    return row


def _shown(parts: Gateway, row: JobRow) -> Response:
    return json_response(job_object(row, _resolved(parts, row)))


def _resolved(parts: Gateway, row: JobRow) -> SftJob | RlJob | None:
    """The job with every default applied: as it was validated, or as it will be when it came through this API."""
    texts = parts.model.texts(row.job.id)
    if texts is None:
        return None
    try:
        if texts.validated is not None:
            job = job_from_data(texts.validated["job"])
        elif row.job.name == _NAME:
            document = read_data(msgspec.json.decode(texts.config), name=_NAME)
            job = resolve_job(document, overrides=Overrides(allow_experimental=True), registry=parts.registry).job
        else:
            return None
    except (msgspec.DecodeError, UserError):
        return None  # another version's job, or one that is about to be rejected
    return None if isinstance(job, EvalJob) else job


def _configuration(parts: Gateway, body: FineTuningRequest, submission: Submission) -> list[Problem]:
    """All that the validator would refuse, in the words of the request."""
    overrides = Overrides(allow_experimental=body.allow_experimental)
    try:
        document = read_data(submission.config, name=_NAME)
        resolve_job(document, overrides=overrides, registry=parts.registry, kind=submission.kind)
    except UserError as error:
        return [in_words_of_the_request(problem) for problem in error.problems]
    return []


async def _files(parts: Gateway, org: str, body: FineTuningRequest) -> list[Problem]:
    """A file that is not there, or that cannot be trained on; one that is still checked is waited for."""
    problems: list[Problem] = []
    for param, id in (("training_file", body.training_file), ("validation_file", body.validation_file)):
        if id is None:
            continue
        try:
            row = await parts.file(org, id)
        except ApiError:
            what = f"there is no file {id[:120]!r}"
            problems.append(Problem(what=what, fix="upload it with client.files.create", where=param))
            continue
        if row.file.status == "failed":
            what = f"{row.file.filename!r} cannot be trained on: {file_problems(row.file)}"
            problems.append(Problem(what=what, fix="mend the file, and upload it again", where=param))
    return problems


def _refused(problems: list[Problem]) -> ApiError:
    place = problems[0].where
    param = place if re.fullmatch(r"[\w.]+", place) else None
    code = "invalid_file" if param in ("training_file", "validation_file") else "invalid_value"
    return ApiError(400, "\n".join(p.text() for p in problems), param=param, code=code, problems=problems)
