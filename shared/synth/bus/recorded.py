"""An event of the log: its body, and the data that the server keeps with it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
from nats.aio.msg import Msg

from synth.chat.json_text import MAX_NESTING, is_too_deep
from synth.errors import NewerVersion, Permanent
from synth.events.catalogue import CATALOGUE, Event

#: The log, as a stream.
EVENTS = "EVENTS"
#: Headers of a write that is refused if the last one to a subject, or to a pattern of subjects, has another sequence.
EXPECTED = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_SUBJECT = "Nats-Expected-Last-Subject-Sequence-Subject"
#: The codes of NATS for a write that another one preceded; the second, if both raced inside the server.
WRONG_LAST_SEQUENCES = (10071, 10164)
MSG_ID = "Nats-Msg-Id"
SCHEMA = "Synth-Schema"
TRACEPARENT = "traceparent"
TTL = "Nats-TTL"


class UnknownEvent(Event, frozen=True, kw_only=True):
    """An event that this version cannot read: seen by everybody, trusted by nobody.

    newer: its type or its schema shows that a newer version wrote it, and `DeclaredSchemas.judge` has not found that
    to be impossible; else it is damaged.
    """

    body: Any = None
    newer: bool = False


@dataclass(frozen=True)
class Recorded:
    """One event of the log. seq: the stream's sequence, the one order of everything. pending: events behind it.

    expires: the log forgets it after some time. schema: the version of its type that it was written in. size: the bytes
    that it takes in the log.
    """

    seq: int
    time: datetime
    type: str
    org: str
    key: str
    id: str
    event: Event
    pending: int = 0
    traceparent: str | None = None
    expires: bool = False
    schema: int = 1
    size: int = 0

    @property
    def sign(self) -> str:
        """The text that distinguishes it from any other event that a log could have at this sequence."""
        return f"{self.id} {self.time.isoformat()}"


def encode(event: Event) -> bytes:
    """Return an event's body: JSON, so that people and any language can read the stream."""
    return msgspec.json.encode(event)


#: In the place of missing tokens: a thief with a service's credential may write `job.created.x` into the log.
_NO_TOKENS = ("_", "_", "_")

_decoders: dict[str, msgspec.json.Decoder[Event]] = {
    name: msgspec.json.Decoder(spec.event) for name, spec in CATALOGUE.items()
}


def decode(type_: str, body: bytes, schema: int = 1) -> Event:
    """Return the typed event; `UnknownEvent` when the type, its schema or its shape is not one of ours.

    schema: the version of the type that the body was written in. A body that cannot be read, or is nested too deeply to
    be written again, is kept as text.
    """
    spec = CATALOGUE.get(type_)
    newer = spec is None or schema > spec.version
    try:
        event = UnknownEvent(body=msgspec.json.decode(body), newer=True) if newer else _decoders[type_].decode(body)
        if not _is_too_deep(body, event):
            return event
    except (msgspec.DecodeError, RecursionError):
        pass
    return UnknownEvent(body=body.decode(errors="replace"), newer=newer)


def _is_too_deep(body: bytes, event: Event) -> bool:
    """Return whether it is nested too deeply to be written. Raises `RecursionError` for even deeper nesting."""
    if body.count(b"{") + body.count(b"[") <= MAX_NESTING:
        return False
    return is_too_deep(event.body if isinstance(event, UnknownEvent) else msgspec.to_builtins(event), MAX_NESTING)


def require_known(recorded: Recorded) -> None:
    """Raise `NewerVersion` for an event that a newer version wrote: without it the log would be misread."""
    if isinstance(recorded.event, UnknownEvent) and recorded.event.newer:
        raise NewerVersion(
            f"{recorded.type} at {recorded.seq} (schema {recorded.schema}) was written by a newer version than this"
        )


def require_readable(recorded: Recorded) -> None:
    """Raise `NewerVersion` as `require_known` does, and `Permanent` for an event whose body is damaged."""
    require_known(recorded)
    if isinstance(recorded.event, UnknownEvent):
        raise Permanent(f"the {recorded.type} at {recorded.seq} in the log is damaged: {why_unreadable(recorded)}")


def why_unreadable(recorded: Recorded) -> str:
    """Return the problem of a damaged event."""
    spec = CATALOGUE.get(recorded.type)
    if spec is None or recorded.schema > spec.version:
        return f"it says schema {recorded.schema} of {recorded.type}, which no version had declared"
    return f"its body is not a {recorded.type} that can be read"


def from_parts(
    subject: str, body: bytes, headers: dict[str, str] | None, *, seq: int, time: datetime, pending: int = 0
) -> Recorded:
    """Make an event from a message of the stream; `UnknownEvent` if its subject is not one of ours."""
    entity, fact, org, key, *missing = (*subject.split(".", 3), *_NO_TOKENS)
    headers = headers or {}
    schema = _schema_of(headers)
    whole = len(missing) == len(_NO_TOKENS)
    return Recorded(
        seq=seq,
        time=time,
        type=f"{entity}.{fact}",
        org=org,
        key=key,
        id=headers.get(MSG_ID, ""),
        event=decode(f"{entity}.{fact}", body, schema) if whole else UnknownEvent(body=body.decode(errors="replace")),
        pending=pending,
        traceparent=headers.get(TRACEPARENT),
        expires=TTL in headers,
        schema=schema,
        size=stored_size(subject, body, headers),
    )


def stored_size(subject: str, body: bytes, headers: dict[str, str]) -> int:
    """Return the bytes that nats-server counts for a message in a stream on disk."""
    # The overhead of each record and of its headers, and the lines that begin and end the headers.
    lines = sum(len(name.encode()) + len(value.encode()) + 4 for name, value in headers.items())
    return 30 + len(subject.encode()) + len(body) + (16 + lines if headers else 0)


def _schema_of(headers: dict[str, str]) -> int:
    text = headers.get(SCHEMA, "1")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 1


def from_delivery(msg: Msg) -> Recorded:
    """Return the event of a delivery."""
    seq, _, nanoseconds, pending = delivery_numbers(msg.reply)
    # Cut, not rounded: a direct get's timestamp is cut too, and one event has one time.
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    time = datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest // 1000)
    return from_parts(msg.subject, msg.data, msg.headers, seq=seq, time=time, pending=pending)


def delivery_numbers(reply: str) -> tuple[int, int, int, int]:
    """Return (stream sequence, consumer sequence, time in ns, pending) of a delivery, from its reply subject.

    Both forms: `$JS.ACK.<stream>.<consumer>.…` and the newer one with domain and account hash before the stream.
    """
    tokens = reply.split(".")
    at = 5 if len(tokens) == 9 else 7
    return int(tokens[at]), int(tokens[at + 1]), int(tokens[at + 2]), int(tokens[at + 3])
