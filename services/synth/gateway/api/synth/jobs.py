"""The Synth API's routes of one job, which has a path in every family for every kind of job."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from synth.api.limits import MAX_EVENTS, MAX_STEPS
from synth.errors import Problem, Transient
from synth.gateway.api.openapi import json_response, returns
from synth.gateway.api.pagination import items_after
from synth.gateway.api.sse import wants_stream
from synth.gateway.api.synth.events import Span, read_events, read_facts, read_newest_events, stream_events
from synth.gateway.api.synth.listing import parse_time
from synth.gateway.api.synth.schemas import (
    SynthCheckpoints,
    SynthEvents,
    SynthJob,
    SynthPoints,
    SynthRuns,
    SynthStatus,
    SynthTimeline,
)
from synth.gateway.api.synth.views import (
    RunBounds,
    as_sent,
    checkpoint_view,
    find_run,
    job_view,
    phase_view,
    point_view,
    runs_view,
    status_view,
)
from synth.gateway.auth import CurrentKey
from synth.gateway.commands.control import cancel_job
from synth.gateway.deps import Gateway, GatewayDep
from synth.gateway.errors import ApiError
from synth.gateway.presentation.vocabulary import STATUS, our_metric
from synth.gateway.read_model.event_log import MAX_SEQUENCE_DIGITS
from synth.gateway.read_model.projection import JobRow
from synth.jobs.lifecycle import State

router = APIRouter(tags=["synth api"])

_FAMILIES = ("learning", "rl", "orchestration", "sft")
_EVENT_ID = re.compile(rf"(?:evt_)?([0-9]{{1,{MAX_SEQUENCE_DIGITS}}})")

_Handler = TypeVar("_Handler", bound=Callable[..., Any])
# SQLite's integers have 64 bits.
AfterStep = Annotated[int | None, Query(ge=-(1 << 53), le=1 << 53)]
Limit = Annotated[int, Query(ge=1, le=100_000)]
#: Steps whose metrics are read in some milliseconds.
_FEW_STEPS = 1000


async def _run_query(
    run: Annotated[str | None, Query(description="Only of this attempt: its `run_number` or `id`")] = None,
    run_id: Annotated[str | None, Query(description="The same")] = None,
) -> str | None:
    return run or run_id


Run = Annotated[str | None, Depends(_run_query)]


def _job_route(method: str, path: str, summary: str, answer: type | None = None) -> Callable[[_Handler], _Handler]:
    """Register a route below the path of each family."""

    def register(handler: _Handler) -> _Handler:
        for family in _FAMILIES:
            router.add_api_route(
                f"/{family}/jobs/{{job_id}}{path}",
                handler,
                methods=[method],
                summary=summary,
                responses=returns(answer) if answer else None,
            )
        return handler

    return register


@_job_route("GET", "", "One job", SynthJob)
async def get_job(job_id: str, caller: CurrentKey, gateway: GatewayDep) -> Response:
    """Return a job, with its configuration as it was sent."""
    return await _job_response(gateway, await gateway.job(caller.org, job_id))


@_job_route("POST", "/start", "Start a job", SynthJob)
async def start_job(job_id: str, caller: CurrentKey, gateway: GatewayDep) -> Response:
    """Return a job. A job starts when it is created, so this request changes nothing."""
    return await _job_response(gateway, await gateway.job(caller.org, job_id))


@_job_route("POST", "/cancel", "Cancel a job", SynthJob)
async def cancel(job_id: str, caller: CurrentKey, gateway: GatewayDep) -> Response:
    """Cancel a job. Repeating it changes nothing; a job that has ended otherwise returns 409."""
    row = await cancel_job(gateway, caller, job_id, named=lambda state: STATUS[state].synth)
    ended = row.job.state is State.CANCELLED
    return await _job_response(
        gateway, row, message="the job is cancelled" if ended else "the job stops after its current step"
    )


@_job_route("GET", "/status", "A job's status", SynthStatus)
async def get_status(job_id: str, caller: CurrentKey, gateway: GatewayDep) -> Response:
    """Return the status, and how long the job was queued and ran."""
    row = await gateway.job(caller.org, job_id)
    return json_response(status_view(row))


@_job_route("GET", "/config", "A job's configuration")
async def get_config(job_id: str, caller: CurrentKey, gateway: GatewayDep) -> Response:
    """Return the configuration as it was sent, and after validation `resolved`, with every default applied."""
    row = await gateway.job(caller.org, job_id)
    texts = await gateway.texts(row.job.id)
    resolved = (texts.validated or {}).get("job") if texts else None
    return json_response({"config": as_sent(texts.config if texts else None), "resolved": resolved})


@_job_route("GET", "/events", "A job's events", SynthEvents)
async def get_events(
    job_id: str,
    request: Request,
    caller: CurrentKey,
    gateway: GatewayDep,
    since_seq: Annotated[int | None, Query(description="Only events with a greater `seq`")] = None,
    since: Annotated[str | None, Query(description="Only events after this moment (ISO 8601) or this event id")] = None,
    after: Annotated[str | None, Query(description="The same")] = None,
    run: Run = None,
    limit: Limit = 200,
) -> Response:
    """Return a page: the first events after a `seq` or an event id, and the newest events without either.

    With `Accept: text/event-stream`, stream past and then new events, one `data:` line for each event.
    """
    row = await gateway.job(caller.org, job_id)
    places = [_parse_cursor(name, place) for name, place in (("since", since), ("after", after))]
    sequences = [seq for seq in (since_seq, *(seq for seq, _ in places)) if seq is not None]
    moments = [time for _, time in places if time is not None]
    cursor = max(0, *sequences) if sequences else 0
    span = Span(cursor, since=max(moments, default=None))
    if run is not None:
        start, following = await _run(gateway, row, run)
        span = replace(span, after=max(cursor, start.seq - 1), before=following.seq if following else None)
    if wants_stream(request):
        return stream_events(gateway, caller, row, span)
    read = read_events if sequences else read_newest_events
    return json_response(SynthEvents(events=await read(gateway, row, span, limit=min(limit, MAX_EVENTS))))


@_job_route("GET", "/metrics", "A job's metrics", SynthPoints)
async def get_metrics(
    job_id: str,
    caller: CurrentKey,
    gateway: GatewayDep,
    after_step: AfterStep = None,
    name: Annotated[str | None, Query(description="One metric; without it the headline ones")] = None,
    run: Run = None,
    limit: Annotated[int, Query(ge=1, le=100_000, description="Steps, each with all its values")] = 200,
) -> Response:
    """Return points in ascending order of step: the first points after `after_step`, without it the latest points.

    The values of an evaluation are published with the step after it, so a client that continues from the last step
    that it has seen misses nothing.
    """
    row = await gateway.job(caller.org, job_id)
    since, until = None, None
    if run is not None:
        start, following = await _run(gateway, row, run)
        since, until = start.time, following.time if following else None
    wanted, steps = our_metric(name) if name else None, min(limit, MAX_STEPS)

    def read() -> Response:
        points = gateway.read_model.published_points(
            job_id,
            after_step=after_step,
            name=wanted,
            steps=steps,
            since=since,
            until=until,
            within_s=gateway.settings.list_timeout_s,
        )
        return json_response(SynthPoints(points=[point_view(point, job_id) for point in points]))

    # 10,000 steps have too many points for the event loop.
    size = 0 if steps <= _FEW_STEPS else sys.maxsize
    try:
        return await gateway.service.off_loop.thread(read, org=caller.org, size=size)
    except TimeoutError as error:
        taken = f"{gateway.settings.list_timeout_s:g} s (SYNTH_LIST_TIMEOUT_S)"
        raise Transient(f"the metrics were not read within {taken}; request fewer steps") from error


@_job_route("GET", "/timeline", "The phases of a job", SynthTimeline)
async def get_timeline(job_id: str, caller: CurrentKey, gateway: GatewayDep, limit: Limit = 1000) -> Response:
    """Return the last `limit` phases between the job's creation and its end."""
    row = await gateway.job(caller.org, job_id)
    phases = [phase for fact in await read_facts(gateway, row) if (phase := phase_view(fact, row.job.kind))]
    return json_response(SynthTimeline(events=phases[-limit:], timeline=phases[-limit:]))


