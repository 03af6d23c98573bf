"""Short handlers on FastStream, and the one middleware that every delivery to them goes through.

Invariants. A handler may run twice for one event, so it is idempotent; it publishes what it decides with
deterministic ids and is acknowledged last. Meanwhile the delivery is kept alive. A transient error sends the event
back with a growing delay, at most six times; a permanent one, and the seventh time, is a dead letter. An event whose
handler kills the process is counted by the server, and so becomes a dead letter too.
"""

# FastStream's and nats-py's generics are partly untyped.
# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false, reportMissingTypeArgument=false
# pyright: reportUnknownParameterType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog
from faststream import AckPolicy
from faststream.nats import JStream, NatsBroker, NatsMessage, PullSub
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.errors import NotFoundError

from synth import logs
from synth.bus.connection import Connection, connect_options
from synth.bus.dead import bury
from synth.bus.recorded import Recorded, from_delivery
from synth.bus.topology import EVENTS, HEARTBEAT_S, MAX_DELIVERIES, queue_name
from synth.catalogue import Event, Reading, Role, spec_of
from synth.errors import Permanent, Transient
from synth.settings import ServiceSettings
from synth.telemetry import traced

log = logs.get("delivery")

Handler = Callable[[Recorded], Awaitable[None]]


def make_broker(settings: ServiceSettings, service: str) -> NatsBroker:
    """The only place where a FastStream broker is made."""
    return NatsBroker(
        settings.nats_url.split(","),
        graceful_timeout=settings.grace_s,
        ack_policy=AckPolicy.MANUAL,
        logger=None,
        **connect_options(settings, service),  # type: ignore[arg-type]
    )


def on_event(broker: NatsBroker, bus: Connection, reader: Role, event: type[Event], handler: Handler) -> None:
    """Let `handler` have each event of this kind that is delivered to this replica, one at a time."""
    spec = spec_of(event)
    if spec.reads.get(reader) is not Reading.QUEUE:
        raise Permanent(f"the catalogue does not let {reader} take {spec.type} from a queue")

    async def deliver(message: NatsMessage) -> None:
        await _deliver(bus, message.raw_message, handler)

    broker.subscriber(
        f"{spec.type}.>",
        durable=queue_name(reader, spec.type),
        stream=JStream(EVENTS, declare=False),
        # One at a time and a short pull: a pull that is open when the server restarts waits for its own end.
        pull_sub=PullSub(batch_size=1, timeout=1.0),
        title=f"{reader.value}:{spec.type}",
    )(deliver)


async def watch_consumers(bus: Connection, reader: Role, events: list[type[Event]], stop: asyncio.Event) -> None:
    """Raise when a durable of this service is gone: FastStream's pull loop would spin on it and say nothing."""
    while not stop.is_set():
        for event in events:
            try:
                await bus.js.consumer_info(EVENTS, queue_name(reader, spec_of(event).type))
            except NotFoundError as error:
                raise Permanent(f"the consumer of {spec_of(event).type} is gone; run `synthd bus init`") from error
            except (NatsError, TimeoutError) as error:
                log.warning("cannot look at a consumer", error=repr(error))
        try:
            await asyncio.wait_for(stop.wait(), 5)
        except TimeoutError:
            continue


async def _deliver(bus: Connection, msg: Msg, handler: Handler) -> None:
    event = from_delivery(msg)
    deliveries = msg.metadata.num_delivered
    ids = {"job": event.key, "event": event.type, "seq": event.seq}
    with structlog.contextvars.bound_contextvars(**ids), traced(event.traceparent):
        if deliveries > MAX_DELIVERIES:
            await _end(bus, msg, event, f"delivered {deliveries} times without an end")
            return
        beat = asyncio.create_task(_beat(msg))
        try:
            await handler(event)
            await msg.ack()
        except Permanent as error:
            await _end(bus, msg, event, str(error))
        except Exception as error:
            # Whatever it is, the event must not be lost: it comes back, and is a dead letter in the end.
            if deliveries == MAX_DELIVERIES:
                await _end(bus, msg, event, f"after {deliveries} deliveries: {error!r}")
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


async def _end(bus: Connection, msg: Msg, event: Recorded, reason: str) -> None:
    await bury(bus, msg.subject, msg.data, reason=reason, seq=event.seq)
    await bus.nc.publish(msg.reply, b"+TERM " + " ".join(reason.split())[:200].encode())


async def _beat(msg: Msg) -> None:
    while True:
        await asyncio.sleep(HEARTBEAT_S)
        await msg.in_progress()
