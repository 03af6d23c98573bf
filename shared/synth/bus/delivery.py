"""Short handlers on FastStream, and the one middleware that every delivery to them goes through.

Invariants. A handler may run twice for one event, so it is idempotent; it publishes what it decides with
deterministic ids and is acknowledged last. Meanwhile the delivery is kept alive. A transient error sends the event
back with a growing delay, at most six times; a permanent one, and the seventh time, is a dead letter. An event whose
handler kills the process is counted by the server, and so becomes a dead letter too. Whoever waits for what a dead
letter should have led to is told by the reader's `give_up`. A handler that waits for long releases its slot first.
"""

# FastStream's and nats-py's generics are partly untyped.
# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false, reportMissingTypeArgument=false
# pyright: reportUnknownParameterType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from typing import Any, TypeVar

import structlog
from faststream import AckPolicy
from faststream.nats import JStream, NatsBroker, NatsMessage, PullSub
from faststream.nats.security import NatsUserPassword
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.errors import NotFoundError

from synth.bus.connection import Connection, connect_options
from synth.bus.dead_letters import publish_dead_letter
from synth.bus.recorded import Recorded, from_delivery
from synth.bus.server.topology import EVENTS, HEARTBEAT_S, MAX_DELIVERIES, queue_name
from synth.errors import Permanent, Problem, Transient
from synth.events.catalogue import CATALOGUE, Event, Reading, Role, spec_of
from synth.runtime import logs
from synth.runtime.settings import ServiceSettings
from synth.runtime.telemetry import traced

log = logs.get("delivery")

_E = TypeVar("_E", bound=Event)
#: The deliveries whose handlers go on after they released their slots.
_detached: set[asyncio.Task[None]] = set()
_slot_released: ContextVar[asyncio.Event | None] = ContextVar("slot_released", default=None)
_DETACHED_GRACE_S = 5.0

Handler = Callable[[Recorded, _E], Awaitable[None]]
GiveUp = Callable[[Recorded, Problem], Awaitable[None]]


def make_broker(settings: ServiceSettings, service: str) -> NatsBroker:
    """The only place where a FastStream broker is made."""
    options = connect_options(settings, service)
    user, password = options.pop("user", None), options.pop("password", None)
    return NatsBroker(
        settings.nats_url.split(","),
        graceful_timeout=settings.grace_s,
        ack_policy=AckPolicy.MANUAL,
        security=NatsUserPassword(str(user), str(password)) if user else None,
        logger=None,
        **options,  # type: ignore[arg-type]
    )


def on_event(
    broker: NatsBroker,
    bus: Connection,
    reader: Role,
    event: type[_E],
    handler: Handler[_E],
    *,
    concurrency: int = 1,
    give_up: GiveUp | None = None,
) -> None:
    """Let `handler` have each event of this kind that is delivered to this replica.

    concurrency: how many at a time; more than one for a handler that waits for others, beside those that called
    `release_slot`. give_up: told of each event that becomes a dead letter.
    """
    spec = spec_of(event)
    if spec.reads.get(reader) is not Reading.QUEUE:
        raise Permanent(f"the catalogue does not let {reader} take {spec.type} from a queue")

    async def deliver(message: NatsMessage) -> None:
        await _until_released(_deliver(bus, message.raw_message, event, handler, give_up))

    for n in range(concurrency):
        # Each is a pull loop of its own: FastStream's `max_workers` would fetch events that nobody keeps alive.
        broker.subscriber(
            f"{spec.type}.>",
            durable=queue_name(reader, spec.type),
            stream=JStream(EVENTS, declare=False),
            # One at a time and a short pull: a pull that is open when the server restarts waits for its own end.
            pull_sub=PullSub(batch_size=1, timeout=1.0),
            title=f"{reader.value}:{spec.type}" + (f":{n}" if n else ""),
        )(deliver)


def release_slot() -> None:
    """Give the running handler's slot to another event; the handler goes on beside it, for a wait that costs nothing.

    The server delivers at most the consumer's `max_ack_pending` (1000) events that nobody has ended.
    """
    released = _slot_released.get()
    if released is not None:
        released.set()


