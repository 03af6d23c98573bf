"""Reads of the log for the API: pages of a job's or an organisation's events, by direct get, without a consumer."""

# Parts of nats-py have no type annotations.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple, TypeVar

from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.api import RawStreamMsg, StreamInfo
from nats.js.errors import NotFoundError

from synth.api.schemas import EventView
from synth.bus.connection import Connection
from synth.bus.reading import read_across_reconnects
from synth.bus.recorded import Recorded, UnknownEvent, from_parts
from synth.bus.server.topology import EVENTS
from synth.errors import Transient
from synth.events import FileDeleted, JobDeleted
from synth.events.catalogue import Event, subject_of
from synth.gateway.read_model.projected_file import Mark, ProjectedFile

_T = TypeVar("_T")
#: Digits of the longest sequence that a client may send: every number with so many digits fits into 64 bits.
MAX_SEQUENCE_DIGITS = 18
_TIMEOUT_S = 5.0
#: The pause between two reads of a server that lags behind the leader.
_LAG_S = 0.02
#: Deletions of one file that are read at a time.
_ERASED_PAGE = 16
#: No log is so long; the server's sequences have 64 bits.
_SEQUENCE_LIMIT = 1 << 63


@dataclass(frozen=True)
class Page:
    """Events in order, and whether the log has more of them."""

    events: list[Recorded]
    more: bool


def to_view(recorded: Recorded) -> EventView:
    """Return an event in the API's shape; an event that this version cannot read is shown as it was written."""
    event: object = recorded.event
    data = event.body if isinstance(event, UnknownEvent) else event
    is_file = recorded.key.startswith("file_")
    return EventView(
        seq=recorded.seq,
        type=recorded.type,
        time=recorded.time,
        job_id=None if is_file else recorded.key,
        file_id=recorded.key if is_file else None,
        data=data,
    )


async def read_page(
    bus: Connection,
    subject: str,
    *,
    after: int,
    limit: int,
    since: datetime | None = None,
    max_bytes: int | None = None,
    whole: bool = False,
) -> Page:
    """Read up to `limit` events on `subject` after a sequence, or from a time on.

    max_bytes: the limit for the page; a larger event is returned alone. whole: a page that is the last one has every
    event that the stream's leader has; any server may answer, and may lag behind the leader. Raises `Transient` if the
    bus does not answer.
    """
    lags_until = time.monotonic() + _TIMEOUT_S
    while True:
        page = await _read_page(bus, subject, after=after, limit=limit, since=since, max_bytes=max_bytes)
        if not whole or page.more:
            return page
        last = await _read_last_seq(bus, subject)
        if last <= (page.events[-1].seq if page.events else after):
            return page
        if time.monotonic() > lags_until:
            raise Transient(f"a server of the bus lags behind the leader: it has no event {last} on {subject}")
        await asyncio.sleep(_LAG_S)


async def _read_last_seq(bus: Connection, subject: str) -> int:
    """Return the sequence of the last event on a subject, as the stream's leader knows it; 0 without any."""
    last = await find_on_bus(bus, lambda: bus.js.get_last_msg(EVENTS, subject), of=subject)
    return (last.seq if last is not None else None) or 0


async def _read_page(
    bus: Connection, subject: str, *, after: int, limit: int, since: datetime | None, max_bytes: int | None
) -> Page:
    if after >= _SEQUENCE_LIMIT:
        return Page([], more=False)
    start: dict[str, object] = (
        {"seq": after + 1} if since is None else {"start_time": since.astimezone(UTC).isoformat()}
    )
    if max_bytes is not None:
        start["max_bytes"] = max_bytes
    request = start | {"next_by_subj": subject, "batch": limit}
    batch = await find_on_bus(bus, lambda: _batch(bus, request), of=subject)
    assert batch is not None
    result, end = batch
    status = end.get("Status", "")
    if status not in ("204", "404"):
        raise Transient(f"the bus refused a read of {subject}: {status} {end.get('Description', '')}")
    return Page(result, more=int(end.get("Nats-Num-Pending", 0)) > 0)


