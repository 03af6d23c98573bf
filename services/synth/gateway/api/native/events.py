"""Routes of the events of a job or an organisation: pages, streams, and feeds on the bus."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from synth.api.limits import MAX_EVENTS
from synth.api.schemas import EventPage, EventView, Feed
from synth.bus.server.topology import EVENTS
from synth.errors import Problem
from synth.gateway.api.openapi import json_response, returns
from synth.gateway.api.sse import read_cursor, stream_response, wants_stream
from synth.gateway.auth import CurrentKey
from synth.gateway.deps import GatewayDep
from synth.gateway.errors import ApiError, unavailable
from synth.gateway.limits.admission import limit_reached
from synth.gateway.read_model.event_log import read_page, to_view
from synth.gateway.subscribers.feeds import end_feeds, open_feed

router = APIRouter(prefix="/api", tags=["events"])

_MAX_SEQ = 2**63 - 2

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
    """Return a page `{events, last_seq, more}`; with `Accept: text/event-stream`, stream past and then new events.

    The stream's ids are sequences: continue with `Last-Event-ID` or `?after=`. The stream ends with `event: end`
    after the job's last fact; a request that continues from there returns 204.
    """
    row = await gateway.job(caller.org, job_id)
    cursor = read_cursor(request, after) or 0
    if wants_stream(request):
        if row.ended_seq is not None and cursor >= row.ended_seq:
            return Response(status_code=204)
        return stream_response(gateway, caller, job_id=job_id, after=cursor)
    gateway.hub.note_asked(job_id)
    page = await read_page(gateway.bus, f"*.*.{caller.org}.{job_id}", after=cursor, limit=limit)
    last_seq = page.events[-1].seq if page.events else cursor
    return json_response(EventPage(events=[to_view(e) for e in page.events], last_seq=last_seq, more=page.more))


@router.get("/events", summary="A stream of all of your organisation's events", responses=returns(EventView))
async def all_events(request: Request, caller: CurrentKey, gateway: GatewayDep, after: After = None) -> Response:
    """Stream events from now on, or after the sequence of `Last-Event-ID` or `?after=` (0: from the beginning)."""
    cursor = read_cursor(request, after)
    start = gateway.read_model.applied if cursor is None else cursor
    return stream_response(gateway, caller, job_id=None, after=start)


class FeedBody(BaseModel):
    """The start of a feed."""

    model_config = ConfigDict(extra="forbid", strict=True)

    after: int | None = Field(
        default=None, ge=0, le=_MAX_SEQ, description="Only events with a greater `seq`; without it, from now on"
    )


@router.post("/feeds", status_code=201, summary="A feed of your events on the bus", responses=returns(Feed, status=201))
async def add_feed(caller: CurrentKey, gateway: GatewayDep, body: FeedBody | None = None) -> Response:
    """Open a feed for a bus key, which is the bearer. Listen on `subject` with the same key for the log's messages.

    The feed is removed when nobody listens for `SYNTH_BUS_FEED_IDLE_S`. After a gap, or if the feed is silent for
    longer than its heartbeat interval, request a new feed after the last event that you have.
    """
    info = await gateway.bus.js.stream_info(EVENTS)
    most, share = info.config.max_consumers or 0, gateway.settings.bus_feeds_share
    if most > 0 and info.state.consumer_count >= most * share:
        what = f"the log has {info.state.consumer_count:,} consumers, and may have {most:,}"
        raise unavailable(
            f"{what}: a feed is opened below {share:.0%} of these (SYNTH_BUS_FEEDS_SHARE); come again later",
            retry_after=round(gateway.settings.bus_feed_idle_s),
        )
    end = info.state.last_seq
    after = end if body is None or body.after is None else body.after
    if after > end:
        problem = Problem(
            what=f"the log ends at {end}, before {after}",
            expected="the `seq` of an event of this log",
            fix="this place is another log's: begin with 0, or leave it out",
            where="body.after",
        )
        raise ApiError(409, problem.text(), param="after", problems=[problem])
    feed = await open_feed(gateway.bus, caller, after=after, settings=gateway.settings)
    if feed is None:
        raise limit_reached(
            f"the key {caller.key_id} has {gateway.settings.bus_feeds} feeds",
            setting="SYNTH_BUS_FEEDS",
            quota=gateway.settings.bus_feeds,
            policy="bus_feeds",
            retry_after=round(gateway.settings.bus_feed_idle_s),
            fix="stop listening to one, and wait until it is removed",
        )
    # The key may have been revoked before the feed existed, so the revocation did not end the feed.
    known = await gateway.secrets.find_api_key_by_hash(caller.digest)
    if known is None or not known.active or not gateway.keys.still_valid(caller):
        await end_feeds(gateway.bus, caller)
        raise ApiError(401, f"this API key ({caller.key_id}) has ended")
    return json_response(feed, 201)
