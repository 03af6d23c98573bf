"""The Synth API's lists of jobs, and the times in its clients' requests."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from synth.api.limits import MAX_PAGE
from synth.bus.kv.secrets import ApiKey
from synth.errors import Problem
from synth.gateway.api.job_lists import find_jobs
from synth.gateway.api.openapi import json_response, returns
from synth.gateway.api.synth.schemas import SynthJobs
from synth.gateway.api.synth.views import job_view
from synth.gateway.auth import CurrentKey
from synth.gateway.deps import Gateway, GatewayDep
from synth.gateway.errors import ApiError
from synth.gateway.presentation.vocabulary import STATUS
from synth.gateway.read_model.filters import JobFilter

router = APIRouter(tags=["synth api"])

_KINDS = {"sft_offline": "sft", "sft": "sft", "rl_online": "rl", "rl": "rl", "eval": "eval"}
# The range of nanoseconds in 64 bits.
_EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST = datetime(2262, 1, 1, tzinfo=UTC)


class Filters(BaseModel):
    """The filters of a list of jobs. A time is ISO 8601, or seconds since 1970."""

    status: Literal["queued", "running", "succeeded", "failed", "cancelled"] | None = None
    type: Literal["sft_offline", "sft_online", "rl_online", "dpo", "sft", "rl", "eval"] | None = None
    created_after: str | None = None
    created_before: str | None = None
    model: str | None = Field(default=None, description="Trained or made, a checkpoint too")
    file_id: str | None = Field(default=None, description="Trained or validated on")
    limit: int = Field(default=20, ge=1, le=100_000, description="200 at most are given")
    after: str | None = Field(default=None, description="Go on after this job id")


FilterQuery = Annotated[Filters, Query()]


@router.get("/learning/jobs", summary="Jobs of every kind, newest first", responses=returns(SynthJobs))
async def jobs(filters: FilterQuery, caller: CurrentKey, gateway: GatewayDep) -> Response:
    """List jobs of every kind, without their configurations."""
    return await _list_jobs(gateway, caller, filters, None)


@router.get("/rl/jobs", summary="RL jobs, newest first", responses=returns(SynthJobs))
async def rl_jobs(filters: FilterQuery, caller: CurrentKey, gateway: GatewayDep) -> Response:
    """List RL jobs without their configurations."""
    return await _list_jobs(gateway, caller, filters, "rl")


@router.get("/sft/jobs", summary="SFT jobs, newest first", responses=returns(SynthJobs))
async def sft_jobs(filters: FilterQuery, caller: CurrentKey, gateway: GatewayDep) -> Response:
    """List SFT jobs without their configurations."""
    return await _list_jobs(gateway, caller, filters, "sft")


def parse_time(name: str, text: str | None) -> datetime | None:
    """Parse a client's time, UTC without a zone, clamped to what 64-bit nanoseconds hold. Raises a 400."""
    if text is None:
        return None
    try:
        try:
            given = datetime.fromtimestamp(float(text), UTC)
        except ValueError:
            # A plus that is not quoted in the URL arrives as a space.
            given = datetime.fromisoformat(text.strip().replace(" ", "+") if "T" in text else text)
            given = given if given.tzinfo else given.replace(tzinfo=UTC)
        return min(max(given, _EARLIEST), _LATEST)
    except (ValueError, OverflowError, OSError) as error:
        problem = Problem(
            what=f"{text[:60]!r} is no moment",
            expected="ISO 8601, such as 2026-11-21T09:00:00Z, or seconds since 1970",
            where=f"query {name}",
        )
        raise ApiError(400, problem.text(), param=name, problems=[problem]) from error


async def _list_jobs(gateway: Gateway, caller: ApiKey, filters: Filters, kind: str | None) -> Response:
    kinds = None if kind is None else {kind}
    if filters.type is not None:
        of_type = {_KINDS[filters.type]} if filters.type in _KINDS else set[str]()
        kinds = of_type if kinds is None else of_type & kinds
    wanted = JobFilter(
        states=None if filters.status is None else [s for s, words in STATUS.items() if words.synth == filters.status],
        kinds=kinds,
        created_after=parse_time("created_after", filters.created_after),
        created_before=parse_time("created_before", filters.created_before),
        uses=[name for name in (filters.model, filters.file_id) if name is not None],
    )
    limit = min(filters.limit, MAX_PAGE)
    rows, more = await find_jobs(gateway, caller.org, limit=limit, wanted=wanted, after=filters.after)
    return json_response(SynthJobs(jobs=[job_view(row) for row in rows], has_more=more))
