"""Asking a work queue for tasks."""

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

#: What the bus has for its answer, beyond the time that it is to wait for a task.
_ANSWER_S = 2.0
#: Statuses that say that there is no task, or no more of them, for now.
_NO_MORE = (api.StatusCode.NO_MESSAGES, api.StatusCode.CONFLICT, api.StatusCode.REQUEST_TIMEOUT)


async def pull(bus: Connection, queue: str, *, batch: int, wait_s: float = 0) -> list[Msg]:
    """Up to `batch` of the tasks that wait in a queue, in their order; with `wait_s` also what comes in these seconds.

    Each pull has an inbox of its own, so what it returns was delivered after it began. What was delivered for an
    earlier one, and came too late for it, goes nowhere: the queue gives it on by itself. Raises nats-py's errors where
    the queue cannot be asked.
    """
    found: list[Msg] = []
    inbox = bus.nc.new_inbox()
    subscription = await bus.nc.subscribe(inbox)
    until = {"expires": int(wait_s * 1e9)} if wait_s else {"no_wait": True}
    try:
        body = json.dumps({"batch": batch} | until).encode()
        await bus.nc.publish(f"{bus.nc.api}.CONSUMER.MSG.NEXT.{WORK}.{queue}", body, reply=inbox)
        async with asyncio.timeout(wait_s + _ANSWER_S):
            while len(found) < batch:
                msg = await subscription.next_msg(timeout=wait_s + _ANSWER_S)
                status = JetStreamContext.is_status_msg(msg)
                if status in _NO_MORE:
                    break
                if status:
                    raise APIError.from_msg(msg)
                found.append(msg)
    except (NatsTimeout, TimeoutError):
        log.warning("a look at the queue did not end", queue=queue, found=len(found))
    finally:
        await subscription.unsubscribe()
    return found
