"""Training on a file: loop over epochs of tokenised rows, step, validate at intervals, keep the best weights.

The methods that train on a file differ in the loss that a step minimises and in its measure: each is a subclass of
`FileTrainer` in `methods/`. Invariants: the rows of a step are a pure function of (seed, step), so the step is the data
cursor; of a dataset on the disk, a step reads its own rows; the loss of a step is a sum over its rows divided by a
number that is known before the forward, however the step is divided into micro-batches and ranks.
"""

from __future__ import annotations

import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from torch import Tensor

from synth.estimates.verdict import Verdict, compare_losses
from synth.methods.base import FileJob
from synth.trainer.errors import TrainingFailed
from synth.trainer.learner.checkpoint_saver import CheckpointSaver
from synth.trainer.learner.data.dataset_file import DatasetFile
from synth.trainer.learner.data.packing import MicroBatch, Sequences, SequenceSource, collate
from synth.trainer.learner.data.pair_dataset import PairDataset
from synth.trainer.learner.data.sft_dataset import IMAGE_COUNTS, SftDataset, load_tokenizer
from synth.trainer.learner.data.sft_images import SftImages
from synth.trainer.learner.data.token_cache import TokenCache
from synth.trainer.learner.memory import peak_memory_bytes
from synth.trainer.learner.model.policy import Policy
from synth.trainer.learner.optim.lr_schedule import learning_rate
from synth.trainer.learner.rng import DrawOrder, reseed
from synth.trainer.learner.session import Session
from synth.trainer.learner.step_result import ProgressCallback, StepResult
from synth.trainer.learner.training_state import TrainingState
from synth.trainer.protocol import TOKENISE, DataFile, Stepped
from synth.weights.tensor_file import load_tensors, save_tensors

DataT = TypeVar("DataT", bound=SftDataset[SequenceSource] | PairDataset[SequenceSource])
JobT = TypeVar("JobT", bound=FileJob)

#: The validation losses of each row, in `TrainingState.reference`: of the source, of the last weights and of the best.
_SOURCE_ROWS, _LAST_ROWS, _BEST_ROWS = "source_rows", "last_rows", "best_rows"


