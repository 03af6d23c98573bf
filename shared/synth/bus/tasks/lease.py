"""A worker's hold on one delivery of a task, and the answers that it may still send for it.

Invariants. The server accepts an answer from every process that knows a message: a heartbeat or a hand-back on a
delivery that the server has given up acts on the delivery of the next owner. So both are sent only while the lease is
sure: while a heartbeat of less than `ack_wait` ago, by our clock, was answered by the server before the lease was in
doubt. A lease that is not sure is in doubt until its task is delivered to us again, or its owner learns that another
one has it.
"""

# nats-py annotates parts of itself not at all.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import time
from contextlib import suppress

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from synth.bus.kv.task_failures import TaskFailures
from synth.bus.server.topology import ACK_WAIT_S
from synth.runtime import logs
from synth.work import Task

log = logs.get("lease")

_IN_PROGRESS = b"+WPI"
_ASK_S = 2.0


class Lease:
    """The hold on a task: its owner marks progress here, and learns here that it has lost the task."""

    def __init__(
        self,
        task: Task,
        msg: Msg,
        *,
        failures: TaskFailures,
        ack_wait: float = ACK_WAIT_S,
        delivered_at: float | None = None,
    ) -> None:
        """failures: of the task, in a row. ack_wait: seconds after which the queue gives a silent task to another.

        delivered_at: the earliest monotonic time of the delivery; default: now.
        """
        self.task = task
        self.failures = failures
        self._reply = msg
        self._ack_wait = ack_wait
        self._sure_until = (time.monotonic() if delivered_at is None else delivered_at) + ack_wait
        self._mark = time.monotonic()
        self._deadline = 60.0
        self._stage = "start"
        self._let_go = False

    def progress(self, stage: str, *, deadline: float) -> None:
        """Mark progress: the task is in `stage`, and counts as hung after `deadline` seconds without another mark."""
        self._mark, self._stage, self._deadline = time.monotonic(), stage, deadline

    def allow(self, seconds: float) -> None:
        """Let the stage go on for so long from now without another mark, or as long as it has if that is longer."""
        self._deadline = max(self._deadline, time.monotonic() - self._mark + seconds)

    async def advanced(self) -> None:
        """Record that the task has made a durable result: earlier failures do not count any more."""
        await self.failures.reset()

    @property
    def hung(self) -> bool:
        return time.monotonic() - self._mark > self._deadline

    @property
    def was_let_go(self) -> bool:
        """Whether the task was ended because it hung."""
        return self._let_go

    def let_go(self) -> bool:
        """Decide to end the task; False when that was decided before: its clean-up must not be cancelled too."""
        first, self._let_go = not self._let_go, True
        return first

    @property
    def status(self) -> str:
        """The stage, and the seconds without progress, for a log."""
        return f"{self._stage}, {time.monotonic() - self._mark:.0f} s without progress (deadline {self._deadline:.0f})"

    @property
    def in_doubt(self) -> bool:
        """Whether the queue may have given the task to another worker."""
        return time.monotonic() > self._sure_until

    def adopt(self, msg: Msg, *, delivered_at: float) -> None:
        """Adopt a new delivery of a task that we still run: from now on this delivery is ours."""
        self._reply = msg
        self._sure_until = delivered_at + self._ack_wait

    async def keep(self, nc: Client, *, timeout: float) -> None:
        """Report to the queue that the task is in progress, and wait for the answer; sends nothing in doubt."""
        # A message published without a connection is sent after the outage, when another worker may have the task.
        if self.in_doubt or not nc.is_connected:
            return
        reply, requested = self._reply, time.monotonic()
        await nc.request(reply.reply, _IN_PROGRESS, timeout=timeout)
        # The report may have arrived late, when the server gives the same answer for the next owner's delivery.
        if reply is self._reply and not self.in_doubt:
            self._sure_until = requested + self._ack_wait

    async def done(self) -> None:
        """Acknowledge the task: it is finished, even if another worker has it, and the queue removes it."""
        await self._reply.ack()

    async def give_back(self, nc: Client, delay: float = 0) -> None:
        """Hand the task back to the queue, which delivers it again, to anybody, after `delay` seconds.

        In doubt nothing is sent: the queue gives the task to another worker by itself, or has done so. A heartbeat is
        sent first, as a delayed message could arrive when another worker has the task.
        """
        heard = False
        with suppress(NatsError, TimeoutError):
            await self.keep(nc, timeout=_ASK_S)
            heard = True
        if not heard or self.in_doubt or not nc.is_connected:
            log.warning("a task is left to the queue, which may have given it on", task=self.task.subject)
            return
        await self._reply.nak(delay=delay or None)
