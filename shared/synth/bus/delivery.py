"""Short handlers on FastStream, and the one path of every delivery to them.

Invariants. A handler may run twice for one event, so it is idempotent; it publishes its decisions with deterministic
ids and is acknowledged last. Meanwhile the delivery is kept alive. A transient error sends the event back with a
growing delay; a permanent error, or the sixth error in one process, makes it a dead letter. So does a handler that
kills its process again and again (`lost_tries`). The reader's `give_up` reports a dead letter to the services that wait
for its result. Events wait in the process for a slot of the handler, so that organisations have slots in turn,
however much one of them has queued; that wait is no try, and the process keeps no large body for it. A handler that
waits for long releases its slot first. What a newer version wrote is no dead letter: it goes back at once, and this
process takes no more from that queue. A dead letter that an operator retries comes through the work queue, and is
handled as it was the first time.
"""

# FastStream's and nats-py's generics are partly untyped.
# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false, reportMissingTypeArgument=false
# pyright: reportUnknownParameterType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import msgspec
import structlog
from faststream.nats import JStream, NatsBroker, NatsMessage, PullSub
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.errors import NotFoundError

from synth.bus.access.broker import BusBroker
from synth.bus.cancellation import cancel_until_ended
from synth.bus.connection import Connection, connect_options, inbox_of
from synth.bus.consumers import start_on_consumers, watch_consumers
from synth.bus.dead_letters import internal_problem, original_of, publish_dead_letter, tell_who_waits
from synth.bus.held_deliveries import HeldDeliveries, keep_alive, times_delivered
from synth.bus.lost_tries import Suspect, hold_place
from synth.bus.recorded import Recorded, delivery_numbers, from_delivery, from_parts, require_known, why_unreadable
from synth.bus.server.topology import (
    EVENT_TRIES,
    EVENTS,
    MAX_DELIVERIES,
    WORK,
    event_readers,
    queue_name,
    retry_queue_name,
)
from synth.errors import NewerVersion, Permanent, Problem, Transient
from synth.events.catalogue import Event, Reading, Role, spec_of
from synth.fairness.slots import FairSlots, Slot
from synth.runtime import logs
from synth.runtime.settings import ServiceSettings
from synth.runtime.telemetry import traced
from synth.work import Redelivery

log = logs.get("delivery")

_E = TypeVar("_E", bound=Event)
#: The tasks of the deliveries that have not ended, and those among them without a slot yet.
_begun: set[asyncio.Task[None]] = set()
_waiting: set[asyncio.Task[None]] = set()
_places: ContextVar[tuple[Slot | Suspect, ...]] = ContextVar("places", default=())
#: The body of an event that waits for a slot is kept up to this size, and read again in the log beyond it.
_KEPT_BYTES = 4096
_END_S = 5.0
_LEFT_S = 5.0

Handler = Callable[[Recorded, _E], Awaitable[None]]
GiveUp = Callable[[Recorded, Problem], Awaitable[None]]


def make_broker(settings: ServiceSettings, service: str) -> BusBroker:
    """Return a FastStream broker; no other code makes one."""
    servers = settings.nats_url.split(",")
    return BusBroker(service, servers, connect_options(settings, service), grace_s=settings.grace_s)


def on_event(
    broker: NatsBroker,
    bus: Connection,
    reader: Role,
    event: type[_E],
    handler: Handler[_E],
    *,
    concurrency: int = 1,
    spare: int = 0,
    give_up: GiveUp | None = None,
) -> None:
    """Let `handler` have each event of this kind that is delivered to this replica.

    concurrency: how many events run at a time, without handlers that called `release_slot`; more than one for a
    handler that waits for other services. spare: how many more, for organisations that have no running event.
    give_up: called with each event that becomes a dead letter.
    """
    spec = spec_of(event)
    if spec.reads.get(reader) is not Reading.QUEUE:
        raise Permanent(f"the catalogue does not let {reader} take {spec.type} from a queue")
    queue, retry_queue = queue_name(reader, spec.type), retry_queue_name(reader, spec.type)
    slots = FairSlots(concurrency, spare=spare)
    for stream, subject, durable, title in (
        (WORK, f"work.retry.{queue}.>", retry_queue, f"{spec.type}:retry"),
        (EVENTS, f"{spec.type}.>", queue, spec.type),
    ):
        held = HeldDeliveries(queue, durable=durable)
        deliveries = _Deliveries(bus, held, slots, event, handler, give_up, are_retries=stream == WORK)
        broker.subscriber(
            subject,
            durable=durable,
            stream=JStream(stream, declare=False),
            # One at a time and a short pull: a pull that is open when the server restarts waits for its own end.
            pull_sub=PullSub(batch_size=1, timeout=1.0),
            # The user of the service may hear no other inbox.
            inbox_prefix=f"{inbox_of(bus.service)}.".encode(),
            title=f"{reader.value}:{title}",
        )(deliveries.begin)


