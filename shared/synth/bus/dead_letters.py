"""Dead letters: messages that could not be handled, kept with their payload and the reason."""

# nats-py annotates parts of itself not at all.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Awaitable

import msgspec
from nats.aio.msg import Msg

from synth.bus.connection import Connection
from synth.bus.recorded import MSG_ID, Recorded, UnknownEvent
from synth.bus.server.topology import DEAD, PUBLISH_TIMEOUT_S
from synth.errors import Permanent, Problem
from synth.runtime import logs

log = logs.get("dead")


async def publish_dead_letter(
    bus: Connection, subject: str, body: bytes, *, reason: str, seq: int | None = None, again: int = 0
) -> int:
    """Keep a message that nobody can handle on `dead.<service>.<its subject>`, before it is taken off its queue.

    again: the dead letter that it was a retry of. Returns its sequence in the stream of dead letters.
    """
    log.error("dead letter", subject=subject, reason=reason, seq=seq)
    # The original's own headers (expected sequences, ids) would be applied again: only ours travel.
    headers = {
        # A retry that fails too is a letter of its own.
        MSG_ID: f"dead:{bus.service}:{subject}:{seq}:{again}",
        "Synth-Reason": " ".join(reason.split())[:2000],
        "Synth-Subject": subject,
        "Synth-Seq": str(seq or 0),
    }
    ack = await bus.js.publish(
        f"dead.{bus.service}.{subject}", body, timeout=PUBLISH_TIMEOUT_S, stream=DEAD, headers=dict(headers)
    )
    return ack.seq


async def tell_who_waits(giving_up: Awaitable[None], subject: str) -> None:
    """Tell the waiting service that a message is given up. Raises every error but `Permanent`: a later try may succeed.

    If the log is damaged, nobody can be informed, and the message must leave its queue all the same.
    """
    try:
        await giving_up
    except Permanent as error:
        log.error("nobody can be told of a dead letter", subject=subject, reason=str(error))


def internal_problem(reason: str, where: str) -> Problem:
    """Return the problem that is reported to the waiting user for a dead letter."""
    return Problem(
        what=f"internal error: {' '.join(reason.split())[:500]}",
        expected="this to be handled",
        fix="submit it again; if that ends so too, show this to whoever runs the cluster",
        where=where,
    )


def original_of(msg: Msg, event: Recorded | None, letter: int) -> tuple[str, bytes]:
    """Return the subject and the body of the delivered message; for a retried letter, of its event."""
    if event is None or not letter:
        return msg.subject, msg.data
    body = event.event.body if isinstance(event.event, UnknownEvent) else event.event
    return f"{event.type}.{event.org}.{event.key}", msgspec.json.encode(body)
