"""Queues the tasks of live jobs again that the queue has lost.

nats-server drops a damaged message of the queue, and the job behind it would wait for ever. What a live job has queued
follows from its log (`due`). The queue is read before the log: a task whose job is live in the log that was read later
was not done when the queue was read. A task that is queued twice is one, and the owner of a job that is over returns at
once; so a look that is late changes nothing.
"""

# nats-py annotates parts of itself not at all.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import asyncio
import time
from typing import NoReturn

import msgspec
from nats.errors import Error as NatsError
from nats.js.errors import NotFoundError

from synth.bus.connection import Connection
from synth.bus.history.job_log import JobHistory, read_job
from synth.bus.publish import enqueue
from synth.bus.recorded import delivery_numbers
from synth.bus.replay import read_stream, replay
from synth.bus.server.topology import WORK
from synth.errors import SynthError
from synth.events import JobValidated, PolicyLoaded, PolicyRefused, RolloutBlocked
from synth.events.catalogue import subject_of
from synth.jobs.lifecycle import TERMINAL, IllegalTransition, JobStatus, State
from synth.methods.job import job_from_data
from synth.runtime import logs
from synth.verifier.settings import VerifierSettings
from synth.verifier.tasks.due import due_tasks
from synth.work import Task, task_of

log = logs.get("lost tasks")

_LOOK_S = 2.0
#: The states in which a job has tasks.
_BUSY = frozenset({State.VERIFIED, State.STARTED, State.CANCELLING, State.PAUSING})
#: The facts that change what a job has queued.
_FACTS = (PolicyLoaded, PolicyRefused, RolloutBlocked)


class LostTasks:
    """The comparison of the queue with the live jobs of the log."""

    def __init__(self, bus: Connection, settings: VerifierSettings) -> None:
        self._bus = bus
        self._settings = settings
        self._jobs: dict[tuple[str, str], JobStatus] = {}
        self._after = 0
        self._unreadable: list[str] = []

    def check(self) -> str | None:
        """Return the tasks that the server has and cannot read, for `/healthz`; None without any."""
        if not self._unreadable:
            return None
        some = ", ".join(self._unreadable[:3]) + (" …" if len(self._unreadable) > 3 else "")
        return f"the bus cannot read {len(self._unreadable)} tasks ({some}): run `synthd bus init`"

    async def run(self) -> NoReturn:
        """Compare at the start, after each new connection to the bus, and at intervals, for ever."""
        compared, due, warned = -1, 0.0, ""
        while True:
            connection = self._bus.nc.stats["reconnects"]
            if connection != compared or time.monotonic() >= due:
                try:
                    await self.queue_again()
                    compared, due, warned = connection, time.monotonic() + self._settings.task_check_s, ""
                except (SynthError, NatsError, TimeoutError) as error:
                    if repr(error) != warned:
                        log.warning("the queue cannot be compared with the log now", error=repr(error))
                    warned = repr(error)
            await asyncio.sleep(_LOOK_S)

    async def queue_again(self) -> list[Task]:
        """Queue every task that a live job has queued and that the queue lacks; returns these tasks."""
        queued = await self._queued()
        await self._read_log()
        lost: list[Task] = []
        unreadable: list[str] = []
        for (org, job_id), status in list(self._jobs.items()):
            if status.state not in _BUSY:
                continue
            for task in await self._due(org, job_id):
                there = queued.get(_place(task))
                if there is None:
                    lost += [task] if await enqueue(self._bus, task) else []
                elif await self._is_unreadable(there):
                    unreadable.append(there.subject)
        for task in lost:
            log.warning("a task was lost, and is queued again", task=task.subject, job=task.job_id)
        if unreadable and unreadable != self._unreadable:
            log.error("the bus cannot read tasks: run `synthd bus init`", tasks=unreadable)
        self._unreadable = unreadable
        return lost

    async def _queued(self) -> dict[tuple[object, ...], Task]:
        """Return the tasks that are queued or owned, whatever their pools."""
        info = await self._bus.js.stream_info(WORK, subjects_filter="work.>")
        tasks = [task for subject in info.state.subjects or {} if (task := task_of(subject)) is not None]
        return {_place(task): task for task in tasks}

    async def _read_log(self) -> None:
        """Take in the lifecycle facts since the last time."""
        async for message in read_stream(self._bus.nc, ["job.>"], after=self._after, headers_only=True):
            entity, fact, org, job_id = message.subject.split(".")
            status = self._jobs.setdefault((org, job_id), JobStatus())
            try:
                status.add(f"{entity}.{fact}")
            except IllegalTransition as error:
                log.warning("the log of a job is damaged", job=job_id, reason=str(error))
            # None: a deleted job, of which the log may have this fact alone.
            if status.state is None or status.state in TERMINAL:
                del self._jobs[org, job_id]
            self._after = delivery_numbers(message.reply)[0]

    async def _due(self, org: str, job_id: str) -> list[Task]:
        try:
            history = await read_job(self._bus, org, job_id)
            if history.state not in _BUSY:
                return []
            return await self._due_of(history)
        except (SynthError, msgspec.ValidationError) as error:
            # One job that cannot be read must not stand in the way of the others.
            log.warning("the tasks of a job are not known", job=job_id, reason=str(error))
            return []

    async def _due_of(self, history: JobHistory) -> list[Task]:
        job = job_from_data(history.need(JobValidated).job)
        subjects = [subject_of(kind, history.org, history.job_id) for kind in _FACTS]
        facts = await replay(self._bus, subjects, after=history.since, last_per_subject=True)
        return due_tasks(
            job,
            org=history.org,
            job_id=history.job_id,
            pool=self._settings.pool,
            replicas=self._settings.serve_replicas,
            term=history.term,
            facts={fact.type for fact in facts},
        )

    async def _is_unreadable(self, task: Task) -> bool:
        """Return whether the server has a task, and can neither deliver it nor replace it."""
        try:
            await self._bus.js.get_last_msg(WORK, task.subject)
        except NotFoundError:
            # Without a message the queue takes it: the job was over meanwhile, and its owner returns at once.
            return not await enqueue(self._bus, task)
        return False


def _place(task: Task) -> tuple[object, ...]:
    return task.kind, task.org, task.job_id, task.term, task.index
