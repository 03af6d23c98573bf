"""Event streams: the past from the log, then the present from the hub, with no gap and no repeat."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import StreamingResponse

from synth.bus.kv.secrets import ApiKey
from synth.errors import Problem, Transient
from synth.gateway.errors import ApiError
from synth.gateway.read_model.event_log import read_page
from synth.gateway.read_model.hub import Frame, to_frame
from synth.runtime import logs

if TYPE_CHECKING:
    from synth.gateway.deps import Gateway

log = logs.get("sse")

_PAGE = 2000
_LONGEST_SEQUENCE = 18
_OPENING = b"retry: 1000\n\n"
_PING = b": ping\n\n"
_END = b"event: end\ndata: {}\n\n"
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


def read_cursor(request: Request, after: int | None) -> int | None:
    """Where a client wants to go on: its `Last-Event-ID` before `?after=`. Raises a 400 for what is no sequence."""
    given = request.headers.get("last-event-id")
    if given is None:
        return after
    if not given.isdecimal() or len(given) > _LONGEST_SEQUENCE:
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


def stream_response(gateway: Gateway, caller: ApiKey, *, job_id: str | None, after: int) -> StreamingResponse:
    """A response that streams a job's events (the organisation's without `job_id`) after a sequence.

    A job's stream ends with `event: end` after its terminal fact; any stream breaks off when its caller's key ends.
    """
    frames = _stream(gateway, caller, job_id=job_id, after=after)
    return StreamingResponse(frames, media_type="text/event-stream", headers=_HEADERS)


async def _stream(gateway: Gateway, caller: ApiKey, *, job_id: str | None, after: int) -> AsyncIterator[bytes]:
    subject, cursor = f"*.*.{caller.org}.{job_id or '*'}", after
    yield _OPENING
    with gateway.hub.subscribe(caller.org, job_id) as subscriber:

        def is_over() -> bool:
            return subscriber.closed or not gateway.keys.still_valid(caller)

        while not is_over():
            # Queue first, read the log second: what falls between the two is in both, and is skipped once.
            subscriber.reset()
            more = True
            while more and not is_over():
                try:
                    page = await read_page(gateway.bus, subject, after=cursor, limit=_PAGE)
                except Transient as error:
                    # The client comes back with its cursor, which is the retry.
                    log.warning("stream ends, the log cannot be read", subject=subject, error=str(error))
                    return
                more = page.more
                cursor, chunk, ended = _join_frames([to_frame(event) for event in page.events], cursor, job_id)
                if chunk:
                    yield chunk
                if ended:
                    return
            while not subscriber.lagged and not is_over():
                cursor, chunk, ended = _join_frames(subscriber.drain(), cursor, job_id)
                if chunk:
                    yield chunk
                if ended:
                    return
                if not await subscriber.wait(gateway.settings.ping_s):
                    yield _PING


def _join_frames(frames: list[Frame], cursor: int, job_id: str | None) -> tuple[int, bytes, bool]:
    """The frames beyond the cursor as one chunk, cut after the job's terminal one; the new cursor; whether it ended."""
    chunk: list[bytes] = []
    for frame in frames:
        if frame.seq > cursor:
            cursor = frame.seq
            chunk.append(frame.data)
            if frame.ends and job_id is not None:
                return cursor, b"".join([*chunk, _END]), True
    return cursor, b"".join(chunk), False