async def find_on_bus(bus: Connection, read: Callable[[], Awaitable[_T]], *, of: str) -> _T | None:
    """Return the result of a read of the bus; None for a missing message. Raises `Transient` without an answer.

    of: the item, for the message.
    """
    try:
        return await read_across_reconnects(bus, read)
    except NotFoundError:
        return None
    except (TimeoutError, NatsError) as error:
        raise Transient(f"the bus did not answer a read of {of}: {error!r}") from error


async def _batch(bus: Connection, request: dict[str, object]) -> tuple[list[Recorded], dict[str, str]]:
    """Return the events of one direct get, and the headers of its end."""
    results: list[Recorded] = []
    ended: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()

    async def on_message(msg: Msg) -> None:
        headers = msg.headers or {}
        if "Nats-Sequence" in headers:
            time = datetime.fromisoformat(headers["Nats-Time-Stamp"])
            results.append(
                from_parts(headers["Nats-Subject"], msg.data, headers, seq=int(headers["Nats-Sequence"]), time=time)
            )
        elif not ended.done():
            ended.set_result(headers)

    inbox = bus.nc.new_inbox()
    subscription = await bus.nc.subscribe(inbox, cb=on_message)
    try:
        await bus.nc.publish(f"{bus.nc.api}.DIRECT.GET.{EVENTS}", json.dumps(request).encode(), reply=inbox)
        async with asyncio.timeout(_TIMEOUT_S):
            return results, await ended
    finally:
        await subscription.unsubscribe()


async def is_erased(bus: Connection, subject: str, *, before: int) -> bool:
    """Return whether all events on `subject` before a sequence are erased, except deletions.

    Raises `Transient` if the bus does not answer.
    """
    after = 0
    while True:
        page = await read_page(bus, subject, after=after, limit=_ERASED_PAGE, whole=True)
        events = [event for event in page.events if event.seq < before]
        if not all(isinstance(event.event, JobDeleted | FileDeleted) for event in events):
            return False
        if not page.more or len(events) < len(page.events):
            return True
        after = page.events[-1].seq


async def read_last(bus: Connection, kind: type[Event], org: str, key: str) -> Recorded | None:
    """Read the last event of this kind of one job or file, from the stream's leader."""
    subject = subject_of(kind, org, key)
    result = await find_on_bus(bus, lambda: bus.js.get_last_msg(EVENTS, subject), of=subject)
    if result is None:
        return None
    assert result.seq is not None
    assert result.time is not None
    return from_parts(subject, result.data or b"", result.headers, seq=result.seq, time=result.time)


async def has_event(bus: Connection, mark: Mark) -> bool:
    """Return whether the log has exactly this event. Raises `Transient` if the bus does not answer."""
    result = await find_event(bus, mark.seq)
    if result is None:
        return False
    assert result.time is not None
    return from_parts(result.subject or "", b"null", result.headers, seq=mark.seq, time=result.time).sign == mark.sign


async def find_event(bus: Connection, seq: int) -> RawStreamMsg | None:
    """Return the event with this sequence; None if the log has none. Raises `Transient` without an answer."""
    return await find_on_bus(bus, lambda: bus.js.get_msg(EVENTS, seq), of=f"event {seq}")


class LogSize(NamedTuple):
    """The bytes that the log takes, and may take; None if only the server's disk limits it."""

    used: int
    most: int | None


async def read_size(bus: Connection) -> LogSize:
    """Return the size of the log. Raises `Transient` if the bus does not answer."""
    info = await read_info(bus)
    most = info.config.max_bytes
    return LogSize(info.state.bytes, most if most is not None and most > 0 else None)


async def holds_log_of(bus: Connection, model: ProjectedFile) -> bool:
    """Return whether the model was projected from this log. Raises `Transient` if the bus does not answer."""
    mark, applied = model.mark(), model.applied
    info = await read_info(bus)
    if str(info.created) != model.stream or info.state.last_seq < applied:
        return False
    return mark is None or await has_event(bus, mark)


async def read_info(bus: Connection, stream: str = EVENTS) -> StreamInfo:
    """Return the server's state of a stream. Raises `Transient` if it does not answer."""
    try:
        return await read_across_reconnects(bus, lambda: bus.js.stream_info(stream))
    except (TimeoutError, NatsError) as error:
        raise Transient(f"the bus did not answer: {error!r}") from error
