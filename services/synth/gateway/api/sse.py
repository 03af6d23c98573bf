"""Event streams of a feed: past events and then new ones, without gaps and repeats."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from synth.api.sse import data_of
from synth.bus.kv.secrets import ApiKey
from synth.bus.recorded import Recorded
from synth.errors import Problem, Transient
from synth.gateway.deps import Gateway
from synth.gateway.errors import ApiError, unavailable
from synth.gateway.read_model.event_log import MAX_SEQUENCE_DIGITS, to_view
from synth.gateway.streams.feed import Frame, Reader
from synth.runtime import logs

log = logs.get("sse")

#: Milliseconds until a client connects again: a random time, so that not all clients return at one moment.
_RETRY_MS = (500, 3000)
#: Seconds until a refused client connects again: a random time, so that not all clients return at one moment.
_REFUSED_S = (2, 10)
PING = b": ping\n\n"
#: Bytes that are passed to a connection at a time; it buffers as many again, besides the system's own buffers.
_PIECE = 64 << 10
_END = b"event: end\ndata: {}\n\n"
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


def _opening() -> bytes:
    return b"retry: %d\n\n" % random.randint(*_RETRY_MS)


def read_cursor(request: Request, after: int | None) -> int | None:
    """Return the sequence to continue after: `Last-Event-ID`, else `?after=`. Raises a 400 for an invalid sequence."""
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
    """Return whether the client accepts server-sent events instead of a page."""
    return "text/event-stream" in request.headers.get("accept", "")


def stream_response(gateway: Gateway, caller: ApiKey, *, job_id: str | None, after: int) -> StreamingResponse:
    """Return a response that streams a job's events (the organisation's without `job_id`) after a sequence.

    A job's stream ends with `event: end` after its terminal fact; any stream breaks off when its caller's key ends.
    """
    return sse_response(gateway, caller, _stream(gateway, caller, job_id=job_id, after=after))


def sse_response(gateway: Gateway, caller: ApiKey, chunks: AsyncIterator[bytes]) -> StreamingResponse:
    """Return a response of server-sent events, with headers that keep proxies from buffering it.

    Raises a 429 if the caller's organisation has too many open streams, and a 503 if too many streams wait for the log.
    """
    waiting, most = gateway.hub.past_reads_waiting, gateway.settings.stream_reads_waiting
    if waiting >= most:
        what = f"{waiting:,} event streams wait to read the log (at most {most:,}: SYNTH_STREAM_READS_WAITING)"
        raise unavailable(f"{what}; come again later", retry_after=random.randint(*_REFUSED_S))
    place = ExitStack()
    place.enter_context(gateway.admission.stream(caller.org))
    return _EventStream(chunks, place)


class _EventStream(StreamingResponse):
    """A stream that releases its place at its end. place: the context to leave then."""

    def __init__(self, chunks: AsyncIterator[bytes], place: ExitStack) -> None:
        super().__init__(chunks, media_type="text/event-stream", headers=_HEADERS)
        self._place = place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._place:
            await super().__call__(scope, receive, send)


async def follow(gateway: Gateway, caller: ApiKey, reader: Reader) -> AsyncIterator[Sequence[Frame] | None]:
    """Yield a reader's frames until its feed or the caller's key ends; None after a silence."""
    while not (reader.closed or not gateway.keys.still_valid(caller)):
        if not reader.at_present:
            await gateway.hub.pace.turn()
        try:
            frames = await reader.read(gateway.settings.ping_s)
        except Transient as error:
            # The client connects again with its cursor, which is the retry.
            log.warning("stream ends, the log cannot be read", org=caller.org, after=reader.position, error=str(error))
            return
        if not reader.closed and gateway.keys.still_valid(caller):
            yield frames


def pieces(chunk: bytes) -> Iterator[bytes]:
    """Split a chunk, so that the buffer of a connection that is not read stays small."""
    for start in range(0, len(chunk), _PIECE):
        yield chunk[start : start + _PIECE]


async def _stream(gateway: Gateway, caller: ApiKey, *, job_id: str | None, after: int) -> AsyncIterator[bytes]:
    yield _opening()
    with gateway.hub.watch(caller.org, job_id, after=after, words="native", encode=_encode) as reader:
        async for frames in follow(gateway, caller, reader):
            if frames is None:
                yield PING
                continue
            end = next((n for n, frame in enumerate(frames, 1) if frame.ends and job_id is not None), None)
            for piece in pieces(b"".join(frame.data for frame in frames[:end])):
                yield piece
            if end is not None:
                yield _END
                return


def _encode(event: Recorded) -> bytes:
    """Encode an event for a stream: `id` is its sequence, `event` its type, `data` its JSON on one line."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.seq, event.type.encode(), data_of(to_view(event)))
