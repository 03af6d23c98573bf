"""Dead letters from their stream, with the decisions of operators from the log.

The read model does not keep them, because they are few and only operators read them.
"""

# Parts of nats-py have no type annotations.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime

import msgspec

from synth.api.dead_letters import DeadLetter, DeadLetterPayload
from synth.bus.connection import Connection
from synth.bus.recorded import Recorded, delivery_numbers
from synth.bus.replay import read_stream, replay
from synth.bus.server.topology import DEAD
from synth.errors import Transient
from synth.events import LetterDropped, LetterRetried
from synth.gateway.read_model.event_log import find_on_bus
from synth.work import task_of

_TIMEOUT_S = 20.0
_MAX_PAYLOAD_CHARACTERS = 100_000
_SIZE = "Nats-Msg-Size"

Decisions = dict[int, Recorded]


async def list_letters(bus: Connection, *, after: int, limit: int, open_only: bool) -> tuple[list[DeadLetter], bool]:
    """Return the letters after sequence `after`, oldest first, and whether there are more. Raises `Transient`."""
    decisions = await _read_decisions(bus)
    results: list[DeadLetter] = []
    letters = read_stream(bus.nc, ["dead.>"], after=after, stream=DEAD, headers_only=True)
    try:
        async with asyncio.timeout(_TIMEOUT_S), aclosing(letters):
            async for msg in letters:
                seq, _, nanoseconds, _ = delivery_numbers(msg.reply)
                # Truncate to microseconds, as in the time of a single letter.
                seconds, rest = divmod(nanoseconds, 1_000_000_000)
                created = datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest // 1000)
                size = int((msg.headers or {}).get(_SIZE, 0))
                letter = _settled(_letter(msg.subject, msg.headers or {}, seq, created, size), decisions)
                if letter.state == "open" or not open_only:
                    results.append(letter)
                if len(results) > limit:
                    return results[:limit], True
    except TimeoutError as error:
        raise Transient(f"the bus did not answer a read of the dead letters: {error!r}") from error
    return results, False


async def read_letter(bus: Connection, id: int) -> DeadLetterPayload | None:
    """Return one letter with its body; None if there is no such letter. Raises `Transient`."""
    result = await find_on_bus(bus, lambda: bus.js.get_msg(DEAD, id), of=f"dead letter {id}")
    if result is None:
        return None
    assert result.subject is not None
    assert result.time is not None
    body = result.data or b""
    letter = _letter(result.subject, result.headers or {}, id, result.time, len(body))
    text = body.decode(errors="replace")
    return DeadLetterPayload(
        letter=_settled(letter, await _read_decisions(bus)),
        payload=text[:_MAX_PAYLOAD_CHARACTERS],
        cut=len(text) > _MAX_PAYLOAD_CHARACTERS,
    )


async def _read_decisions(bus: Connection) -> Decisions:
    decided = await replay(bus, ["letter.>"])
    return {r.event.letter: r for r in decided if isinstance(r.event, LetterRetried | LetterDropped)}


def _settled(letter: DeadLetter, decisions: Decisions) -> DeadLetter:
    decision = decisions.get(letter.id)
    # An older decision is about an earlier stream of dead letters, which this one has replaced.
    if decision is None or decision.time < letter.created_at:
        return letter
    event = decision.event
    assert isinstance(event, LetterRetried | LetterDropped)
    state = "retried" if isinstance(event, LetterRetried) else "dropped"
    return msgspec.structs.replace(letter, state=state, settled_by=event.requested_by, settled_at=decision.time)


def _letter(subject: str, headers: dict[str, str], seq: int, created: datetime, size: int) -> DeadLetter:
    """Build a letter. subject: `dead.<service>.<subject of the message>`."""
    _, service, of = subject.split(".", 2)
    org, about = _owner_of(of)
    return DeadLetter(
        id=seq,
        service=service,
        subject=of,
        org=org,
        about=about,
        reason=headers.get("Synth-Reason", ""),
        seq=int(headers.get("Synth-Seq", 0)),
        bytes=size,
        created_at=created,
    )


def _owner_of(subject: str) -> tuple[str | None, str | None]:
    """Return the organisation and the job or file of a message, by its subject."""
    if (task := task_of(subject)) is not None:
        return task.org, task.job_id
    parts = subject.split(".")
    if len(parts) == 4 and parts[0] != "work":
        return parts[2], parts[3]
    return None, None
