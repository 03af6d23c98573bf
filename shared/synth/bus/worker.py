"""Owners of tasks: take one, keep it while it advances, finish it or hand it back.

Invariants. A task is one message of the work queue; its owner says `in_progress` every 3 s, and only while the
task's progress mark is younger than its deadline, so that a hung owner loses it. A redelivered task that this
process still runs is adopted (its new reply subject), never run twice; one of a resumed job begins when what this
process still does of the term before has ended. A task that its owner cannot do now goes back
with a delay; SIGTERM hands everything back at once. What can never be done, and what still ends in a bug after six
deliveries, is a dead letter; whoever waits for its end is told first, through `give_up`.
"""

# nats-py annotates parts of itself not at all.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import msgspec
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import TimeoutError as NatsTimeout
from nats.js import JetStreamContext
from nats.js.errors import Error as JetStreamError
from nats.js.errors import NotFoundError

from synth.bus.connection import Connection
from synth.bus.dead_letters import publish_dead_letter
from synth.bus.server.topology import HEARTBEAT_S, MAX_DELIVERIES, WORK, task_queue_name
from synth.errors import Fenced, Permanent, Transient
from synth.runtime import logs
from synth.work import Task

log = logs.get("worker")

_PULL_S = 1.0
_BUG_PAUSE_S = 5.0


class Lease:
    """What holds a task: its owner marks progress here, and is told here that it has lost the task."""

    def __init__(self, task: Task, msg: Msg) -> None:
        self.task = task
        self._reply = msg
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

    @property
    def hung(self) -> bool:
        return time.monotonic() - self._mark > self._deadline

    def let_go(self) -> bool:
        """Decide to end the task; False when that was decided before: its clean-up must not be cancelled too."""
        first, self._let_go = not self._let_go, True
        return first

    @property
    def deliveries(self) -> int:
        """How often the queue has given the task to somebody, this time included."""
        return self._reply.metadata.num_delivered

    @property
    def status(self) -> str:
        """The stage, and the seconds without progress, for a log."""
        return f"{self._stage}, {time.monotonic() - self._mark:.0f} s without progress (deadline {self._deadline:.0f})"

    def adopt(self, msg: Msg) -> None:
        """The same task was delivered again while we run it: from now on this delivery is ours."""
        self._reply = msg

    async def keep(self) -> None:
        """Tell the queue that the task is still in progress."""
        await self._reply.in_progress()

    async def done(self) -> None:
        """Acknowledge the task: it is finished, and the queue forgets it."""
        await self._reply.ack()

    async def give_back(self, delay: float = 0) -> None:
        """Hand the task back to the queue, which delivers it again, to anybody, after `delay` seconds."""
        await self._reply.nak(delay=delay or None)


