"""How often in a row a task has failed, over all workers: counted before it runs, so that one that kills them counts.

Invariants. An entry names the deliveries of the task that were begun since it last advanced, less those that were
handed back in good order. So a delivery that is lost with its process is one more, and one that ends well is none. A
delivery that had its process to itself, or failed by an error of its own, is a failure of the task; one that was lost
with others is a suspicion, which ends no task. Each write is by compare-and-set. A delivery takes only itself out,
whenever it says so: one whose hand-back the bus did not hear says it again later, also when another worker has begun
the task. Only the latest one says that it has advanced.
"""

# nats-py annotates parts of itself not at all.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import uuid4

import msgspec
from nats.errors import Error as NatsError
from nats.js.errors import Error as JetStreamError
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError

from synth.bus.connection import Connection
from synth.bus.server.topology import TASK_FAILURES
from synth.errors import Transient
from synth.runtime import logs
from synth.work import Task

log = logs.get("task_failures")

_MAX_RACES = 12
#: The end of a process waits for it.
_WRITE_S = 2.0
#: Marks, in an entry, a delivery that is a failure of the task itself.
_OWN = "own:"


class TaskFailures:
    """The count of one task, as one delivery of it sees it."""

    def __init__(self, bus: Connection, task: Task) -> None:
        self._bus = bus
        self._key = task.subject.removeprefix("work.")
        self.before = 0
        """Failures of its own in a row before this delivery; 0 once the task has advanced."""
        self._id = uuid4().hex
        self._begun = False
        self._alone = False
        self.owed = False
        """Whether this delivery has ended in good order, and the bus has not heard so."""
        self.cleared = asyncio.Event()
        """Set when the bus has heard that the task has advanced: nothing is suspected of it any more."""

    async def suspicions(self) -> int:
        """How often in a row the task was lost with a process that did other tasks too; `before` is known then, too.

        Raises `Transient` when the bus does not answer.
        """
        try:
            begun = await self._change(lambda begun: begun)
        except (NatsError, JetStreamError, TimeoutError) as error:
            raise Transient(f"cannot read how {self._key} failed: {error!r}") from error
        self.before = sum(one.startswith(_OWN) for one in begun)
        return len(begun) - self.before

    async def begin(self, *, alone: bool) -> int:
        """Count this delivery as one that fails, until it is said that it does not. Returns the failures before it.

        alone: it has its process to itself, so that the death of that process is its own failure.
        Raises `Transient` when the bus does not answer.
        """
        # Also when its answer is lost: it may have been counted.
        self._begun, self._alone = True, alone
        try:
            before = await self._change(lambda begun: [*begun, f"{_OWN}{self._id}" if alone else self._id])
        except (NatsError, JetStreamError, TimeoutError) as error:
            raise Transient(f"cannot count that {self._key} begins: {error!r}") from error
        self.before = sum(one.startswith(_OWN) for one in before)
        return self.before

    async def clear(self) -> bool:
        """It has survived its time alone, and shares its process from now on. Returns whether the bus has heard so.

        What was suspected before does not count any more; its own failures do, until it has advanced.
        """

        def cleared(begun: list[str]) -> list[str]:
            mine = any(self._is_mine(one) for one in begun)
            own = [one for one in begun if one.startswith(_OWN) and not self._is_mine(one)]
            return [*own, self._id] if mine else begun

        return await self._say(cleared)

    async def forgive(self) -> None:
        """This delivery ends in good order: it does not count. It stays `owed` while the bus does not answer.

        One that had its process to itself and ends so has harmed nobody, and is suspected no more: a task that cannot
        be run now would else have the process emptied for it each time that it is tried.
        """
        if self._begun:
            # Also while it is said: whoever is cancelled then owes it still.
            self.owed = True
            self.owed = not await self._say(self._failures_of_others if self._alone else self._others)

    async def fail(self) -> None:
        """This delivery has failed by itself, whether the task had advanced or not."""
        if self._begun:
            await self._say(lambda begun: [*self._others(begun), f"{_OWN}{self._id}"])

    async def reset(self) -> None:
        """The task has advanced: what failed before does not count any more, nor that this delivery's process dies."""
        if self._begun and not self.cleared.is_set():
            self.before = 0
            # What the bus has not heard is said again with the next advance.
            if await self._say(lambda begun: [] if begun and self._is_mine(begun[-1]) else begun):
                self.cleared.set()

    async def forget(self) -> None:
        """The task is over."""
        try:
            await (await self._bus.js.key_value(TASK_FAILURES)).delete(self._key)
        except (NatsError, JetStreamError, TimeoutError) as error:
            # It goes by itself, when its time to live is over.
            log.warning("cannot forget the failures of a task", task=self._key, error=repr(error))

    def _is_mine(self, one: str) -> bool:
        return one.removeprefix(_OWN) == self._id

    def _others(self, begun: list[str]) -> list[str]:
        return [one for one in begun if not self._is_mine(one)]

    def _failures_of_others(self, begun: list[str]) -> list[str]:
        return [one for one in self._others(begun) if one.startswith(_OWN)]

    async def _say(self, change: Callable[[list[str]], list[str]]) -> bool:
        """Whether the bus has heard it within the time that the end of a process waits for."""
        try:
            async with asyncio.timeout(_WRITE_S):
                await self._change(change)
        except (NatsError, JetStreamError, TimeoutError, Transient) as error:
            log.warning("cannot say that a task did not fail", task=self._key, error=repr(error))
            return False
        return True

    async def _change(self, change: Callable[[list[str]], list[str]]) -> list[str]:
        """What the entry was before."""
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
    """The deliveries that an entry names; none for one that another version wrote in another form."""
    try:
        return msgspec.json.decode(entry or b"[]", type=list[str])
    except msgspec.DecodeError:
        return []
