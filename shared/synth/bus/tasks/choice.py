"""The choice of a worker among the waiting tasks: it takes a task of the organisation that has least of the pool.

The queue delivers in the order of arrival. So a worker that has room pulls all waiting tasks, keeps the chosen ones,
and gives the rest back at once, which keeps their order and counts as no failure. The same look shows how much each
organisation has: a task that is in the queue and does not wait is running, at this worker or at another one.
"""

# nats-py annotates parts of itself not at all.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from synth.bus.connection import Connection
from synth.bus.server.topology import TASKS_IN_FLIGHT, WORK, task_queue_name
from synth.bus.tasks.pull import pull
from synth.fairness.turns import FairTurns
from synth.runtime import logs
from synth.work import task_of

log = logs.get("task_choice")

#: A worker without room spends at most this part of the time on a search for organisations that have nothing. It pulls
#: tasks that it has seen before less often, as other workers may pull them too: the cost grows with their number.
_SPARE_LOOKING_SHARE = 0.05
_SPARE_LOOK_AGAIN_S = 5.0
_SPARE_LOOK_TASKS_PER_S = 100.0


class TaskChoice:
    """The choice among the tasks of one kind that wait in one pool."""

    def __init__(self, bus: Connection, kind: str, pool: str, *, send_on: Callable[[Msg], Awaitable[None]]) -> None:
        """send_on: gives a task back that is not chosen."""
        self._bus = bus
        self._send_on = send_on
        self._queue = task_queue_name(kind, pool)
        self._subjects = f"work.{kind}.{pool}.>"
        self._turns = FairTurns()
        self._look_at = 0.0
        self._seen: frozenset[str] = frozenset()
        self._seen_again_at = 0.0

    async def choose(self, delivered: Msg, *, own: Collection[str], room: int) -> list[Msg]:
        """Return the tasks to take instead of the delivered one: at most `room`, and messages that are no choice.

        own: the subjects of the tasks that this worker has.
        """
        try:
            queued = await self._queued()
        except (NatsError, TimeoutError) as error:
            # Fairness must not stop the work.
            log.warning("cannot look at the queue, its first task is taken", queue=self._queue, error=repr(error))
            return [delivered]
        orgs = {_org_of(subject) for subject in queued} - {None}
        if len(orgs) < 2:
            self._note(delivered)
            return [delivered]
        waiting = await pull(self._bus, self._queue, batch=TASKS_IN_FLIGHT)
        return await self._pick([delivered, *waiting], queued, own, room=room, only_new=False)

    async def choose_spare(self, *, own: Collection[str], room: int) -> list[Msg]:
        """Return the tasks to take in spare places, without other room: tasks of organisations that have nothing."""
        now = time.monotonic()
        if now < self._look_at:
            return []
        # Replicas that started together must not look at the same time for ever.
        jitter = random.uniform(0.5, 1.5)
        here = {_org_of(subject) for subject in own}
        try:
            queued = await self._queued()
            others = frozenset(subject for subject in queued if _org_of(subject) not in here)
            if not others or (others <= self._seen and now < self._seen_again_at):
                return []
            waiting = await pull(self._bus, self._queue, batch=TASKS_IN_FLIGHT)
            again_s = max(_SPARE_LOOK_AGAIN_S, len(waiting) / _SPARE_LOOK_TASKS_PER_S)
            self._seen, self._seen_again_at = others, now + jitter * again_s
            return await self._pick(waiting, queued, own, room=room, only_new=True)
        except (NatsError, TimeoutError) as error:
            log.warning("cannot look at the queue", queue=self._queue, error=repr(error))
            return []
        finally:
            took = time.monotonic() - now
            self._look_at = now + jitter * took / _SPARE_LOOKING_SHARE

    async def _queued(self) -> list[str]:
        """Return the subjects of all tasks of the queue, also of the running ones."""
        info = await self._bus.js.stream_info(WORK, subjects_filter=self._subjects)
        return list(info.state.subjects or {})

    async def _pick(
        self, waiting: list[Msg], queued: list[str], own: Collection[str], *, room: int, only_new: bool
    ) -> list[Msg]:
        """Choose tasks, and give back the others. only_new: choose only organisations that have nothing in the pool."""
        # Only the last delivery of a task that was delivered twice is valid.
        waiting = list({msg.subject: msg for msg in waiting}.values())
        here = {msg.subject for msg in waiting if msg.subject not in own}
        owned = Counter(org for subject in queued if subject not in here and (org := _org_of(subject)) is not None)
        taken: list[Msg] = []
        by_org: dict[str, list[Msg]] = {}
        for msg in waiting:
            org = _org_of(msg.subject)
            if org is None or msg.subject in own:
                # No task, or one that this worker has already.
                taken.append(msg)
            else:
                by_org.setdefault(org, []).append(msg)
        for _ in range(room):
            candidates = [org for org in by_org if not (only_new and owned[org])]
            if not candidates:
                break
            org = self._turns.next(candidates, owned)
            taken.append(by_org[org].pop(0))
            if not by_org[org]:
                del by_org[org]
            owned[org] += 1
            self._turns.serve(org)
        left = {msg.subject for msgs in by_org.values() for msg in msgs}
        for msg in waiting:
            if msg.subject in left:
                await self._send_on(msg)
        return taken

    def _note(self, msg: Msg) -> None:
        org = _org_of(msg.subject)
        if org is not None:
            self._turns.serve(org)


def _org_of(subject: str) -> str | None:
    task = task_of(subject)
    return None if task is None else task.org