def release_slot() -> None:
    """Give the running handler's slot to another event; the handler goes on beside it, for a wait that costs nothing.

    If the process dies during the wait, the try is not counted: other work has killed it.

    The server delivers at most the consumer's `max_ack_pending` events that have not ended.
    """
    for place in _places.get():
        place.release()


@dataclass(frozen=True)
class _Deliveries(Generic[_E]):
    """The deliveries of one queue to one handler. are_retries: whether they are of dead letters that are retried."""

    bus: Connection
    held: HeldDeliveries
    slots: FairSlots
    kind: type[_E]
    handler: Handler[_E]
    give_up: GiveUp | None
    are_retries: bool

    async def begin(self, message: NatsMessage) -> None:
        """Let a delivery wait for its slot and be handled, beside the pull loop, which goes on to the next one."""
        msg = message.raw_message
        if self.bus.newer.leaves(self.held.queue):
            await _leave(msg)
            # Holds the pull loop, so that it requests no more events of this queue.
            await self.bus.newer.stay_away()
            return
        if not self.held.take(msg):
            return
        task = asyncio.create_task(self._in_turn(msg))
        _begun.add(task)
        _waiting.add(task)
        task.add_done_callback(lambda _: self.held.let_go(msg))
        task.add_done_callback(_on_end)

    async def _in_turn(self, msg: Msg) -> None:
        beat = asyncio.create_task(keep_alive(msg))
        me = asyncio.current_task()
        assert me is not None
        org = msg.subject.split(".")[3 if self.are_retries else 2]
        started = False
        try:
            left_out = not self.slots.has_room(org) and len(msg.data) > _KEPT_BYTES
            if left_out:
                msg.data = b""
            # The suspects' slot comes first: events that wait for it must not hold slots that others could use.
            async with hold_place(self.bus, self.held.durable, msg, org) as suspect, self.slots.hold(org) as slot:
                _waiting.discard(me)
                started = True
                if self.bus.newer.leaves(self.held.queue):
                    await _leave(msg)
                    return
                if left_out and not await _read_again(self.bus, msg):
                    return
                _places.set((slot,) if suspect is None else (slot, suspect))
                await (self._deliver_again if self.are_retries else self._deliver)(msg, suspect)
        except asyncio.CancelledError:
            if not started:
                # The process ends: another one has it at once.
                with suppress(NatsError):
                    await msg.nak()
            raise
        finally:
            beat.cancel()

    async def _deliver(self, msg: Msg, suspect: Suspect | None) -> None:
        if msg.subject.count(".") < 3:
            # It names nobody who could be informed of its end.
            await self._end(msg, None, "not a subject of ours")
            return
        await self._handle(msg, suspect, from_delivery(msg))

    async def _deliver_again(self, msg: Msg, suspect: Suspect | None) -> None:
        """Deliver the event of a retried dead letter; the event is read from the log, which still holds it."""
        try:
            again = msgspec.json.decode(msg.data, type=Redelivery)
            result = await self.bus.js.get_msg(EVENTS, again.seq)
        except (msgspec.DecodeError, RecursionError, NotFoundError) as error:
            await self._end(msg, None, f"no event to deliver again: {error!r}")
            return
        except (NatsError, TimeoutError) as error:
            log.warning("cannot read the event of a dead letter yet", error=repr(error))
            await msg.nak(delay=1.0)
            return
        assert result.subject is not None
        assert result.time is not None
        event = from_parts(result.subject, result.data or b"", result.headers, seq=again.seq, time=result.time)
        await self._handle(msg, suspect, event, letter=again.letter)

    async def _handle(self, msg: Msg, suspect: Suspect | None, event: Recorded, *, letter: int = 0) -> None:
        """letter: the dead letter that this is a retry of."""
        end = partial(self._end, msg, event, letter=letter)
        ids = {"job": event.key, "event": event.type, "seq": event.seq}
        with structlog.contextvars.bound_contextvars(**ids), traced(event.traceparent):
            try:
                event = await self.bus.schemas.judge(event)
                require_known(event)
                lost = 0 if suspect is None else await suspect.begin()
            except NewerVersion as error:
                self.bus.newer.meet(self.held.queue, str(error))
                await _leave(msg)
                return
            except Transient as error:
                log.warning("event sent back untried", reason=str(error))
                await msg.nak(delay=error.delay)
                return
            decoded = event.event
            if not isinstance(decoded, self.kind):
                await end(why_unreadable(event))
                return
            if lost >= MAX_DELIVERIES:
                await end(f"{lost} times in a row its process was lost while it was handled")
                return
            await self._try(msg, partial(self.handler, event, decoded), end)

    async def _try(
        self, msg: Msg, handle: Callable[[], Awaitable[None]], end: Callable[[str], Awaitable[None]]
    ) -> None:
        """Run the handler on an event, and end the delivery by its result. end: makes the event a dead letter."""
        tries, deliveries = self.held.begin_try(msg), times_delivered(msg)
        try:
            await handle()
            await msg.ack()
            self.held.end(msg)
        except Permanent as error:
            await end(str(error))
        except NewerVersion as error:
            # The newer event is not this one, but another in the log that the handler reads.
            self.bus.newer.meet(self.held.queue, str(error))
            await _leave(msg)
        except Exception as error:
            # No error may lose the event: it comes back, and becomes a dead letter in the end.
            if tries >= MAX_DELIVERIES:
                await end(f"after {tries} deliveries: {error!r}")
                return
            delay = min(30.0, 0.2 * 2**tries)
            if isinstance(error, Transient):
                delay = error.delay or delay
                log.warning("event sent back", reason=str(error), delay=delay, tries=tries, deliveries=deliveries)
            else:
                log.exception("handler failed, event sent back", delay=delay, tries=tries, deliveries=deliveries)
            await msg.nak(delay=delay)

    async def _end(self, msg: Msg, event: Recorded | None, reason: str, *, letter: int = 0) -> None:
        bus, seq = self.bus, delivery_numbers(msg.reply)[0] if event is None else event.seq
        letter = await publish_dead_letter(bus, *original_of(msg, event, letter), reason=reason, seq=seq, again=letter)
        if event is not None and self.give_up is not None:
            # Before the event leaves the queue: if this fails, it is delivered again, if there are deliveries left.
            problem = internal_problem(reason, f"{bus.service}, dead letter {letter}")
            await tell_who_waits(self.give_up(event, problem), msg.subject)
        await bus.nc.publish(msg.reply, b"+TERM " + " ".join(reason.split())[:200].encode())
        self.held.end(msg)