async def _until_released(delivery: Coroutine[Any, Any, None]) -> None:
    """Wait until the delivery has ended, or its handler has released its slot."""
    released = asyncio.Event()
    _slot_released.set(released)  # the task's context is a copy of this one
    task, leaving = asyncio.create_task(delivery), asyncio.create_task(released.wait())
    try:
        await asyncio.wait([task, leaving], return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        task.cancel()
        raise
    finally:
        leaving.cancel()
    if task.done():
        task.result()
    else:
        _detached.add(task)
        task.add_done_callback(_on_detached_end)


def _on_detached_end(task: asyncio.Task[None]) -> None:
    _detached.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("delivery failed, it comes back by itself", error=repr(error))


async def serve_events(broker: NatsBroker, bus: Connection, reader: Role, stop: asyncio.Event) -> None:
    """Deliver to the handlers until `stop`, then let the running ones end. Raises when a consumer is missing."""
    queues = [queue_name(reader, spec.type) for spec in CATALOGUE.values() if spec.reads.get(reader) is Reading.QUEUE]
    # Before the start: FastStream would make a durable that is missing, with settings that are not the topology's.
    await _check_consumers(bus, queues)
    await broker.start()
    try:
        await watch_consumers(bus, queues, stop)
    finally:
        if _detached:
            # While the broker's connection is still there to send them back on.
            _, late = await asyncio.wait(_detached, timeout=_DETACHED_GRACE_S)
            for task in late:
                task.cancel()
        await broker.stop()


async def watch_consumers(bus: Connection, queues: list[str], stop: asyncio.Event, *, every_s: float = 5.0) -> None:
    """Raise when one of these durables is gone: FastStream's pull loop would spin on it and say nothing."""
    while not stop.is_set():
        try:
            await _check_consumers(bus, queues)
        except (NatsError, TimeoutError) as error:
            log.warning("cannot look at the consumers", error=repr(error))
        try:
            async with asyncio.timeout(every_s):
                await stop.wait()
        except TimeoutError:
            continue


async def _check_consumers(bus: Connection, queues: list[str]) -> None:
    for queue in queues:
        try:
            await bus.js.consumer_info(EVENTS, queue)
        except NotFoundError as error:
            raise Permanent(f"the consumer {queue} is gone; run `synthd bus init`") from error


async def _deliver(bus: Connection, msg: Msg, kind: type[_E], handler: Handler[_E], give_up: GiveUp | None) -> None:
    try:
        event = from_delivery(msg)
    except ValueError as error:
        await _end(bus, msg, None, f"not a subject of ours: {error}", None)
        return
    deliveries = msg.metadata.num_delivered
    ids = {"job": event.key, "event": event.type, "seq": event.seq}
    with structlog.contextvars.bound_contextvars(**ids), traced(event.traceparent):
        if not isinstance(event.event, kind):
            await _end(bus, msg, event, f"its body is not a {event.type} that this version can read", give_up)
            return
        if deliveries > MAX_DELIVERIES:
            await _end(bus, msg, event, f"delivered {deliveries} times without an end", give_up)
            return
        beat = asyncio.create_task(_heartbeat(msg))
        try:
            await handler(event, event.event)
            await msg.ack()
        except Permanent as error:
            await _end(bus, msg, event, str(error), give_up)
        except Exception as error:
            # Whatever it is, the event must not be lost: it comes back, and is a dead letter in the end.
            if deliveries == MAX_DELIVERIES:
                await _end(bus, msg, event, f"after {deliveries} deliveries: {error!r}", give_up)
                return
            delay = min(30.0, 0.2 * 2**deliveries)
            if isinstance(error, Transient):
                delay = error.delay or delay
                log.warning("event sent back", reason=str(error), delay=delay, deliveries=deliveries)
            else:
                log.exception("handler failed, event sent back", delay=delay, deliveries=deliveries)
            await msg.nak(delay=delay)
        finally:
            beat.cancel()


async def _end(bus: Connection, msg: Msg, event: Recorded | None, reason: str, give_up: GiveUp | None) -> None:
    letter = await publish_dead_letter(bus, msg.subject, msg.data, reason=reason, seq=event.seq if event else None)
    if event is not None and give_up is not None:
        # Before it leaves the queue: what fails here is delivered again, as long as there are deliveries left.
        await give_up(event, _internal(reason, f"{bus.service}, dead letter {letter}"))
    await bus.nc.publish(msg.reply, b"+TERM " + " ".join(reason.split())[:200].encode())


def _internal(reason: str, where: str) -> Problem:
    return Problem(
        what=f"internal error: {' '.join(reason.split())[:500]}",
        expected="this to be handled",
        fix="submit it again; if that ends so too, show this to whoever runs the cluster",
        where=where,
    )


async def _heartbeat(msg: Msg) -> None:
    while True:
        await asyncio.sleep(HEARTBEAT_S)
        try:
            await msg.in_progress()
        except NatsError as error:
            # The next beat may get through: a missed one must not end them all.
            log.warning("cannot say that an event is in progress", error=repr(error))
