"""Gives a task that is suspected of ending its process a worker to itself, for as long as it is suspected.

Invariants. One suspect at a time has the worker, and nothing else begins there meanwhile. It shares the worker again
only when the bus has recorded that it is cleared: by an advance, or by the time that it has survived alone. So a death
of the process that is counted as the task's own cannot be another task's. Other suspects go back to the queue, and have
their turn: here when this one is cleared, or in another process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from synth.bus.cancellation import cancel_until_ended
from synth.bus.tasks.lease import Lease
from synth.errors import Transient
from synth.runtime import logs

log = logs.get("solitude")

#: Seconds between two attempts to record on the bus that a task is cleared.
_AGAIN_S = 1.0


@dataclass(frozen=True)
class SuspicionSettings:
    """When a task runs alone.

    after: how often in a row it was lost with a process that did other tasks too. alone_s: how long it runs alone, if
    it does not advance before.
    """

    after: int
    alone_s: float


class Solitude:
    """The suspect that has the worker of this process to itself."""

    def __init__(self, settings: SuspicionSettings) -> None:
        self._settings = settings
        self._suspect: Lease | None = None

    @property
    def taken(self) -> bool:
        """Whether a suspect has the worker, or waits until the others have made room."""
        return self._suspect is not None

    @asynccontextmanager
    async def where_suspected(
        self, lease: Lease, *, capacity: int, failures: int, make_room: Callable[[Lease], Awaitable[None]]
    ) -> AsyncGenerator[bool]:
        """Give a suspect the worker to itself in this block, until it is cleared. Yields whether the task runs alone.

        capacity: of the worker. failures: with so many a task is not run any more. make_room: ends its other tasks.
        Raises `Transient` when another suspect has the worker, or no room can be made.
        """
        if capacity == 1:
            yield True
            return
        suspected = await lease.failures.suspicions() >= self._settings.after
        # Applies also to a task that began beside the suspect and was not checked until now.
        if self._suspect is not None:
            raise Transient(f"{self._suspect.task.subject} is suspected of ending its process and runs alone")
        if not suspected:
            yield False
            return
        if lease.failures.before >= failures:
            # Nobody has to make room for a task that is only to be buried.
            yield True
            return
        self._suspect = lease
        clearing: asyncio.Task[None] | None = None
        try:
            log.warning("a task was lost with its process, and runs alone", task=lease.task.subject)
            await make_room(lease)
            clearing = asyncio.create_task(self._clear(lease))
            yield True
        finally:
            try:
                if clearing is not None:
                    await cancel_until_ended(clearing, what=f"the clearing of {lease.task.subject}", again_s=_AGAIN_S)
            finally:
                # Also if that is cancelled: a worker whose suspect is gone would never take a task again.
                if self._suspect is lease:
                    self._suspect = None

    async def _clear(self, lease: Lease) -> None:
        try:
            async with asyncio.timeout(self._settings.alone_s):
                await lease.failures.cleared.wait()
        except TimeoutError:
            while not await lease.failures.clear():  # noqa: ASYNC110 - it writes to the bus, and waits for nobody
                await asyncio.sleep(_AGAIN_S)
        self._suspect = None
        log.info("a suspected task runs well, and shares its process again", task=lease.task.subject)
