"""Counts how often in a row a task failed, over all workers: before it runs, so that a task that kills them counts.

Invariants. An entry names the deliveries of the task that were begun since it last advanced, without the ones that were
handed back in good order. So a delivery that is lost with its process is one more, and one that ends well is none. A
delivery that had its process to itself, or failed by an error of its own, is a failure of the task; one that was lost
with others is a suspicion, which ends no task. Each write is by compare-and-set. A delivery removes only itself, at any
time: if the bus did not receive its hand-back, the removal is repeated later, even if another worker has begun the
task. Only the latest delivery can report an advance.
"""

# nats-py annotates parts of itself not at all.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import uuid4

import msgspec
from nats.errors import Error as NatsError
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError

from synth.bus.connection import Connection
from synth.bus.server.topology import TASK_FAILURES
from synth.errors import Transient
from synth.runtime import logs
from synth.work import Task

log = logs.get("task_failures")

_MAX_RACES = 12
#: Timeout of a write in seconds; the end of a process waits for it.
_WRITE_S = 2.0
#: Marks, in an entry, a delivery that is a failure of the task itself.
_OWN = "own:"


class TaskFailures:
    """The count of one task, as one delivery of it sees it."""

    def __init__(self, bus: Connection, task: Task) -> None:
        self._bus = bus
        self._key = task.subject.removeprefix("work.")
        self.before = 0
        """The task's own failures in a row before this delivery; 0 once the task has advanced."""
        self._id = uuid4().hex
        self._begun = False
        self._alone = False
        self.owed = False
        """Whether this delivery has ended in good order, and the bus has not received that."""
        self.cleared = asyncio.Event()
        """Set when the bus knows that the task has advanced: it is no longer suspected."""

    async def suspicions(self) -> int:
        """Return how often in a row the task was lost with a process that did other tasks too; sets `before` as well.

        Raises `Transient` when the bus does not answer.
        """
        try:
            begun = await self._change(lambda begun: begun)
        except (NatsError, TimeoutError) as error:
            raise Transient(f"cannot read how {self._key} failed: {error!r}") from error
        self.before = sum(one.startswith(_OWN) for one in begun)
        return len(begun) - self.before

    async def begin(self, *, alone: bool) -> int:
        """Count this delivery as a failure until the count is taken back. Returns the failures before it.

        alone: it has its process to itself, so that the death of that process is its own failure.
        Raises `Transient` when the bus does not answer.
        """
        # Also when its answer is lost: it may have been counted.
        self._begun, self._alone = True, alone
        try:
            before = await self._change(lambda begun: [*begun, f"{_OWN}{self._id}" if alone else self._id])
        except (NatsError, TimeoutError) as error:
            raise Transient(f"cannot count that {self._key} begins: {error!r}") from error
        self.before = sum(one.startswith(_OWN) for one in before)
        return self.before

    async def clear(self) -> bool:
        """Record that the task survived its time alone, and now shares its process. Returns whether the bus took it.

        Earlier suspicions do not count any more; its own failures do, until it has advanced.
        """

        def cleared(begun: list[str]) -> list[str]:
            mine = any(self._is_mine(one) for one in begun)
            own = [one for one in begun if one.startswith(_OWN) and not self._is_mine(one)]
            return [*own, self._id] if mine else begun

        return await self._say(cleared)

    async def forgive(self) -> None:
        """Take this delivery back, which ends in good order. It stays `owed` while the bus does not answer.

        A delivery that had its process to itself and ends so has harmed nobody, and is no longer suspected: otherwise
        the process would be emptied at each try of a task that cannot be run now.
        """
        if self._begun:
            # Set also during the write: if that is cancelled, the hand-back is still owed.
            self.owed = True
            self.owed = not await self._say(self._failures_of_others if self._alone else self._others)

    async def fail(self) -> None:
        """Count this delivery as a failure of its own, whether the task had advanced or not."""
        if self._begun:
            await self._say(lambda begun: [*self._others(begun), f"{_OWN}{self._id}"])

    async def reset(self) -> None:
        """Record that the task has advanced: earlier failures do not count, nor does the death of this process."""
        if self._begun and not self.cleared.is_set():
            self.before = 0
            # If the bus does not receive it, the next advance repeats it.
            if await self._say(lambda begun: [] if begun and self._is_mine(begun[-1]) else begun):
                self.cleared.set()

    async def forget(self) -> None:
        """Delete the count of a task that is over."""
        try:
            await (await self._bus.js.key_value(TASK_FAILURES)).delete(self._key)
        except (NatsError, TimeoutError) as error:
            # The entry expires when its time to live is over.
            log.warning("cannot forget the failures of a task", task=self._key, error=repr(error))

    def _is_mine(self, one: str) -> bool:
        return one.removeprefix(_OWN) == self._id

    def _others(self, begun: list[str]) -> list[str]:
        return [one for one in begun if not self._is_mine(one)]

    def _failures_of_others(self, begun: list[str]) -> list[str]:
        return [one for one in self._others(begun) if one.startswith(_OWN)]

    async def _say(self, change: Callable[[list[str]], list[str]]) -> bool:
        """Write a change; returns whether the bus took it within the time for which the end of a process waits."""
        try:
            async with asyncio.timeout(_WRITE_S):
                await self._change(change)
        except (NatsError, TimeoutError, Transient) as error:
            log.warning("cannot say that a task did not fail", task=self._key, error=repr(error))
            return False
        return True

    async def _change(self, change: Callable[[list[str]], list[str]]) -> list[str]:
        """Change the entry; returns its earlier deliveries."""
        bucket = await self._bus.js.key_value(TASK_FAILURES)
        for _ in range(_MAX_RACES):
            try:
                entry = await bucket.get(self._key)
                before, last = _read(entry.value), entry.revision
            except KeyNotFoundError:
                before, last = list[str](), None
            after = change(before)
            if after == before:
                return before
            body = msgspec.json.encode(after)
            try:
                await (bucket.create(self._key, body) if last is None else bucket.update(self._key, body, last=last))
            except KeyWrongLastSequenceError:
                continue
            return before
        raise Transient(f"{self._key}: lost {_MAX_RACES} races for its count")


def _read(entry: bytes | None) -> list[str]:
    """Return the deliveries that an entry names; none if another version wrote it in another form."""
    try:
        return msgspec.json.decode(entry or b"[]", type=list[str])
    except msgspec.DecodeError:
        return []
