"""When a run saves a checkpoint, and where: while it trains on, in the background."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterator
from pathlib import Path

import torch

from synth.trainer.errors import CHECKPOINT_FAILED, TrainingFailed
from synth.trainer.learner.checkpoint.background_writer import BackgroundWriter
from synth.trainer.learner.checkpoint.interval import checkpoint_interval
from synth.trainer.learner.process.owner_channel import OwnerChannel
from synth.trainer.learner.training_state import TrainingState
from synth.trainer.protocol import Failed, Saved
from synth.weights.tensor_file import FileDigest

log = logging.getLogger(__name__)


class CheckpointSaver:
    """The checkpoints of one training process, each announced to its owner when it is durable."""

    def __init__(
        self,
        state: TrainingState,
        work: Path,
        *,
        total: int,
        channel: OwnerChannel,
        best_file: Path | None = None,
    ) -> None:
        """work: the folder of the checkpoints. total: the last step. best_file: the best weights, if any."""
        self.state = state
        self._work = work
        self._total = total
        self._channel = channel
        self._best_file = best_file
        self._every = checkpoint_interval(state.policy.job, state.policy.machine, state.size)
        log.info("a checkpoint of %.1f MB each %d steps", state.size / 1e6, self._every)
        self._writer = BackgroundWriter(
            saved=self._announce,
            failed=self._fail,
            progress=channel.send_progress,
            wait_for_room=channel.wait_stored,
        )

    def save_if_due(self) -> None:
        """Begin to save the step that was just done, if it is its turn. Every rank calls this."""
        if self.state.step % self._every == 0 or self.state.step == self._total:
            self._save()

    def save_uncovered(self) -> None:
        """Begin to save the last step, unless the last checkpoint covers it. Every rank calls this."""
        # `reports` holds the steps that the last checkpoint does not cover.
        if self.state.reports:
            self._save()

    @contextlib.contextmanager
    def finished_on_failure(self) -> Iterator[None]:
        """Run the block. If training fails in it, the checkpoint that is being written is finished before."""
        try:
            yield
        except (TrainingFailed, torch.OutOfMemoryError, MemoryError):
            self.wait()
            raise

    def wait(self) -> None:
        """Return when the last checkpoint is durable and announced."""
        self._writer.wait()

    def metrics(self) -> dict[str, float]:
        """Return `seconds_checkpoint`: how long training has waited for checkpoints since the last call."""
        return self._writer.metrics()

    def _save(self) -> None:
        best_file = self._best_file if self.state.best is not None else None
        folder = self._work / f"checkpoint-{self.state.step:06d}"
        self._writer.save(folder, functools.partial(self.state.snapshot, best_file=best_file))

    def _announce(self, step: int, folder: Path, files: dict[str, FileDigest]) -> None:
        self._channel.send(Saved(step=step, folder=str(folder), sha256={n: file.sha256 for n, file in files.items()}))

    def _fail(self, error: Exception) -> None:
        self._channel.fail(Failed(code=CHECKPOINT_FAILED, detail=f"{type(error).__name__}: {error}"))
