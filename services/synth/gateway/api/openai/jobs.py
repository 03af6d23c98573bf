"""Routes that create, list, show and control fine-tuning jobs, with their events and checkpoints."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from synth.api.fine_tuning.request import FineTuningRequest
from synth.api.fine_tuning.translate import SEEDS, is_graded
from synth.api.schemas import File
from synth.bus.kv.secrets import ApiKey
from synth.datasets.refused import prompts_refused, rows_refused
from synth.errors import Problem, UserError
from synth.events import JobCreated
from synth.gateway.api.job_lists import find_jobs
from synth.gateway.api.openai.events import FineTuningEvent, event_object, parse_event_id, read_newest_first
from synth.gateway.api.openai.files import page_response
from synth.gateway.api.openai.resolving import CONFIG_NAME, check_grader, read_request, resolve_rows
from synth.gateway.api.openai.views import (
    FineTuningCheckpoint,
    FineTuningJob,
    checkpoint_object,
    file_problems,
    job_object,
    method_of,
    suffix_of,
)
from synth.gateway.api.openapi import json_response, returns, returns_list
from synth.gateway.api.pagination import items_after
from synth.gateway.api.parameters import PAIR_OF_METADATA, IdempotencyKey
from synth.gateway.auth import CurrentKey
from synth.gateway.commands.control import cancel_job, pause_job, resume_job
from synth.gateway.commands.submit import submit_job
from synth.gateway.deps import Gateway, GatewayDep
from synth.gateway.errors import ApiError, not_found
from synth.gateway.presentation.vocabulary import STATUS
from synth.gateway.read_model.filters import JobFilter
from synth.gateway.read_model.projection import JobRow
from synth.jobs.lifecycle import State

router = APIRouter(tags=["openai"])

_ROUTE = "/v1/fine_tuning/jobs"
_KINDS = ("sft", "rl")
_Limit = Annotated[int, Query(ge=1, le=100)]
_After = Annotated[str | None, Query(description="Go on after this id")]


@router.post("/fine_tuning/jobs", summary="Create a fine-tuning job", responses=returns(FineTuningJob))
async def create(
    request: Request,
    body: FineTuningRequest,
    caller: CurrentKey,
    gateway: GatewayDep,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Create a job: supervised or DPO on a file, or reinforcement on a file of prompts with a grader or on seeds.

    The seeds are a task app's. One 400 reports every problem of the request.
    """
    size = len(await request.body())
    rows = await _prompt_rows(gateway, caller.org, body, size=size) if is_graded(body) else {}
    try:
        read = await read_request(gateway, caller.org, body, rows, size=size)
    except UserError as error:
        raise _bad_request(error.problems) from error
    problems = await _files(gateway, caller.org, body) if read.kind == "sft" else []
    bad_files = {problem.where for problem in problems}
    problems += [problem for problem in read.problems if problem.where not in bad_files]
    if problems:
        raise _bad_request(problems)
    created = JobCreated(
        config=read.config.decode(),
        config_name=CONFIG_NAME,
        config_format="json",
        kind=read.kind,
        metadata=dict(body.metadata or {}),
        model=body.model,
        training_file=body.training_file,
        validation_file=body.validation_file,
        allow_experimental=body.allow_experimental,
        body_sha256="",
        created_by=caller.key_id,
    )
    row, _ = await submit_job(gateway, caller.org, created, route=_ROUTE, key=idempotency_key)
    return await _job_response(gateway, row)


@router.get("/fine_tuning/jobs", summary="List fine-tuning jobs, newest first", responses=returns_list(FineTuningJob))
async def list_jobs(
    request: Request,
    caller: CurrentKey,
    gateway: GatewayDep,
    limit: _Limit = 20,
    after: _After = None,
    metadata: Annotated[str | None, Query(description="A pair, as `metadata[name]=value`")] = None,
) -> Response:
    """List the jobs of every API. `metadata[name]=value` returns only jobs with this pair."""
    if after:
        await _job(gateway, caller, after)
    pairs = {pair[1]: value for key, value in request.query_params.items() if (pair := PAIR_OF_METADATA.fullmatch(key))}
    if metadata is not None:
        problem = Problem(
            what="a filter by all metadata at once", expected="metadata[name]=value", where="query.metadata"
        )
        raise ApiError(400, problem.text(), param="metadata", problems=[problem])
    wanted = JobFilter(kinds=_KINDS, metadata=pairs)
    rows, more = await find_jobs(gateway, caller.org, limit=limit, wanted=wanted, after=after)
    resolved = await resolve_rows(gateway, caller.org, rows)
    return page_response([job_object(*each) for each in zip(rows, resolved, strict=True)], more=more)


@router.get("/fine_tuning/jobs/{job_id}", summary="One fine-tuning job", responses=returns(FineTuningJob))
async def get_job(job_id: str, caller: CurrentKey, gateway: GatewayDep) -> Response:
    """Return a job, with the hyperparameters that it uses."""
    return await _job_response(gateway, await _job(gateway, caller, job_id))


@router.post("/fine_tuning/jobs/{job_id}/cancel", summary="Cancel a job", responses=returns(FineTuningJob))
async def cancel(job_id: str, caller: CurrentKey, gateway: GatewayDep) -> Response:
    """Cancel a job. A job that has ended returns 409."""
    await _job(gateway, caller, job_id)
    return await _job_response(gateway, await cancel_job(gateway, caller, job_id, named=_status))


@router.post("/fine_tuning/jobs/{job_id}/pause", summary="Pause a job that runs", responses=returns(FineTuningJob))
async def pause(job_id: str, caller: CurrentKey, gateway: GatewayDep) -> Response:
    """Pause a job. Its workers can take other jobs until it is resumed."""
    await _job(gateway, caller, job_id)
    return await _job_response(gateway, await pause_job(gateway, caller, job_id, named=_status))