class FileTrainer(ABC, Generic[DataT, JobT]):
    """Trains a policy on tokenised rows: call `step` until `state.step` reaches `total`, then `use_best`.

    Every rank calls each method.
    """

    def __init__(
        self,
        policy: Policy,
        job: JobT,
        data: DataT,
        *,
        validation: DataT | None = None,
        best_file: Path | None = None,
        progress: ProgressCallback | None = None,
    ) -> None:
        """best_file: the path for the best weights; `best_metric` needs it. Raises `TrainingFailed` (bad_recipe)."""
        if job.best_metric and (validation is None or best_file is None or not job.validation_every):
            raise TrainingFailed(
                "bad_recipe",
                f"best_metric {job.best_metric!r} needs a validation file and validation_every above 0",
            )
        self.policy = policy
        self.job = job
        self.data = data
        self.validation = validation
        self.state = TrainingState(policy)
        self._process_group = policy.process_group
        self._best_file = best_file
        self._progress: ProgressCallback = progress or (lambda stage, done, of: None)
        self._steps_per_epoch = math.ceil(len(data) / job.batch_size)
        self.total = job.steps if job.steps is not None else job.epochs * self._steps_per_epoch
        self._order: tuple[int, DrawOrder] = (-1, DrawOrder(0))

    def prepare(self) -> None:
        """Prepare the first step of a job."""

    @abstractmethod
    def sequences_of(self, indices: list[int]) -> list[int]:
        """Return the sequences of these rows of the dataset."""

    @abstractmethod
    def backward(self, indices: list[int]) -> dict[str, float]:
        """Compute the gradient of these rows' loss. Returns its metrics over all ranks: loss, trained_tokens, …"""

    @abstractmethod
    def validate(self) -> tuple[dict[str, float], Tensor]:
        """Measure the validation rows, without dropout, over all ranks.

        Returns the metrics, loss among them, and float64 [R, 2] on the CPU: the loss of each row times its weight in
        the mean, and that weight.
        """

    def step(self) -> StepResult:
        """Run one optimizer step over `batch_size` rows or pairs. Raises `TrainingFailed` (nan_loss, nan_gradient)."""
        self.prepare()
        if self.validation is not None and self.state.step == 0 and self.job.validation_every:
            self.state.reference[_SOURCE_ROWS] = self.validate()[1]
        started = time.perf_counter()
        step = self.state.step + 1
        lr = learning_rate(self.job, step, self.total)
        sequences = self.data.sequences
        indices = self._indices(step)
        if not self._process_group.is_main:
            # Rank 0 continues the generator that a checkpoint stores; the generators of other ranks are not stored.
            reseed(self.job.seed, step, self._process_group.rank)
        measured = self.backward(indices)
        loss = measured.pop("loss")
        if not math.isfinite(loss):
            raise TrainingFailed(
                "nan_loss", f"the loss of step {step} is {loss}; resume from before it with a lower learning rate"
            )
        grad_norm = self.state.optimizer.step(lr)
        self.state.step = step
        trained = self.sequences_of(indices)
        self.state.set_probe(sequences, trained)
        tokens = sum(sequences.lengths(trained).values())
        peak = {"memory/max": peak_memory_bytes(self.policy.device)}
        seconds = time.perf_counter() - started
        values = self.state.reports[step] = {
            "loss": loss,
            "lr": lr,
            "grad_norm": grad_norm,
            "epoch": step / self._steps_per_epoch,
            "tokens": float(tokens),
            **measured,
            "tokens_per_second": tokens / seconds,
            "seconds_train": seconds,
            "truncated_rows": self.data.counts["truncated_rows"],
            "truncated_tokens": self.data.counts["truncated_tokens"],
            "untrained_rows": self.data.counts["untrained_rows"],
            **{name: self.data.counts[name] for name in IMAGE_COUNTS if name in self.data.counts},
            "peak_memory_bytes": self.policy.process_group.reduce_metrics(peak)["memory/max"],
            **self._validate(step),
        }
        return StepResult(step=step, values=values)

    def use_best(self) -> None:
        """Load the best weights into the policy, if `best_metric` is set and a validation has run."""
        if self.job.best_metric and self.state.best is not None and self._best_file is not None:
            self._process_group.barrier()  # rank 0 has written it
            best, _ = load_tensors(self._best_file)
            self.policy.load_trainable_state_dict(best)

    def verdict(self) -> Verdict | None:
        """Compare the validation loss of the final weights with the source's, row by row; None without a validation."""
        rows = self.state.reference
        final = _BEST_ROWS if self.job.best_metric else _LAST_ROWS
        if _SOURCE_ROWS not in rows or final not in rows:
            return None
        return compare_losses(rows[_SOURCE_ROWS].tolist(), rows[final].tolist())

    def _indices(self, step: int) -> list[int]:
        epoch, batch_index = divmod(step - 1, self._steps_per_epoch)
        if self._order[0] != epoch:
            self._order = (epoch, DrawOrder(len(self.data), self.job.seed, epoch))
        size = self.job.batch_size
        return self._order[1].part(batch_index * size, (batch_index + 1) * size)

    def _validate(self, step: int) -> dict[str, float]:
        every = self.job.validation_every
        if self.validation is None or not every or (step % every and step != self.total):
            return {}
        started = time.perf_counter()
        measured, rows = self.validate()
        self.state.reference[_LAST_ROWS] = rows
        loss = measured["loss"]
        if self.job.best_metric and (self.state.best is None or loss < self.state.best[0]):
            assert self._best_file is not None
            self.state.best = (loss, step)
            self.state.reference[_BEST_ROWS] = rows
            best = self.policy.trainable_state_dict()
            if self._process_group.is_main:
                save_tensors(self._best_file, best)
        values = {f"validation_{name}": value for name, value in measured.items()}
        values["seconds_validate"] = time.perf_counter() - started
        return values if self.state.best is None else {**values, "best_step": float(self.state.best[1])}

    def collate(self, sequences: Sequences, indices: list[int], *, dummy: bool) -> MicroBatch:
        """Return a micro-batch of these sequences."""
        policy = self.policy
        layout = policy.layout
        return collate(sequences, indices, packing=layout, device=policy.device, images=policy.images, dummy=dummy)


