"""The inputs of one attempt at a training job."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from synth.blobs import BlobStore
from synth.bus.connection import Connection
from synth.bus.history.job_log import JobHistory
from synth.bus.publish import Fence
from synth.bus.tasks.lease import Lease
from synth.events import BlobRef, DataProgress, JobPaused, JobSucceeded
from synth.methods.base import TrainingJob
from synth.trainer.owner.history import AttemptHistory
from synth.trainer.owner.images import ImageFetcher
from synth.trainer.protocol import IMAGES_FOLDER, DataFile
from synth.trainer.settings import TrainerSettings


@dataclass(frozen=True)
class Attempt:
    """The inputs of a training run. history: the job's lifecycle. fence: the right to publish as its owner.

    announced: the events that the job's attempts have published.
    pausing: set when the user requests a pause: the run then saves its state and ends with `JobPaused`.
    work_dir: of this attempt alone; an earlier one that still cleans up cannot touch it.
    """

    bus: Connection
    blobs: BlobStore
    settings: TrainerSettings
    history: JobHistory
    fence: Fence
    announced: AttemptHistory
    lease: Lease
    work_dir: Path
    pausing: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def images(self) -> ImageFetcher:
        """Return a fetcher that puts images into the folder from which the learner reads them."""
        at_once = self.settings.image_fetches
        return ImageFetcher(self.blobs, self.fence.org, self.work_dir / IMAGES_FOLDER, at_once)

    async def fetch_dataset(self, ref: BlobRef, say: Callable[[DataProgress], None]) -> DataFile:
        """Fetch a dataset as a local file. Each piece of it is progress, so that it may take any time."""
        loop = asyncio.get_running_loop()

        def advanced(done: int) -> None:
            self.lease.progress("fetch the dataset", deadline=self.settings.child_silence_s)
            say(DataProgress(stage="fetch", done=done, of=ref.size))

        def progress(done: int) -> None:
            loop.call_soon_threadsafe(advanced, done)

        path = await self.blobs.fetch(ref, self.work_dir / f"data-{ref.sha256[:16]}.jsonl", progress=progress)
        return DataFile(path=str(path), sha256=ref.sha256)


Train = Callable[[Attempt, "TrainingJob"], Awaitable[JobSucceeded | JobPaused]]