class TaskWorker:
    """Takes tasks of one kind from one pool, up to a capacity, and runs each in an asyncio task."""

    def __init__(
        self,
        bus: Connection,
        *,
        kind: str,
        pool: str,
        capacity: int,
        run: Callable[[Task, Lease], Awaitable[None]],
        give_up: Callable[[Task, str], Awaitable[None]] | None = None,
    ) -> None:
        """run: does the task; returning acknowledges it, `Transient` and cancellation hand it back.

        give_up: told of each task that becomes a dead letter, and why, before it leaves the queue; what it raises
        hands the task back, so it may be told of one task twice.
        """
        self._bus = bus
        self._kind = kind
        self._pool = pool
        self._capacity = capacity
        self._run = run
        self._give_up = give_up
        self._held: dict[str, tuple[Lease, asyncio.Task[None]]] = {}
        self.last_poll = time.monotonic()

    @property
    def running(self) -> int:
        """How many tasks this process owns now."""
        return len(self._held)

    def health_problem(self) -> str | None:
        """What is wrong with this worker, for `/healthz`: it has not polled for too long."""
        silent = time.monotonic() - self.last_poll
        return f"has not asked for work for {silent:.0f} s" if silent > 10 * _PULL_S else None

    async def serve(self, stop: asyncio.Event) -> None:
        """Take and run tasks until `stop`; then hand back what is still held. Raises when its consumer is gone."""
        beat = asyncio.create_task(self._heartbeat())
        subscription: JetStreamContext.PullSubscription | None = None
        try:
            while not stop.is_set():
                self.last_poll = time.monotonic()
                if subscription is None:
                    subscription = await self._subscribe()
                msg = await self._next(subscription)
                if msg is not None:
                    await self._take(msg)
        finally:
            beat.cancel()
            await self._hand_back()

    async def _subscribe(self) -> JetStreamContext.PullSubscription:
        name = task_queue_name(self._kind, self._pool)
        return await self._bus.js.pull_subscribe_bind(durable=name, stream=WORK)

    async def _next(self, subscription: JetStreamContext.PullSubscription) -> Msg | None:
        if len(self._held) >= self._capacity:
            await asyncio.sleep(_PULL_S / 4)
            return None
        try:
            return (await subscription.fetch(1, timeout=_PULL_S))[0]
        except (NatsTimeout, TimeoutError):
            return None
        except (NatsError, JetStreamError) as error:
            log.warning("cannot pull", kind=self._kind, error=repr(error))
            await self._require_queue()
            await asyncio.sleep(0.5)
            return None

    async def _require_queue(self) -> None:
        # A pull from a consumer that is gone and one from a bus that is away fail alike.
        name = task_queue_name(self._kind, self._pool)
        try:
            await self._bus.js.consumer_info(WORK, name)
        except NotFoundError as error:
            raise Permanent(f"the queue {name} is gone; run `synthd bus init`") from error
        except (NatsError, JetStreamError) as error:
            log.warning("cannot look at the queue", kind=self._kind, error=repr(error))

    async def _take(self, msg: Msg) -> None:
        held = self._held.get(msg.subject)
        if held is not None:
            held[0].adopt(msg)
            log.info("task adopted again", task=msg.subject)
            return
        try:
            task = msgspec.json.decode(msg.data, type=Task)
        except msgspec.DecodeError as error:
            await publish_dead_letter(self._bus, msg.subject, msg.data, reason=f"not a task: {error}")
            await msg.term()
            return
        lease = Lease(task, msg)
        running = asyncio.create_task(self._run_task(lease))
        self._held[msg.subject] = (lease, running)

    async def _run_task(self, lease: Lease) -> None:
        task = lease.task
        log.info("task taken", task=task.subject, job=task.job_id)
        try:
            await self._term_before(task)
            await self._run_or_dead_letter(lease)
            await lease.done()
            log.info("task done", task=task.subject, job=task.job_id)
        except asyncio.CancelledError:
            await lease.give_back()
            raise
        except Fenced as error:
            # Another attempt runs it; the queue already knows its delivery, not ours.
            log.warning("task lost to another attempt", task=task.subject, job=task.job_id, reason=str(error))
        except Transient as error:
            log.warning("task handed back", task=task.subject, job=task.job_id, reason=str(error))
            await lease.give_back(error.delay or 1.0)
        except Exception:
            # A bug must cost this task a retry, not the process and its other tasks.
            log.exception("task failed, will be retried", task=task.subject, job=task.job_id)
            await lease.give_back(_BUG_PAUSE_S)
        finally:
            self._held.pop(task.subject, None)

    async def _term_before(self, task: Task) -> None:
        before = [
            running
            for lease, running in self._held.values()
            if lease.task.job_id == task.job_id and lease.task.term < task.term
        ]
        if before:
            await asyncio.wait(before)

    async def _run_or_dead_letter(self, lease: Lease) -> None:
        try:
            await self._run(lease.task, lease)
        except (Transient, Fenced):
            raise
        except Permanent as error:
            await self._dead_letter(lease.task, str(error))
        except Exception as error:
            if lease.deliveries < MAX_DELIVERIES:
                raise
            log.exception("task fails again and again", task=lease.task.subject, deliveries=lease.deliveries)
            await self._dead_letter(lease.task, f"after {lease.deliveries} deliveries: {error!r}")

    async def _dead_letter(self, task: Task, reason: str) -> None:
        if self._give_up is not None:
            await self._give_up(task, reason)
        await publish_dead_letter(self._bus, task.subject, msgspec.json.encode(task), reason=reason)

    async def _heartbeat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            for lease, running in list(self._held.values()):
                if lease.hung:
                    if lease.let_go():
                        log.error("task hangs, letting it go", task=lease.task.subject, status=lease.status)
                        running.cancel()
                    continue
                try:
                    await lease.keep()
                except (NatsError, JetStreamError) as error:
                    log.warning("cannot say that a task is in progress", task=lease.task.subject, error=repr(error))

    async def _hand_back(self) -> None:
        held = list(self._held.values())
        for _, running in held:
            running.cancel()
        if held:
            await asyncio.wait([running for _, running in held], timeout=15)