async def _read_again(bus: Connection, msg: Msg) -> bool:
    """Read the body of a waiting event in the log; False when that is not possible now, or it is not there any more."""
    try:
        result = await bus.js.get_msg(EVENTS, delivery_numbers(msg.reply)[0])
    except NotFoundError:
        log.warning("an event was erased while it waited", subject=msg.subject)
        await msg.ack()
        return False
    except (NatsError, TimeoutError) as error:
        log.warning("cannot read an event that waited yet", error=repr(error))
        await msg.nak(delay=1.0)
        return False
    msg.data = result.data or b""
    return True


async def _end_handlers(tasks: set[asyncio.Task[None]]) -> None:
    try:
        await cancel_until_ended(*tasks, what="a handler", again_s=1.0, within_s=_END_S)
    except Transient as error:
        # Its event comes back by itself.
        log.error("a handler was not ended", reason=str(error))


def _on_end(task: asyncio.Task[None]) -> None:
    _begun.discard(task)
    _waiting.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("delivery failed, it comes back by itself", error=repr(error))


async def serve_events(
    broker: NatsBroker, bus: Connection, reader: Role, stop: asyncio.Event, started: asyncio.Event
) -> None:
    """Set `started` and deliver until `stop`, then let the running handlers end. Raises when a consumer is missing."""
    types = [type_ for role, type_ in event_readers() if role is reader]
    queues = [(EVENTS, queue_name(reader, type)) for type in types]
    queues += [(WORK, retry_queue_name(reader, type)) for type in types]
    # FastStream would make a durable that is missing, with settings that are not the topology's. Started again, it goes
    # on with the queues that it does not take from yet.
    buckets = [EVENT_TRIES] if queues else []
    try:
        if await start_on_consumers(bus, queues, stop, buckets=buckets, start=broker.start):
            started.set()
            await watch_consumers(bus, queues, stop)
    finally:
        bus.newer.stop()
        await asyncio.gather(*(subscriber.stop() for subscriber in broker.subscribers))
        # While the broker's connection is there to send them back on.
        await _end_handlers(set(_waiting))
        if _begun:
            _, late = await asyncio.wait(_begun, timeout=broker.config.graceful_timeout)
            await _end_handlers(late)
        with suppress(NatsError):
            await broker.stop()


async def _leave(msg: Msg) -> None:
    """Give a delivery back for a newer process."""
    # Later than the next pull of a newer process: each loop of this one may meet it once more.
    await msg.nak(delay=_LEFT_S)
