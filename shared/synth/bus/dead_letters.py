"""Dead letters: what could not be handled, kept with its payload and the reason."""

# nats-py annotates parts of itself not at all.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from synth.bus.connection import Connection
from synth.bus.recorded import MSG_ID
from synth.bus.server.topology import DEAD, PUBLISH_TIMEOUT_S
from synth.runtime import logs

log = logs.get("dead")


async def publish_dead_letter(
    bus: Connection, subject: str, body: bytes, *, reason: str, seq: int | None = None
) -> int:
    """Keep a message that nobody can handle on `dead.<service>.<its subject>`, before it is taken off its queue.

    Returns its sequence in the stream of dead letters.
    """
    log.error("dead letter", subject=subject, reason=reason, seq=seq)
    # The original's own headers (expected sequences, ids) would be applied again: only ours travel.
    headers = {
        MSG_ID: f"dead:{bus.service}:{subject}:{seq}",
        "Synth-Reason": " ".join(reason.split())[:2000],
        "Synth-Subject": subject,
        "Synth-Seq": str(seq or 0),
    }
    ack = await bus.js.publish(
        f"dead.{bus.service}.{subject}", body, timeout=PUBLISH_TIMEOUT_S, stream=DEAD, headers=dict(headers)
    )
    return ack.seq