@_job_route("GET", "/checkpoints", "A job's checkpoints", SynthCheckpoints)
async def get_checkpoints(
    job_id: str, caller: CurrentKey, gateway: GatewayDep, limit: Limit = 10, after: str | None = None
) -> Response:
    """List the checkpoints that exist, newest first. `after`: continue after this checkpoint's id."""
    row = await gateway.job(caller.org, job_id)
    result = [checkpoint_view(checkpoint) for checkpoint in gateway.read_model.checkpoints(row.job.id)]
    result = items_after(result, after, kind="checkpoint", id_of=lambda checkpoint: checkpoint.id)
    return json_response(SynthCheckpoints(data=result[:limit], has_more=len(result) > limit))


@router.get("/jobs/{job_id}/runs", summary="The attempts at a job", responses=returns(SynthRuns))
async def get_runs(job_id: str, caller: CurrentKey, gateway: GatewayDep) -> Response:
    """List the attempts, one for each time that a worker took the job."""
    row = await gateway.job(caller.org, job_id)
    return json_response(SynthRuns(runs=runs_view(row)))


async def _run(gateway: Gateway, row: JobRow, name: str) -> RunBounds:
    """Find an attempt at a job by its number or id. Raises a 404."""
    run = find_run(await read_facts(gateway, row), row.job.id, name)
    if run is None:
        problem = Problem(
            what=f"{row.job.id} has no run {name[:120]!r}", fix=f"GET /api/jobs/{row.job.id}/runs has all of them"
        )
        raise ApiError(404, problem.text(), code="run_not_found", problems=[problem])
    return run


async def _job_response(gateway: Gateway, row: JobRow, *, message: str | None = None) -> Response:
    texts = await gateway.texts(row.job.id)
    return json_response(job_view(row, texts.config if texts else None, message=message))


def _parse_cursor(name: str, text: str | None) -> tuple[int | None, datetime | None]:
    """Parse a place in a job's events: after a sequence, or from a time on."""
    if not text:
        return None, None
    id = _EVENT_ID.fullmatch(text)
    return (int(id[1]), None) if id else (None, parse_time(name, text))
