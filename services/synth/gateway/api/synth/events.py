"""A job's events for the Synth API: the shown events, as pages and as a stream.

Invariant. An event is shown only after the read model has it, so a client that gets a job's last event also finds the
job ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import datetime

from starlette.responses import StreamingResponse

from synth.api.sse import data_event
from synth.bus.kv.secrets import ApiKey
from synth.bus.recorded import Recorded
from synth.gateway.api.sse import PING, follow, pieces, sse_response
from synth.gateway.api.synth.schemas import SynthEvent
from synth.gateway.api.synth.views import event_view
from synth.gateway.deps import Gateway
from synth.gateway.read_model.event_log import read_page
from synth.gateway.read_model.projection import JobRow
from synth.gateway.streams.feed import Frame

_BATCH = 500


@dataclass(frozen=True)
class Span:
    """A range of a job's events: after one sequence, before another, and from a time on."""

    after: int
    before: int | None = None
    since: datetime | None = None


async def read_events(gateway: Gateway, row: JobRow, span: Span, *, limit: int) -> list[SynthEvent]:
    """Read the first `limit` shown events of a range."""
    gateway.hub.note_asked(row.job.id)
    shown: list[SynthEvent] = []
    async for event in _events(gateway, row, f"*.*.{row.org}.{row.job.id}", span):
        view = event_view(event, row.job.kind)
        if view is not None:
            shown.append(view)
        if len(shown) == limit:
            break
    return shown


async def read_newest_events(gateway: Gateway, row: JobRow, span: Span, *, limit: int) -> list[SynthEvent]:
    """Read the last `limit` shown events of a range, in their order.

    The log can only be read forwards, so each read begins twice as far back until there are enough events.
    """
    gateway.hub.note_asked(row.job.id)
    start = max(span.after, row.created_seq - 1)
    end = row.job.last_seq if span.before is None else min(row.job.last_seq, span.before - 1)
    back = _BATCH
    while True:
        after = max(start, end - back)
        shown: deque[SynthEvent] = deque(maxlen=limit)
        reached_since = False
        async for event in _events(gateway, row, f"*.*.{row.org}.{row.job.id}", replace(span, after=after, since=None)):
            if span.since is not None and event.time < span.since:
                reached_since = True
            elif (view := event_view(event, row.job.kind)) is not None:
                shown.append(view)
        if len(shown) == limit or after == start or reached_since:
            return list(shown)
        back *= 2


async def read_facts(gateway: Gateway, row: JobRow) -> list[Recorded]:
    """Read the facts of a job's lifecycle, in order."""
    return [fact async for fact in _events(gateway, row, f"job.*.{row.org}.{row.job.id}", Span(0))]


def stream_events(gateway: Gateway, caller: ApiKey, row: JobRow, span: Span) -> StreamingResponse:
    """Stream the shown events of a range, past and to come, up to its end or the job's; one `data:` line each."""
    return sse_response(gateway, caller, _stream(gateway, caller, row, span))


async def _stream(gateway: Gateway, caller: ApiKey, row: JobRow, span: Span) -> AsyncIterator[bytes]:
    yield PING

    def encode(event: Recorded) -> bytes:
        view = event_view(event, row.job.kind)
        return b"" if view is None else data_event(view)

    if _has_ended(gateway, row, at=span.after):
        return
    with gateway.hub.watch(row.org, row.job.id, after=span.after, words="synth", encode=encode) as reader:
        async for frames in follow(gateway, caller, reader):
            if frames is None:
                yield PING
                continue
            for piece in pieces(b"".join(frame.data for frame in frames if _is_within(frame, span))):
                yield piece
            if any(frame.ends for frame in frames) and _has_ended(gateway, row, at=reader.position):
                return
            if span.before is not None and (reader.at_present or reader.position >= span.before - 1):
                return


def _has_ended(gateway: Gateway, row: JobRow, *, at: int) -> bool:
    """Return whether the job ended at or before this sequence. A failed job may have been resumed since."""
    now = gateway.read_model.job(row.org, row.job.id)
    return now is None or (now.ended_seq is not None and now.ended_seq <= at)


def _is_within(frame: Frame, span: Span) -> bool:
    return (span.before is None or frame.seq < span.before) and (span.since is None or frame.time >= span.since)


async def _events(gateway: Gateway, row: JobRow, subject: str, span: Span) -> AsyncIterator[Recorded]:
    end, cursor, since, more = gateway.read_model.applied, span.after, span.since, True
    if span.before is not None:
        end = min(end, span.before - 1)
    while more:
        page = await read_page(gateway.bus, subject, after=cursor, limit=_BATCH, since=since)
        for event in page.events:
            if event.seq > end:
                return
            if event.seq > span.after:
                yield event
        more = page.more and bool(page.events)
        if page.events:
            cursor, since = page.events[-1].seq, None
