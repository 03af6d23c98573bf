"""Owners of tasks: take one, keep it while it advances, finish it or hand it back.

Invariants. A task is one message of the work queue; its owner sends `in_progress` every 3 s, and only while the
task's progress mark is younger than its deadline, so that a hung owner loses it. A redelivered task that this
process still runs is adopted (its new reply subject), never run twice, also by a worker that has no room: a worker
whose hold is in doubt pulls all the same, and sends on tasks that are not its own. A task that was delivered longer ago
than `ack_wait` is not taken: a process that was frozen leaves it to its new owner. A task of a resumed job begins when
the tasks of its earlier terms in this process have ended. A task that its owner cannot do now goes back with a delay;
SIGTERM hands every task back at once. A task that can never be done, or has failed `failures` times in a row, becomes a
dead letter; if these failures were deaths of its workers, it does so before it would run again. `give_up` first reports
that to the services that wait for the task. A worker whose hold is in doubt ends no job: it reports nothing about the
task. The death of a process does not show which of its tasks was the cause: each is suspected, and a task that is
suspected too often has the worker to itself, until it has advanced or survived its time alone (`Solitude`). The death
of a worker counts as a failure of a task only if it ran that task alone. A worker with room takes the waiting task
whose organisation has least of the pool; one without takes, in its spare places, from organisations that have nothing.
No task is taken from its owner for another one.
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
from nats.js.errors import NotFoundError

from synth.bus.cancellation import cancel_until_ended
from synth.bus.connection import Connection
from synth.bus.dead_letters import publish_dead_letter, tell_who_waits
from synth.bus.kv.task_failures import TaskFailures
from synth.bus.server.topology import ACK_WAIT_S, HEARTBEAT_S, WORK, task_queue_name
from synth.bus.tasks.attempt_logs import AttemptLogs
from synth.bus.tasks.choice import TaskChoice
from synth.bus.tasks.lease import Lease
from synth.bus.tasks.pull import pull
from synth.bus.tasks.solitude import Solitude, SuspicionSettings
from synth.errors import Crashed, Fenced, NewerVersion, Permanent, SynthError, Transient
from synth.runtime import logs
from synth.work import Task, task_of

log = logs.get("worker")

_PULL_S = 1.0
_BUG_PAUSE_S = 5.0
#: Seconds between two looks of a worker without room: short compared with the start of a job in a spare place.
_FULL_PAUSE_S = 0.1
#: A task that is delivered to a worker without room goes on to another after this many seconds, not at once: the next
#: worker may have no room either.
_SEND_ON_S = 0.25
#: Seconds that the end of the process may take, and after which running tasks are cancelled again.
_HAND_BACK_S = 15.0
_HAND_BACK_AGAIN_S = 10.0
#: Seconds that tasks may take to make room for a suspect: less than the suspect may be silent.
_MAKE_ROOM_S = 45.0


class TaskWorker:
    """Takes tasks of one kind from one pool, up to a capacity, and runs each in an asyncio task."""

    def __init__(
        self,
        bus: Connection,
        *,
        kind: str,
        pool: str,
        capacity: int,
        failures: int,
        suspicion: SuspicionSettings,
        attempt_logs: AttemptLogs,
        run: Callable[[Task, Lease], Awaitable[None]],
        give_up: Callable[[Task, str], Awaitable[None]] | None = None,
        spare: int = 0,
    ) -> None:
        """failures: how often in a row a task may fail; then it is a dead letter. suspicion: when a task runs alone.

        spare: tasks beyond the capacity, of organisations that have none at work in the pool.

        run: does the task; returning acknowledges it, `Transient` and cancellation hand it back.

        give_up: called with each task that becomes a dead letter, and the reason, before it leaves the queue; an error
        hands the task back, so it may be called twice for one task.
        """
        self._bus = bus
        self._kind = kind
        self._queue = task_queue_name(kind, pool)
        self._capacity = capacity
        self._spare = spare
        self._choice = TaskChoice(bus, kind, pool, send_on=self._send_on)
        self._failures = failures
        self._solitude = Solitude(suspicion)
        self._attempt_logs = attempt_logs
        self._run = run
        self._give_up = give_up
        self._ack_wait = ACK_WAIT_S
        self._held: dict[str, tuple[Lease, asyncio.Task[None]]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._owed: list[TaskFailures] = []
        self._forgiving = asyncio.Lock()
        self._endless: dict[asyncio.Task[None], str] = {}
        # No taken task was delivered earlier; a pull or a choice among many may have lasted seconds since.
        self._delivered_at = 0.0
        self.last_poll = time.monotonic()

    @property
    def running(self) -> int:
        """How many tasks this process owns now."""
        return len(self._held)

    @property
    def runs_alone(self) -> bool:
        """Whether a suspected task has this worker to itself, or waits until it has."""
        return self._solitude.taken

    def health_problem(self) -> str | None:
        """Return the problem of this worker, for `/healthz`; it lasts until the process ends."""
        endless = [subject for running, subject in self._endless.items() if not running.done()]
        if endless:
            return f"cannot end {', '.join(endless)}, which hung and was cancelled"
        silent = time.monotonic() - self.last_poll
        return f"has not asked for work for {silent:.0f} s" if silent > 10 * _PULL_S else None

    async def serve(self, stop: asyncio.Event) -> None:
        """Take and run tasks until `stop`; then hand back the tasks still held. Raises when its consumer is gone."""
        beat = asyncio.create_task(self._heartbeat())
        try:
            await self._require_queue()
            while not stop.is_set():
                self.last_poll = time.monotonic()
                for msg in await self._next():
                    await self._take(msg)
        finally:
            beat.cancel()
            await self._hand_back()

    async def _next(self) -> list[Msg]:
        """Return the tasks to take now, chosen among the waiting ones."""
        if self._full and not any(lease.in_doubt and not lease.was_let_go for lease, _ in self._held.values()):
            await asyncio.sleep(_FULL_PAUSE_S)
            spare = self._capacity + self._spare - len(self._held)
            self._delivered_at = time.monotonic()
            leaves = spare <= 0 or self._solitude.taken or self._bus.newer.leaves(self._queue)
            return [] if leaves else await self._choice.choose_spare(own=self._held, room=spare)
        # A pull that is sent without a connection arrives after the outage, together with all others.
        if self._bus.newer.leaves(self._queue) or not self._bus.nc.is_connected:
            await asyncio.sleep(self._pull_s)
            return []
        try:
            # Set before the pull: this process may be frozen between the delivery and the next line.
            self._delivered_at = time.monotonic()
            delivered = await pull(self._bus, self._queue, batch=1, wait_s=self._pull_s)
            if not delivered:
                return []
            [msg] = delivered
            if msg.subject in self._held:
                return [msg]
            if self._full:
                await self._send_on(msg, _SEND_ON_S)
                return []
            return await self._choice.choose(msg, own=self._held, room=self._capacity - len(self._held))
        except (NatsError, TimeoutError) as error:
            log.warning("cannot pull", kind=self._kind, error=repr(error))
            await self._require_queue()
            await asyncio.sleep(0.5)
            return []

    async def _require_queue(self) -> None:
        # A pull fails in the same way if the consumer is gone and if the bus is away.
        try:
            self._ack_wait = (await self._bus.js.consumer_info(WORK, self._queue)).config.ack_wait or ACK_WAIT_S
        except NotFoundError as error:
            raise Permanent(f"the queue {self._queue} is gone; run `synthd bus init`") from error
        except NatsError as error:
            log.warning("cannot look at the queue", kind=self._kind, error=repr(error))

    @property
    def _pull_s(self) -> float:
        # Short compared with `ack_wait`, so that a pulled task is fresh.
        return min(_PULL_S, self._ack_wait / 4)

    @property
    def _full(self) -> bool:
        return len(self._held) >= self._capacity or self._solitude.taken

    async def _take(self, msg: Msg) -> None:
        own_run = self._held.get(msg.subject)
        if own_run is not None and own_run[0].was_let_go:
            # Another worker must run it: the run that is being ended here may never end.
            await self._send_on(msg, _SEND_ON_S)
            return
        if own_run is not None:
            own_run[0].adopt(msg, delivered_at=self._delivered_at)
            log.info("task adopted again", task=msg.subject)
            return
        if self._bus.newer.leaves(self._queue):
            # The answer to a pull that was open when newer work was found.
            await self._send_on(msg)
            return
        if time.monotonic() > self._delivered_at + self._ack_wait:
            # To run it now could take it from a worker that has it already.
            log.warning("a task was delivered too long ago to be taken", task=msg.subject)
            return
        try:
            task = msgspec.json.decode(msg.data, type=Task)
        except (msgspec.DecodeError, RecursionError) as error:
            await self._bury_unreadable(msg, f"not a task: {error}")
            return
        failures = TaskFailures(self._bus, task)
        lease = Lease(task, msg, delivered_at=self._delivered_at, ack_wait=self._ack_wait, failures=failures)
        running = asyncio.create_task(self._run_task(lease))
        self._held[msg.subject] = (lease, running)

    async def _send_on(self, msg: Msg, delay: float = 0) -> None:
        """Give back a task that this worker does not take, to any worker, after `delay` seconds.

        Nothing is sent for a task that was delivered longer ago than `ack_wait`: another worker has it by now.
        """
        if self._bus.nc.is_connected and time.monotonic() < self._delivered_at + self._ack_wait:
            await msg.nak(delay=delay or None)

    async def _bury_unreadable(self, msg: Msg, reason: str) -> None:
        """Make a dead letter of a message that is no task; its subject names the job that waits for it."""
        task = task_of(msg.subject)
        try:
            if task is not None and self._give_up is not None:
                await tell_who_waits(self._give_up(task, reason), msg.subject)
            await publish_dead_letter(self._bus, msg.subject, msg.data, reason=reason)
        except Exception:
            # After any error the queue must go on, and the waiting service must be informed before the message is gone.
            log.exception("cannot bury a message yet", task=msg.subject)
            await msg.nak(delay=_BUG_PAUSE_S)
            return
        await msg.term()

    async def _run_task(self, lease: Lease) -> None:
        try:
            async with self._attempt_logs.record(lease.task) as attempt_log:
                attempt_log.finished = await self._finish(lease)
        finally:
            self._held.pop(lease.task.subject, None)
            if lease.failures.owed:
                self._owed.append(lease.failures)

    async def _finish(self, lease: Lease) -> bool:
        """Do a task. Returns whether it is done; False if it is handed back, or another worker has it."""
        task = lease.task
        log.info("task taken", task=task.subject, job=task.job_id)
        try:
            await self._term_before(task)
            await self._forgive_owed()
            async with self._solitude.where_suspected(
                lease, capacity=self._capacity + self._spare, failures=self._failures, make_room=self._make_room
            ) as alone:
                await lease.failures.begin(alone=alone)
                await self._run_or_dead_letter(lease)
            await lease.done()
            await lease.failures.forget()
            log.info("task done", task=task.subject, job=task.job_id)
            return True
        except asyncio.CancelledError:
            if not lease.was_let_go:
                await lease.failures.forgive()
            await lease.give_back(self._bus.nc)
            raise
        except Fenced as error:
            # Another attempt runs it; the queue already knows its delivery, not ours.
            log.warning("task lost to another attempt", task=task.subject, job=task.job_id, reason=str(error))
            await lease.failures.forgive()
        except NewerVersion as error:
            self._bus.newer.meet(self._queue, f"{task.job_id}: {error}")
            await lease.failures.forgive()
            await lease.give_back(self._bus.nc)
        except Transient as error:
            log.warning("task handed back", task=task.subject, job=task.job_id, reason=str(error))
            await lease.failures.forgive()
            await lease.give_back(self._bus.nc, error.delay or 1.0)
        except Crashed as error:
            log.warning("the work ended by itself, and is tried again", task=task.subject, reason=str(error))
            await lease.failures.fail()
            await lease.give_back(self._bus.nc, 1.0)
        except Exception:
            # A bug must cost this task a retry, not the process and its other tasks.
            log.exception("task failed, will be retried", task=task.subject, job=task.job_id)
            await lease.failures.fail()
            await lease.give_back(self._bus.nc, _BUG_PAUSE_S)
        return False

    async def _make_room(self, suspect: Lease) -> None:
        """Hand back every other task. Raises `Transient` when one does not end."""
        others = [running for lease, running in self._held.values() if lease is not suspect]
        await cancel_until_ended(
            *others, what="a task that makes room", again_s=_HAND_BACK_AGAIN_S, within_s=_MAKE_ROOM_S
        )

    async def _forgive_owed(self) -> None:
        """Repeat the hand-backs that the bus did not receive, because it was away or slow."""
        async with self._forgiving:
            while self._owed:
                await self._owed[0].forgive()
                if self._owed[0].owed:
                    raise Transient("the bus does not answer what is owed to it", delay=1.0)
                self._owed.pop(0)

    async def _term_before(self, task: Task) -> None:
        before = [
            running
            for lease, running in self._held.values()
            if lease.task.job_id == task.job_id and lease.task.term < task.term
        ]
        if before:
            await asyncio.wait(before)

    async def _run_or_dead_letter(self, lease: Lease) -> None:
        if lease.failures.before >= self._failures:
            times = lease.failures.before
            await self._dead_letter(lease, f"{times} times in a row its worker failed or died before it had advanced")
            return
        try:
            await self._run(lease.task, lease)
        except (Transient, Fenced):
            raise
        except Permanent as error:
            await self._dead_letter(lease, str(error))
        except Exception as error:
            times = lease.failures.before + 1
            if times < self._failures:
                raise
            log.exception("task fails again and again", task=lease.task.subject, failures=times)
            reason = str(error) if isinstance(error, SynthError) else repr(error)
            await self._dead_letter(lease, f"after {times} failures in a row: {reason}")

    async def _dead_letter(self, lease: Lease, reason: str) -> None:
        task = lease.task
        if lease.in_doubt:
            raise Fenced(f"another worker may have it; here it ended so: {reason}")
        if self._give_up is not None:
            await tell_who_waits(self._give_up(task, reason), task.subject)
        await publish_dead_letter(self._bus, task.subject, msgspec.json.encode(task), reason=reason)

    async def _heartbeat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            await asyncio.gather(*(self._keep(lease, running) for lease, running in list(self._held.values())))

    async def _keep(self, lease: Lease, running: asyncio.Task[None]) -> None:
        if lease.hung:
            if lease.let_go():
                log.error("task hangs, letting it go", task=lease.task.subject, status=lease.status)
                ending = asyncio.create_task(self._end(running, lease))
                self._ending.add(ending)
                ending.add_done_callback(self._ending.discard)
            return
        try:
            await lease.keep(self._bus.nc, timeout=HEARTBEAT_S)
        except (NatsError, TimeoutError) as error:
            log.warning("cannot say that a task is in progress", task=lease.task.subject, error=repr(error))

    async def _end(self, running: asyncio.Task[None], lease: Lease) -> None:
        try:
            await cancel_until_ended(running, what=lease.task.subject)
        except Transient as error:
            # Its place is lost until the process ends, and another worker has its task by now.
            self._endless[running] = lease.task.subject
            log.error("a task that hangs cannot be ended", reason=str(error))

    async def _hand_back(self) -> None:
        running_tasks = [running for _, running in self._held.values()]
        try:
            await cancel_until_ended(*running_tasks, what="a task", again_s=_HAND_BACK_AGAIN_S, within_s=_HAND_BACK_S)
        except Transient as error:
            log.error("a task was not handed back", reason=str(error))
