"""Publish the progress of an attempt before a checkpoint covers it, so that a user can follow it as it happens: its
steps, and before them the progress of its dataset.

Invariants. These events decide nothing: a resume reads only checkpoints and `train.step`. Training never waits for
them: an event that cannot be appended now is published with the next one, or never if a checkpoint covers it first.
"""

from __future__ import annotations

import asyncio
import itertools
import time

from synth.bus.publish import Fence, Publisher
from synth.errors import SynthError
from synth.events import DataProgress, ProvisionalStep, TrainProgressed
from synth.runtime import logs

log = logs.get("provisional steps")

#: Steps of one event: with some thirty figures each, they are far below the size that an event may have.
_MOST = 200
_APPEND_S = 5.0
#: Between two that say how far a dataset is: each is a line for who watches without a terminal.
_DATA_EVERY_S = 5.0


class ProvisionalSteps:
    """The steps of an attempt that no checkpoint covers and that are not yet published, and the dataset's progress.

    total: steps of the job, once they are known.
    """

    def __init__(self, publisher: Publisher, fence: Fence, *, every_s: float, ttl_s: float) -> None:
        """every_s: seconds between two appends. ttl_s: seconds that one lives in the log."""
        self.total = 0
        self._publisher = publisher
        self._fence = fence
        self._every_s = every_s
        self._ttl_s = ttl_s
        self._unpublished: dict[int, dict[str, float]] = {}
        self._data: DataProgress | None = None
        self._data_stage, self._data_due = "", 0.0
        self._data_number = itertools.count(1)
        self._any = asyncio.Event()

    def add(self, step: int, values: dict[str, float]) -> None:
        """Add a step that is trained and not durable. values: finite numbers."""
        self._unpublished[step] = values
        self._any.set()

    def set_data(self, progress: DataProgress) -> None:
        """Set the progress of the dataset. It is published at intervals, and only for a stage that takes some time."""
        now = time.monotonic()
        if progress.stage != self._data_stage:
            self._data_stage, self._data_due = progress.stage, now + self._every_s
        if now >= self._data_due:
            self._data, self._data_due = progress, now + max(self._every_s, _DATA_EVERY_S)
            self._any.set()

    def clear(self, *, up_to: int) -> None:
        """Drop every step up to this one, because a checkpoint covers them."""
        self._unpublished = {step: values for step, values in self._unpublished.items() if step > up_to}
        self._data = None
        if not self._unpublished:
            self._any.clear()

    async def run(self) -> None:
        """Publish steps and progress for as long as the attempt trains."""
        while True:
            await self._any.wait()
            # Most steps have a checkpoint of their own by then, so nothing has to be published.
            await asyncio.sleep(self._every_s)
            await self._append()

    async def _append(self) -> None:
        if self._data is not None:
            await self._append_data(self._data)
        if not self._unpublished:
            return  # a checkpoint came first
        steps = [ProvisionalStep(step=step, values=values) for step, values in list(self._unpublished.items())[:_MOST]]
        event = TrainProgressed(of=self.total, attempt=self._fence.attempt, steps=steps)
        if not await self._publish(event, f"{self._fence.attempt}:{steps[0].step}-{steps[-1].step}"):
            return
        for published in steps:
            self._unpublished.pop(published.step, None)
        if not self._unpublished:
            self._any.clear()

    async def _append_data(self, progress: DataProgress) -> None:
        """Publish the progress of the dataset, without a retry: the next progress replaces it."""
        event = TrainProgressed(of=self.total, attempt=self._fence.attempt, steps=[], data=progress)
        await self._publish(event, f"{self._fence.attempt}:{progress.stage}:{next(self._data_number)}")
        if self._data is progress:
            self._data = None
            if not self._unpublished:
                self._any.clear()

    async def _publish(self, event: TrainProgressed, id: str) -> bool:
        try:
            async with asyncio.timeout(_APPEND_S):
                await self._publisher.fenced(event, fence=self._fence, id=id, ttl=self._ttl_s)
        except (SynthError, TimeoutError) as error:
            log.warning("progress is not shown yet", id=id, error=str(error) or type(error).__name__)
            return False
        return True
