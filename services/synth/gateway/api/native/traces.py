"""Routes of traces: pages of an organisation's or a job's traces, and one trace in our or the published format."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Annotated, Any, cast

import msgspec
from fastapi import APIRouter, Query
from starlette.responses import Response

from synth.api.rollouts import RolloutMode
from synth.api.traces import TraceDetail, TraceFormat, TracePage, TraceSort
from synth.blobs import BlobMissing, BlobStore
from synth.errors import Problem
from synth.events import BlobRef
from synth.gateway.api.openapi import json_response, returns
from synth.gateway.api.parameters import PageLimit
from synth.gateway.auth import CurrentKey
from synth.gateway.deps import GatewayDep
from synth.gateway.errors import ApiError
from synth.gateway.read_model.event_log import MAX_SEQUENCE_DIGITS
from synth.gateway.read_model.tables.traces import TraceFilter, TraceRow, find_trace, page_of_traces
from synth.traces.v3 import v3_trace

router = APIRouter(prefix="/api/traces", tags=["traces"])

_MAX_NUMBER = 1 << 53
#: The most jobs in one request, because the length of a URL is limited.
_MAX_JOBS = 32


@router.get("", summary="Traces", responses=returns(TracePage))
async def list_traces(
    caller: CurrentKey,
    gateway: GatewayDep,
    job: Annotated[list[str] | None, Query(max_length=_MAX_JOBS, description="Of this job; repeatable")] = None,
    mode: RolloutMode | None = None,
    model: Annotated[str | None, Query(description="Of jobs with this source model")] = None,
    env_name: Annotated[str | None, Query(description="Of jobs with this environment")] = None,
    seed: Annotated[int | None, Query(ge=-_MAX_NUMBER, le=_MAX_NUMBER)] = None,
    min_reward: Annotated[float | None, Query(allow_inf_nan=False)] = None,
    max_reward: Annotated[float | None, Query(allow_inf_nan=False)] = None,
    since: Annotated[datetime | None, Query(description="Not before this time; UTC where it names no zone")] = None,
    until: Annotated[datetime | None, Query(description="Not after this time")] = None,
    sort: TraceSort = "newest",
    limit: PageLimit = 20,
    after: Annotated[str | None, Query(description="Go on behind a page, by its `next`")] = None,
) -> Response:
    """List the rollouts of an organisation, or of some of its jobs, that were kept whole.

    The rollouts of every evaluation are kept. Continue with `?after=<next>` and the same parameters until `next` is
    null: a page may have fewer than `limit` traces.
    """
    for id in job or ():
        await gateway.job(caller.org, id)
    if after is not None and not (after.isascii() and after.isdigit() and len(after) <= MAX_SEQUENCE_DIGITS):
        problem = Problem(what=f"after is {after[:60]!r}", expected="the `next` of a page", where="after")
        raise ApiError(422, problem.text(), param="after", problems=[problem])
    wanted = TraceFilter(
        jobs=job,
        mode=mode,
        model=model,
        env_name=env_name,
        seed=seed,
        min_reward=min_reward,
        max_reward=max_reward,
        since=_in_utc(since),
        until=_in_utc(until),
    )
    cursor = None if after is None else int(after)
    result = page_of_traces(gateway.read_model.db, caller.org, wanted, sort=sort, limit=limit, after=cursor)
    following = None if result.next is None else str(result.next)
    page = TracePage(data=[row.trace for row in result.rows], has_more=following is not None, next=following)
    return json_response(page)


@router.get("/{trace_id}", summary="One trace, whole", responses=returns(TraceDetail))
async def get_trace(
    trace_id: str,
    caller: CurrentKey,
    gateway: GatewayDep,
    format: Annotated[TraceFormat, Query(description="`v3`: as the published clients store traces")] = "synth",
) -> Response:
    """Return a trace: its transcript, its task app's answer, its reward, and its judges' reviews.

    As `v3` it is a session trace: `session_id`, `created_at`, `event_history`, `markov_blanket_message_history`,
    `metadata`. An expired trace returns 410 in that format.
    """
    row = find_trace(gateway.read_model.db, caller.org, trace_id)
    if row is None:
        raise _no_trace(trace_id)
    detail = await _read(gateway.blobs, row)
    if format == "synth":
        return json_response(detail)
    if detail.transcript is None:
        raise ApiError(410, f"{trace_id}: {detail.note}", code="trace_expired")
    return json_response(await asyncio.to_thread(_as_v3, detail))


def _as_v3(detail: TraceDetail) -> dict[str, Any]:
    return v3_trace(msgspec.json.decode(msgspec.json.encode(detail), type=TraceDetail))


async def _read(blobs: BlobStore, row: TraceRow) -> TraceDetail:
    """Return the trace with its blobs as they were written: they may be large, and are not decoded here."""
    transcript, review = await asyncio.gather(_body(blobs, row.transcript), _body(blobs, row.review))
    expired = row.trace.expired or transcript is None
    note = "its transcript has expired: the cluster's operator says for how long traces are kept" if expired else ""
    facts = msgspec.structs.asdict(row.trace)
    facts["expired"] = expired
    raw = [None if body is None or expired else cast(Any, msgspec.Raw(body)) for body in (transcript, review)]
    return TraceDetail(**facts, transcript=raw[0], review=raw[1], note=note)


async def _body(blobs: BlobStore, ref: BlobRef | None) -> bytes | None:
    try:
        return None if ref is None else await blobs.get_bytes(ref)
    except BlobMissing:
        return None


def _in_utc(moment: datetime | None) -> datetime | None:
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment


def _no_trace(id: str) -> ApiError:
    problem = Problem(
        what=f"there is no trace {id[:120]!r}",
        expected="the whole id of a rollout that was kept, such as job_…_e0_17",
        fix="`synthctl traces ls` shows them; of training, only a share is kept",
        where="trace_id",
    )
    return ApiError(404, problem.text(), code="trace_not_found", problems=[problem])
