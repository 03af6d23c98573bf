"""An event as it stands in the log: what the body says, and what the server says of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
from nats.aio.msg import Msg

from synth.events.catalogue import CATALOGUE, Event

MSG_ID = "Nats-Msg-Id"
SCHEMA = "Synth-Schema"
TRACEPARENT = "traceparent"


class UnknownEvent(Event, frozen=True, kw_only=True):
    """An event that this version cannot read (a newer one wrote it): seen by everybody, trusted by nobody."""

    body: Any = None


@dataclass(frozen=True)
class Recorded:
    """One event of the log. seq: the stream's sequence, the one order of everything. pending: events behind it."""

    seq: int
    time: datetime
    type: str
    org: str
    key: str
    id: str
    event: Event
    pending: int = 0
    traceparent: str | None = None


def encode(event: Event) -> bytes:
    """An event's body: JSON, so that the stream can be read by eye and by any language."""
    return msgspec.json.encode(event)


_decoders: dict[str, msgspec.json.Decoder[Event]] = {
    name: msgspec.json.Decoder(spec.event) for name, spec in CATALOGUE.items()
}


def decode(type_: str, body: bytes) -> Event:
    """The typed event of this type; `UnknownEvent` when the type, or its shape, is not one of ours."""
    decoder = _decoders.get(type_)
    try:
        return decoder.decode(body) if decoder else UnknownEvent(body=msgspec.json.decode(body))
    except msgspec.DecodeError:
        return UnknownEvent(body=body.decode(errors="replace"))


def from_parts(
    subject: str, body: bytes, headers: dict[str, str] | None, *, seq: int, time: datetime, pending: int = 0
) -> Recorded:
    """Put an event together from a message of the stream."""
    entity, fact, org, key = subject.split(".", 3)
    headers = headers or {}
    return Recorded(
        seq=seq,
        time=time,
        type=f"{entity}.{fact}",
        org=org,
        key=key,
        id=headers.get(MSG_ID, ""),
        event=decode(f"{entity}.{fact}", body),
        pending=pending,
        traceparent=headers.get(TRACEPARENT),
    )


def from_delivery(msg: Msg) -> Recorded:
    """An event as a consumer delivered it."""
    seq, _, nanoseconds, pending = delivery_numbers(msg.reply)
    # Cut, not rounded: a direct get's timestamp is cut too, and one event has one time.
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    time = datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest // 1000)
    return from_parts(msg.subject, msg.data, msg.headers, seq=seq, time=time, pending=pending)


def delivery_numbers(reply: str) -> tuple[int, int, int, int]:
    """(stream sequence, consumer sequence, time in ns, pending) of a delivery, from its reply subject.

    Both forms: `$JS.ACK.<stream>.<consumer>.…` and the newer one with domain and account hash before the stream.
    """
    tokens = reply.split(".")
    at = 5 if len(tokens) == 9 else 7
    return int(tokens[at]), int(tokens[at + 1]), int(tokens[at + 2]), int(tokens[at + 3])
