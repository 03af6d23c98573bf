"""Event streams: the past from the log, then the present from the hub, with no gap and no repeat."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import ExitStack

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from synth.api.limits import MAX_EVENTS
from synth.bus.kv.secrets import ApiKey
from synth.errors import Problem, Transient
from synth.gateway.deps import Gateway
from synth.gateway.errors import ApiError
from synth.gateway.read_model.event_log import MAX_SEQUENCE_DIGITS, read_page
from synth.gateway.read_model.hub import Frame, to_frame
from synth.runtime import logs

log = logs.get("sse")

#: Milliseconds after which a client connects again. Those that lose their streams at one moment come back one by one.
_RETRY_MS = (500, 3000)
PING = b": ping\n\n"
_END = b"event: end\ndata: {}\n\n"
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


def _opening() -> bytes:
    return b"retry: %d\n\n" % random.randint(*_RETRY_MS)


def read_cursor(request: Request, after: int | None) -> int | None:
    """The sequence to go on after: `Last-Event-ID`, else `?after=`. Raises a 400 for what is no sequence."""
    given = request.headers.get("last-event-id")
    if given is None:
        return after
    if not given.isdecimal() or len(given) > MAX_SEQUENCE_DIGITS:
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
    return sse_response(gateway, caller, _stream(gateway, caller, job_id=job_id, after=after))


def sse_response(gateway: Gateway, caller: ApiKey, chunks: AsyncIterator[bytes]) -> StreamingResponse:
    """A response of server-sent events, with headers that keep proxies from buffering it.

    Raises a 429 where the caller's organisation has too many of them open.
    """
    place = ExitStack()
    place.enter_context(gateway.admission.stream(caller.org))
    return _EventStream(chunks, place)


class _EventStream(StreamingResponse):
    """A stream that gives its place back when it is over. place: what is left then."""

    def __init__(self, chunks: AsyncIterator[bytes], place: ExitStack) -> None:
        super().__init__(chunks, media_type="text/event-stream", headers=_HEADERS)
        self._place = place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._place:
            await super().__call__(scope, receive, send)


async def _stream(gateway: Gateway, caller: ApiKey, *, job_id: str | None, after: int) -> AsyncIterator[bytes]:
    subject, cursor = f"*.*.{caller.org}.{job_id or '*'}", after
    yield _opening()
    with gateway.hub.subscribe(caller.org, job_id) as subscriber:

        def is_over() -> bool:
            return subscriber.closed or not gateway.keys.still_valid(caller)

        while not is_over():
            # Queue first, read the log second: what falls between the two is in both, and is skipped once.
            subscriber.reset()
            more = True
            while more and not is_over():
                try:
                    page = await read_page(gateway.bus, subject, after=cursor, limit=MAX_EVENTS)
                except Transient as error:
                    # The client comes back with its cursor, which is the retry.
                    log.warning("stream ends, the log cannot be read", subject=subject, error=str(error))
                    return
                more = page.more
                # Who asks for the job of an event that it has seen gets it as the event left it.
                while page.events and not is_over():
                    try:
                        await gateway.hub.wait_until_applied(page.events[-1].seq, timeout=gateway.settings.ping_s)
                        break
                    except TimeoutError:
                        yield PING
                if is_over():
                    return
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
                    yield PING


def _join_frames(frames: list[Frame], cursor: int, job_id: str | None) -> tuple[int, bytes, bool]:
    """Join the frames after the cursor, up to the job's terminal one: the new cursor, the chunk, whether it ended."""
    chunk: list[bytes] = []
    for frame in frames:
        if frame.seq > cursor:
            cursor = frame.seq
            chunk.append(frame.data)
            if frame.ends and job_id is not None:
                return cursor, b"".join([*chunk, _END]), True
    return cursor, b"".join(chunk), False
