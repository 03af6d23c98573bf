"""Events: a job's and an organisation's, by page and as a stream."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from synth.gateway.api.openapi import json_response, one
from synth.gateway.api.sse import cursor_of, event_stream, wants_stream
from synth.gateway.auth import Caller
from synth.gateway.deps import Parts
from synth.gateway.read_model.event_log import EventPage, EventView, read_page, view_of

router = APIRouter(prefix="/api", tags=["events"])

After = Annotated[int | None, Query(ge=0, description="Only events with a greater `seq`")]


@router.get(
    "/jobs/{job_id}/events",
    summary="A job's events",
    responses=one(EventPage, "A page; or a stream, each of whose `data` is one of `events`"),
)
async def job_events(
    job_id: str,
    request: Request,
    caller: Caller,
    parts: Parts,
    after: After = None,
    limit: Annotated[int, Query(ge=1, le=2000)] = 200,
) -> Response:
    """A page `{events, last_seq, more}`; with `Accept: text/event-stream`, the past and then the present.

    The stream's ids are sequences: go on with `Last-Event-ID` or `?after=`. It ends with `event: end` after the
    job's last fact; asking again from there is a 204.
    """
    row = await parts.job(caller.org, job_id)
    cursor = cursor_of(request, after) or 0
    if wants_stream(request):
        if row.ended_seq is not None and cursor >= row.ended_seq:
            return Response(status_code=204)
        return event_stream(parts, caller, job_id=job_id, after=cursor)
    page = await read_page(parts.bus, f"*.*.{caller.org}.{job_id}", after=cursor, limit=limit)
    last_seq = page.events[-1].seq if page.events else cursor
    return json_response(EventPage(events=[view_of(e) for e in page.events], last_seq=last_seq, more=page.more))


@router.get("/events", summary="A stream of all of your organisation's events", responses=one(EventView))
async def all_events(request: Request, caller: Caller, parts: Parts, after: After = None) -> Response:
    """Server-sent events from now on, or from a sequence with `Last-Event-ID` or `?after=` (0: from the beginning)."""
    cursor = cursor_of(request, after)
    start = parts.model.applied if cursor is None else cursor
    return event_stream(parts, caller, job_id=None, after=start)