def train_file(
    session: Session, job: JobT, make_trainer: type[FileTrainer[DataT, JobT]], encode: Callable[..., DataT]
) -> None:
    """Tokenise, load, send `ready`, then train step after step to the end, and write the model.

    encode: makes the tokens of a file.
    """
    start, channel = session.start, session.channel
    if start.dataset is None:
        raise TrainingFailed("bad_message", f"`start` of a job of {job.method} has no dataset")
    process_group = session.join()
    # The other ranks run after rank 0, and read the chunks that it has made.
    with process_group.main_process_first():
        makes = process_group.is_main
        data = _encode(session, job, encode, start.dataset, examples=job.examples, makes=makes)
        held_out = start.validation
        validation = held_out and _encode(session, job, encode, held_out, examples=None, makes=makes)
    turns = session.take_turn()
    policy = session.load(job)
    policy.shard(process_group)
    best_file = session.work / "best.safetensors"
    trainer = make_trainer(
        policy, job, data, validation=validation, best_file=best_file, progress=channel.send_progress
    )
    resumed = session.resume(trainer.state)
    if resumed is not None and resumed.best_file is not None and process_group.is_main:
        best_file.write_bytes(resumed.best_file.read_bytes())
    turns.attach(policy, trainer.state.optimizer)
    session.ready(trainer.state, resumed, trainer.total)
    checkpoints = CheckpointSaver(
        trainer.state, session.work, total=trainer.total, channel=channel, best_file=best_file
    )
    with checkpoints.finished_on_failure():
        while trainer.state.step < trainer.total:
            if process_group.broadcast(channel.has_message()):
                # During training the owner sends nothing but `pause`.
                session.pause(checkpoints)
                return
            result = trainer.step()
            result.values.update(turns.metrics() | checkpoints.metrics())
            channel.send(Stepped(step=result.step, values=result.values, trained_at=time.time()))
            checkpoints.save_if_due()
            turns.give_up_if_awaited()
    trainer.use_best()
    best = trainer.state.best
    best_step = trainer.state.step if best is None else best[1]
    session.finish(checkpoints, best_step=best_step, verdict=trainer.verdict())


def _encode(
    session: Session,
    job: FileJob,
    encode: Callable[..., DataT],
    file: DataFile,
    *,
    examples: int | None,
    makes: bool,
) -> DataT:
    """Return the tokens of a file. makes: whether this process makes the tokens that are not in the cache."""
    progress, cache_config, loader = session.channel.send_progress, session.start.tokens, session.image_loader()
    if cache_config is None:
        cache = TokenCache(session.work / "tokens", max_bytes=sys.maxsize, processes=1)
    else:
        cache = TokenCache(
            Path(cache_config.folder),
            max_bytes=cache_config.max_bytes,
            processes=cache_config.processes,
            chunk_bytes=cache_config.chunk_bytes,
            waiting=lambda: progress("wait for tokens", 0, 1),
        )
    most_images = 1 if job.vision is None else job.vision.max_images_per_message
    return encode(
        DatasetFile(Path(file.path), file.sha256, examples),
        load_tokenizer(session.model_dir),
        sequence_length=job.sequence_length,
        cache=cache,
        images=None if loader is None else SftImages(loader, most_images),
        day=session.start.day,
        makes=makes,
        progress=lambda done, of: progress(TOKENISE, done, of),
    )
