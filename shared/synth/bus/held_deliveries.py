"""The deliveries of a queue that this process has not ended, and the number of tries of each event.

Invariants. An event is held once: one that is delivered again while it waits or is handled, as after an outage, goes on
with the newer delivery, the only one for which the server accepts an answer. Only tries of the handler count here;
tries that kill the process are counted on the bus (`lost_tries`).
"""

from __future__ import annotations

import asyncio

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from synth.bus.recorded import delivery_numbers
from synth.bus.server.topology import EVENTS_IN_FLIGHT, HEARTBEAT_S
from synth.runtime import logs

log = logs.get("delivery")

#: The message of a stream: its time too, as another log may have another one at its sequence.
_Key = tuple[int, int]


class HeldDeliveries:
    """The deliveries of one queue."""

    def __init__(self, queue: str, *, durable: str | None = None) -> None:
        """queue: its name. durable: the name of the queue of retried dead letters, if the events come from there."""
        self.queue = queue
        self.durable = durable or queue
        self._held: dict[_Key, Msg] = {}
        self._tries: dict[_Key, int] = {}

    def take(self, msg: Msg) -> bool:
        """Hold a delivery until `let_go`; returns False if its event is held already and goes on with this delivery."""
        earlier = self._held.setdefault(_key(msg), msg)
        if earlier is msg:
            return True
        earlier.reply = msg.reply
        return False

    def let_go(self, msg: Msg) -> None:
        """Stop holding a delivery: it was ended, or given back and may be delivered again."""
        self._held.pop(_key(msg), None)

    def begin_try(self, msg: Msg) -> int:
        """Count a try of the handler with this event; returns the number of tries in this process."""
        key = _key(msg)
        self._tries[key] = tries = self._tries.pop(key, 0) + 1
        if len(self._tries) > EVENTS_IN_FLIGHT:
            # The server has no more of them in flight: another process has ended the one that was tried longest ago.
            del self._tries[next(iter(self._tries))]
        return tries

    def end(self, msg: Msg) -> None:
        """Forget the tries of an event that has left the queue."""
        self._tries.pop(_key(msg), None)


def times_delivered(msg: Msg) -> int:
    """Return how often the server has delivered this event, to any process; nats-py keeps the first reply's count."""
    tokens = msg.reply.split(".")
    return int(tokens[4 if len(tokens) == 9 else 6])


def _key(msg: Msg) -> _Key:
    seq, _, time, _ = delivery_numbers(msg.reply)
    return seq, time


async def keep_alive(msg: Msg) -> None:
    """Report until cancelled that a delivery is in progress; else the server would give it to another process."""
    while True:
        await asyncio.sleep(HEARTBEAT_S)
        try:
            await msg.in_progress()
        except NatsError as error:
            # The next beat may get through: a missed one must not end them all.
            log.warning("cannot say that an event is in progress", error=repr(error))
