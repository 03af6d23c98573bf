"""Work that only a newer version can do: a process that meets some leaves it alone, and reports it.

Invariant. The process takes no more from a queue in which it has met such work: each of its pull loops costs
that work one delivery at most, and the next one to take it may be newer. It goes on with everything else.
"""

from __future__ import annotations

import asyncio

from prometheus_client import Gauge

from synth.runtime import logs

log = logs.get("newer")

_MET = Gauge("synth_newer_work", "1 for a queue that is left to processes of a newer version", ["queue"])


class NewerWork:
    """The queues that this process leaves alone, and why."""

    def __init__(self) -> None:
        self._met: dict[str, str] = {}
        self._stopping = asyncio.Event()

    def meet(self, queue: str, reason: str) -> None:
        """Leave this queue alone from now on. reason: describes the newer work."""
        if queue in self._met:
            return
        self._met[queue] = reason
        _MET.labels(queue).set(1)
        log.error("newer work met: its queue is left to a newer version of this service", queue=queue, reason=reason)

    def leaves(self, queue: str) -> bool:
        """Return whether this process no longer takes from the queue."""
        return queue in self._met

    def problem(self) -> str | None:
        """Return the problem for `/healthz`; None while every queue is taken from."""
        if not self._met:
            return None
        met = "; ".join(f"{queue}: {reason}" for queue, reason in self._met.items())
        return f"this version is too old for some of its work, and takes no more of it ({met}); upgrade this service"

    async def stay_away(self) -> None:
        """Wait until the process stops; for a pull loop that must not pull again."""
        await self._stopping.wait()

    def stop(self) -> None:
        """End the waits of `stay_away`."""
        self._stopping.set()