@router.post("/fine_tuning/jobs/{job_id}/resume", summary="Resume a paused job", responses=returns(FineTuningJob))
async def resume(job_id: str, caller: CurrentKey, gateway: GatewayDep) -> Response:
    """Resume a job from its last checkpoint. For a failed job the response is a new job that continues it."""
    await _job(gateway, caller, job_id)
    return await _job_response(gateway, await resume_job(gateway, caller, job_id, named=_status))


@router.get(
    "/fine_tuning/jobs/{job_id}/events", summary="A job's events, newest first", responses=returns_list(FineTuningEvent)
)
async def events(
    job_id: str, caller: CurrentKey, gateway: GatewayDep, limit: _Limit = 20, after: _After = None
) -> Response:
    """List a job's events. `metrics` are of a training step or an evaluation; `after` continues to older events."""
    row = await _job(gateway, caller, job_id)
    before = parse_event_id(after) if after else None
    if after and before is None:
        raise not_found("event", after)
    within = gateway.settings.log_read_s
    result, more = await read_newest_first(gateway.bus, row, before=before, limit=limit, within=within)
    [resolved] = await resolve_rows(gateway, row.org, [row])
    suffix, method = suffix_of(row.job, resolved), method_of(resolved)
    return page_response([event_object(event, method, suffix=suffix) for event in result], more=more)


@router.get(
    "/fine_tuning/jobs/{job_id}/checkpoints",
    summary="A job's checkpoints, newest first",
    responses=returns_list(FineTuningCheckpoint),
)
async def checkpoints(
    job_id: str, caller: CurrentKey, gateway: GatewayDep, limit: _Limit = 10, after: _After = None
) -> Response:
    """List the checkpoints that exist. Each serves under its `fine_tuned_model_checkpoint`."""
    await _job(gateway, caller, job_id)
    result = [checkpoint_object(checkpoint) for checkpoint in gateway.read_model.checkpoints(job_id)]
    result = items_after(result, after, kind="checkpoint", id_of=lambda checkpoint: checkpoint.id)
    return page_response(result[:limit], more=len(result) > limit)


async def _job(gateway: Gateway, caller: ApiKey, id: str) -> JobRow:
    """Return a training job of this organisation. Raises a 404, for an evaluation too."""
    row = await gateway.job(caller.org, id)
    if row.job.kind == "eval":
        raise not_found("job", id)
    return row


def _status(state: State) -> str:
    """Return the name of a state in this API."""
    return STATUS[state].openai


async def _job_response(gateway: Gateway, row: JobRow) -> Response:
    [resolved] = await resolve_rows(gateway, row.org, [row])
    return json_response(job_object(row, resolved))


async def _uploaded(
    gateway: Gateway, org: str, body: FineTuningRequest, problems: list[Problem], *, graded: bool
) -> AsyncIterator[tuple[str, File]]:
    """Yield the fields that name files of a request, and the files. Adds the problems of missing and invalid files."""
    for param, id in (("training_file", body.training_file), ("validation_file", body.validation_file)):
        if id is None:
            continue
        if graded and id.startswith(SEEDS):
            what = f"{id[:80]!r} are seeds of a task app, and a grader pays rows of a file"
            problems.append(Problem(what=what, expected="the id of an uploaded file of prompts", where=param))
            continue
        try:
            file = (await gateway.file(org, id)).file
        except ApiError:
            what = f"there is no file {id[:120]!r}"
            problems.append(Problem(what=what, fix="upload it with client.files.create", where=param))
            continue
        if file.status == "failed":
            what = f"{file.filename!r} cannot be trained on: {file_problems(file)}"
            problems.append(Problem(what=what, fix="mend the file, and upload it again", where=param))
        else:
            yield param, file


async def _files(gateway: Gateway, org: str, body: FineTuningRequest) -> list[Problem]:
    """Return the problems of the request's files: missing, or not fit to train on. A file in a check has none."""
    problems: list[Problem] = []
    dpo = body.method is not None and body.method.type == "dpo"
    async for param, file in _uploaded(gateway, org, body, problems, graded=False):
        if file.status == "ready":
            shapes = {"pairs": bool(file.pairs), "unanswered": bool(file.unanswered)}
            wrong = rows_refused(file.filename, **shapes, dpo=dpo, where=param)
            problems += [wrong] if wrong else []
    return problems


async def _prompt_rows(gateway: Gateway, org: str, body: FineTuningRequest, *, size: int) -> dict[str, int]:
    """Return the number of rows of a graded job's files, by field. Raises a 400 if a file or the grader is invalid."""
    problems = await check_grader(gateway, org, body, size=size)
    rows: dict[str, int] = {}
    async for param, file in _uploaded(gateway, org, body, problems, graded=True):
        if file.status != "ready":
            what = f"{file.filename!r} is still being checked, and how long the job is follows from its rows"
            fix = "wait with client.files.wait_for_processing, then create the job"
            problems.append(Problem(what=what, expected="a file that is processed", fix=fix, where=param))
        else:
            rows[param] = file.rows or 0
            counts = {"rows": rows[param], "prompts": file.prompts or 0, "images": file.images or 0}
            wrong = prompts_refused(file.filename, **counts, last=-1, where=param)
            problems += [wrong] if wrong else []
    if problems:
        raise _bad_request(problems)
    return rows


def _bad_request(problems: list[Problem]) -> ApiError:
    place = problems[0].where
    param = place if re.fullmatch(r"[\w.]+", place) else None
    code = "invalid_file" if param in ("training_file", "validation_file") else "invalid_value"
    return ApiError(400, "\n".join(p.text() for p in problems), param=param, code=code, problems=problems)
