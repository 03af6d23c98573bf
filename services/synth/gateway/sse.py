"""Event streams: the past from the log, then the present from the hub, with no gap and no repeat."""

from __future__ import annotations

from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import StreamingResponse

from synth import logs
from synth.bus.connection import Connection
from synth.errors import Problem, Transient
from synth.gateway.event_log import read_page
from synth.gateway.failures import ApiError
from synth.gateway.hub import Frame, Hub, frame_of

log = logs.get("sse")

_PAGE = 2000
_OPENING = b"retry: 1000\n\n"
_PING = b": ping\n\n"
_END = b"event: end\ndata: {}\n\n"
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


def cursor_of(request: Request, after: int | None) -> int | None:
    """Where a client wants to go on: its `Last-Event-ID` before `?after=`. Raises a 400 for what is no sequence."""
    given = request.headers.get("last-event-id")
    if given is None:
        return after
    if not given.isdecimal():
        problem = Problem(
            what=f"Last-Event-ID is {given[:40]!r}",
            expected="the id of the last event that was received, a whole number",
            where="header Last-Event-ID",
        )
        raise ApiError(400, problem.text(), type="invalid_request", problems=[problem])
    return int(given)


def wants_stream(request: Request) -> bool:
    """Whether the client asks for server-sent events rather than for a page."""
    return "text/event-stream" in request.headers.get("accept", "")


def event_stream(
    hub: Hub, bus: Connection, *, org: str, job_id: str | None, after: int, ping_s: float
) -> StreamingResponse:
    """A response that streams a job's events (an organisation's without `job_id`) after a sequence.

    A job's stream ends with `event: end` after its terminal fact.
    """
    frames = _stream(hub, bus, org=org, job_id=job_id, after=after, ping_s=ping_s)
    return StreamingResponse(frames, media_type="text/event-stream", headers=_HEADERS)


async def _stream(
    hub: Hub, bus: Connection, *, org: str, job_id: str | None, after: int, ping_s: float
) -> AsyncIterator[bytes]:
    subject, cursor = f"*.*.{org}.{job_id or '*'}", after
    yield _OPENING
    with hub.watch(org, job_id) as watcher:
        while not watcher.closed:
            # Queue first, read the log second: what falls between the two is in both, and is skipped once.
            watcher.resume()
            more = True
            while more and not watcher.closed:
                try:
                    page = await read_page(bus, subject, after=cursor, limit=_PAGE)
                except Transient as error:
                    # The client comes back with its cursor, which is the retry.
                    log.warning("stream ends, the log cannot be read", subject=subject, error=str(error))
                    return
                more = page.more
                cursor, chunk, ended = _joined([frame_of(event) for event in page.events], cursor, job_id)
                if chunk:
                    yield chunk
                if ended:
                    return
            while not watcher.lagged and not watcher.closed:
                cursor, chunk, ended = _joined(watcher.take(), cursor, job_id)
                if chunk:
                    yield chunk
                if ended:
                    return
                if not await watcher.wait(ping_s):
                    yield _PING


def _joined(frames: list[Frame], cursor: int, job_id: str | None) -> tuple[int, bytes, bool]:
    """The frames beyond the cursor as one chunk, cut after the job's terminal one; the new cursor; whether it ended."""
    chunk: list[bytes] = []
    for frame in frames:
        if frame.seq > cursor:
            cursor = frame.seq
            chunk.append(frame.data)
            if frame.ends and job_id is not None:
                return cursor, b"".join([*chunk, _END]), True
    return cursor, b"".join(chunk), False
