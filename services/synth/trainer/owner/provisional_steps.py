"""Says which steps are trained before a checkpoint covers them, so that a watcher sees them as they happen.

Invariants. What is said here decides nothing: a resume reads checkpoints and `train.step` alone. Training never waits
for it: what cannot be appended now is said with what comes next, or never, when a checkpoint has covered it meanwhile.
"""

from __future__ import annotations

import asyncio

from synth.bus.publish import Fence, Publisher
from synth.errors import SynthError
from synth.events import ProvisionalStep, TrainProgressed
from synth.runtime import logs

log = logs.get("provisional steps")

#: Steps of one event: with some thirty figures each, they are far below the size that an event may have.
_MOST = 200
_APPEND_S = 5.0


class ProvisionalSteps:
    """The steps of an attempt that no checkpoint covers and that were not said yet."""

    def __init__(self, publisher: Publisher, fence: Fence, *, total: int, every_s: float, ttl_s: float) -> None:
        """total: steps of the job. every_s: seconds between two appends. ttl_s: seconds that one lives in the log."""
        self._publisher = publisher
        self._fence = fence
        self._total = total
        self._every_s = every_s
        self._ttl_s = ttl_s
        self._unsaid: dict[int, dict[str, float]] = {}
        self._any = asyncio.Event()

    def add(self, step: int, values: dict[str, float]) -> None:
        """A step that is trained and not durable. values: finite numbers."""
        self._unsaid[step] = values
        self._any.set()

    def clear(self, *, up_to: int) -> None:
        """A checkpoint covers every step up to this one."""
        self._unsaid = {step: values for step, values in self._unsaid.items() if step > up_to}
        if not self._unsaid:
            self._any.clear()

    async def run(self) -> None:
        """Append what there is to say, for as long as the attempt trains."""
        while True:
            await self._any.wait()
            # Most steps have a checkpoint of their own by then, and nothing is to be said.
            await asyncio.sleep(self._every_s)
            await self._append()

    async def _append(self) -> None:
        if not self._unsaid:
            return  # a checkpoint came first
        steps = [ProvisionalStep(step=step, values=values) for step, values in list(self._unsaid.items())[:_MOST]]
        event = TrainProgressed(of=self._total, attempt=self._fence.attempt, steps=steps)
        id = f"{self._fence.attempt}:{steps[0].step}-{steps[-1].step}"
        try:
            async with asyncio.timeout(_APPEND_S):
                await self._publisher.fenced(event, fence=self._fence, id=id, ttl=self._ttl_s)
        except (SynthError, TimeoutError) as error:
            log.warning("steps are not shown yet", first=steps[0].step, error=str(error) or type(error).__name__)
            return
        for said in steps:
            self._unsaid.pop(said.step, None)
        if not self._unsaid:
            self._any.clear()
