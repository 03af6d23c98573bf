"""Pulls tasks from a work queue."""

# nats-py annotates parts of itself not at all.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import asyncio
import json

from nats.aio.msg import Msg
from nats.errors import TimeoutError as NatsTimeout
from nats.js import JetStreamContext, api
from nats.js.errors import APIError

from synth.bus.connection import Connection
from synth.bus.server.topology import WORK
from synth.runtime import logs

log = logs.get("pull")

#: Seconds that the bus has for its answer, beyond the time that it waits for a task.
_ANSWER_S = 2.0
#: Statuses that mean that there is no task, or no more of them, for now.
_NO_MORE = (api.StatusCode.NO_MESSAGES, api.StatusCode.CONFLICT, api.StatusCode.REQUEST_TIMEOUT)


async def pull(bus: Connection, queue: str, *, batch: int, wait_s: float = 0) -> list[Msg]:
    """Return up to `batch` waiting tasks of a queue, in their order; with `wait_s` also tasks that arrive in that time.

    Each pull has an inbox of its own, so the tasks that it returns were delivered after it began. A task that was
    delivered too late for an earlier pull is dropped: the queue delivers it again by itself. Raises nats-py's errors if
    the queue cannot be reached.
    """
    results: list[Msg] = []
    inbox = bus.nc.new_inbox()
    subscription = await bus.nc.subscribe(inbox)
    until = {"expires": int(wait_s * 1e9)} if wait_s else {"no_wait": True}
    try:
        body = json.dumps({"batch": batch} | until).encode()
        await bus.nc.publish(f"{bus.nc.api}.CONSUMER.MSG.NEXT.{WORK}.{queue}", body, reply=inbox)
        async with asyncio.timeout(wait_s + _ANSWER_S):
            while len(results) < batch:
                msg = await subscription.next_msg(timeout=wait_s + _ANSWER_S)
                status = JetStreamContext.is_status_msg(msg)
                if status in _NO_MORE:
                    break
                if status:
                    raise APIError.from_msg(msg)
                results.append(msg)
    except (NatsTimeout, TimeoutError):
        log.warning("a look at the queue did not end", queue=queue, found=len(results))
    finally:
        await subscription.unsubscribe()
    return results
