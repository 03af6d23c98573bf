"""The Synth API's routes that create a job. A job starts by itself, so `/start` changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Header, Request
from starlette.responses import Response

from synth.api.limits import MAX_IDEMPOTENCY_KEY
from synth.bus.kv.secrets import ApiKey
from synth.errors import Problem
from synth.gateway.api.openapi import Responses, json_response, returns
from synth.gateway.api.synth.payloads import JobRequest, read_rl_job, read_sft_job
from synth.gateway.api.synth.schemas import SynthJob
from synth.gateway.api.synth.views import job_view
from synth.gateway.auth import CurrentKey
from synth.gateway.commands.environment_keys import store_environment_key
from synth.gateway.commands.submit import submit_job
from synth.gateway.deps import Gateway, GatewayDep
from synth.gateway.errors import ApiError
from synth.gateway.passage import PassageDep
from synth.outbound.http_guard import origin_of

router = APIRouter(tags=["synth api"])

_ANSWERS: Responses = returns(SynthJob, status=201) | returns(SynthJob, "The same job")
_BODY: dict[str, Any] = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}
}

Key = Annotated[str | None, Header(alias="Idempotency-Key", min_length=1, max_length=MAX_IDEMPOTENCY_KEY)]


@router.post("/rl/jobs", status_code=201, summary="Create an RL job", responses=_ANSWERS, openapi_extra=_BODY)
async def create_rl_job(
    request: Request, caller: CurrentKey, gateway: GatewayDep, passage: PassageDep, key: Key = None
) -> Response:
    """Create an RL job. The same `Idempotency-Key` returns the same job.

    `data.config` is the whole TOML; `data.model` and `data.endpoint_base_url` override its values.
    """
    job = await _read(request, gateway, caller, read_rl_job)
    if job.environment_key is not None:
        url = job.created.task_url
        # The validator reports an invalid address, so that the response does not depend on the key in the request.
        url = url if url is not None and origin_of(url) else None
        passage.about = (await store_environment_key(gateway, caller, job.environment_key, url=url)).id
    return await _submit(gateway, caller, job, route="/api/rl/jobs", key=key)


@router.post("/learning/jobs", status_code=201, summary="Create an SFT job", responses=_ANSWERS, openapi_extra=_BODY)
@router.post("/sft/jobs", status_code=201, summary="Create an SFT job", responses=_ANSWERS, openapi_extra=_BODY)
async def create_sft_job(request: Request, caller: CurrentKey, gateway: GatewayDep, key: Key = None) -> Response:
    """Create an SFT job from `model`, `training_file_id` (or `training_file`), `hyperparameters` and `metadata`.

    The tables of the client's TOML are in `metadata.effective_config`.
    """
    job = await _read(request, gateway, caller, read_sft_job)
    for name, file in (("training_file", job.created.training_file), ("validation_file", job.created.validation_file)):
        _reject_failed_file(gateway, caller.org, name, file)
    return await _submit(gateway, caller, job, route="/api/learning/jobs", key=key)


async def _read(request: Request, gateway: Gateway, caller: ApiKey, read: Callable[[bytes], JobRequest]) -> JobRequest:
    """Read a body, a large one in a worker process: its TOML may take seconds."""
    body = await request.body()
    return await gateway.service.off_loop.process(read, body, org=caller.org, size=len(body), task="read the job")


async def _submit(gateway: Gateway, caller: ApiKey, job: JobRequest, *, route: str, key: str | None) -> Response:
    created = msgspec.structs.replace(job.created, created_by=caller.key_id)
    row, new = await submit_job(gateway, caller.org, created, route=route, key=key)
    return json_response(job_view(row, created.config), 201 if new else 200)


def _reject_failed_file(gateway: Gateway, org: str, name: str, id: str | None) -> None:
    """Raise a 400 with the invalid lines of a file. A file that is still being checked is not refused."""
    row = gateway.read_model.file(org, id) if id else None
    if row is None or row.file.status != "failed":
        return
    lines = [
        Problem(what=line.reason, where=f"{row.file.filename}:{line.line} {line.path}") for line in row.file.problems
    ]
    summary = Problem(
        what=f"{row.file.bad_lines} lines of {id} ({row.file.filename}) cannot be trained on",
        expected="JSONL of conversations",
        fix="mend the file and upload it again",
        where=name,
    )
    problems = [summary, *lines]
    raise ApiError(400, "\n".join(p.text() for p in problems), param=name, problems=problems)
