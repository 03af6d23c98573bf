"""Events: a job's and an organisation's, by page and as a stream."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from synth.api.limits import MAX_EVENTS
from synth.api.schemas import EventPage, EventView
from synth.gateway.api.openapi import json_response, returns
from synth.gateway.api.sse import read_cursor, stream_response, wants_stream
from synth.gateway.auth import CurrentKey
from synth.gateway.deps import GatewayDep
from synth.gateway.read_model.event_log import read_page, to_view

router = APIRouter(prefix="/api", tags=["events"])

After = Annotated[int | None, Query(ge=0, description="Only events with a greater `seq`")]


@router.get(
    "/jobs/{job_id}/events",
    summary="A job's events",
    responses=returns(EventPage, "A page; or a stream, each of whose `data` is one of `events`"),
)
async def job_events(
    job_id: str,
    request: Request,
    caller: CurrentKey,
    gateway: GatewayDep,
    after: After = None,
    limit: Annotated[int, Query(ge=1, le=MAX_EVENTS)] = 200,
) -> Response:
    """A page `{events, last_seq, more}`; with `Accept: text/event-stream`, the past and then the present.

    The stream's ids are sequences: go on with `Last-Event-ID` or `?after=`. It ends with `event: end` after the
    job's last fact; asking again from there is a 204.
    """
    row = await gateway.job(caller.org, job_id)
    cursor = read_cursor(request, after) or 0
    if wants_stream(request):
        if row.ended_seq is not None and cursor >= row.ended_seq:
            return Response(status_code=204)
        return stream_response(gateway, caller, job_id=job_id, after=cursor)
    page = await read_page(gateway.bus, f"*.*.{caller.org}.{job_id}", after=cursor, limit=limit)
    last_seq = page.events[-1].seq if page.events else cursor
    return json_response(EventPage(events=[to_view(e) for e in page.events], last_seq=last_seq, more=page.more))


@router.get("/events", summary="A stream of all of your organisation's events", responses=returns(EventView))
async def all_events(request: Request, caller: CurrentKey, gateway: GatewayDep, after: After = None) -> Response:
    """Server-sent events from now on, or from a sequence with `Last-Event-ID` or `?after=` (0: from the beginning)."""
    cursor = read_cursor(request, after)
    start = gateway.read_model.applied if cursor is None else cursor
    return stream_response(gateway, caller, job_id=None, after=start)
