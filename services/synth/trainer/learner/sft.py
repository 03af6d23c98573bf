"""Training on a file: loop over epochs of tokenised rows, step, validate at intervals, keep the best weights.

Supervised fine-tuning and DPO are the same loop over rows or pairs, and differ in the loss that a step minimises
(`objectives.py`). Invariant: the rows of a step are a pure function of (seed, step), so the step is the data cursor. Of
a dataset on the disk, a step reads its own rows.
"""

from __future__ import annotations

import math
import time
from pathlib import Path

from synth.estimates.verdict import Verdict, compare_losses
from synth.trainer.config import SftTrainConfig
from synth.trainer.errors import TrainingFailed
from synth.trainer.learner.data.packing import SequenceSource
from synth.trainer.learner.data.pair_dataset import PairDataset
from synth.trainer.learner.data.sft_dataset import IMAGE_COUNTS, SftDataset
from synth.trainer.learner.memory import peak_memory_bytes
from synth.trainer.learner.model.policy import Policy
from synth.trainer.learner.objectives import DpoObjective, NllObjective, Objective
from synth.trainer.learner.optim.lr_schedule import learning_rate
from synth.trainer.learner.rng import DrawOrder, reseed
from synth.trainer.learner.step_result import ProgressCallback, StepResult
from synth.trainer.learner.training_state import TrainingState
from synth.weights.tensor_file import load_tensors, save_tensors

#: The validation losses of each row, in `TrainingState.reference`: of the source, of the last weights and of the best.
_SOURCE_ROWS, _LAST_ROWS, _BEST_ROWS = "source_rows", "last_rows", "best_rows"


class SftTrainer:
    """Trains a policy on tokenised rows or pairs: call `step` until `state.step` reaches `total`, then `use_best`."""

    def __init__(
        self,
        policy: Policy,
        config: SftTrainConfig,
        data: SftDataset[SequenceSource] | PairDataset[SequenceSource],
        *,
        validation: SftDataset[SequenceSource] | PairDataset[SequenceSource] | None = None,
        best_file: Path | None = None,
        progress: ProgressCallback | None = None,
    ) -> None:
        """data, validation: pairs if the config has `dpo`, else rows.

        best_file: the path for the best weights; `best_metric` needs it. Raises `TrainingFailed` (bad_recipe).
        """
        if config.best_metric and (validation is None or best_file is None or not config.validation_every):
            raise TrainingFailed(
                "bad_recipe",
                f"best_metric {config.best_metric!r} needs a validation file and validation_every above 0",
            )
        self.policy = policy
        self.config = config
        self.data = data
        self.validation = validation
        self.state = TrainingState(policy)
        self._process_group = policy.process_group
        self._best_file = best_file
        self._progress: ProgressCallback = progress or (lambda stage, done, of: None)
        self._objective = self._make_objective()
        self._steps_per_epoch = math.ceil(len(data) / config.batch_size)
        self.total = config.steps if config.steps is not None else config.epochs * self._steps_per_epoch
        self._order: tuple[int, DrawOrder] = (-1, DrawOrder(0))

    def step(self) -> StepResult:
        """Run one optimizer step over `batch_size` rows or pairs. Raises `TrainingFailed` (nan_loss, nan_gradient)."""
        self._objective.prepare()
        if self.validation is not None and self.state.step == 0 and self.config.validation_every:
            self.state.reference[_SOURCE_ROWS] = self._objective.validate()[1]
        started = time.perf_counter()
        step = self.state.step + 1
        lr = learning_rate(self.config, step, self.total)
        sequences = self.data.sequences
        indices = self._indices(step)
        if not self._process_group.is_main:
            # Rank 0 continues the generator that a checkpoint stores; the generators of other ranks are not stored.
            reseed(self.config.seed, step, self._process_group.rank)
        measured = self._objective.backward(indices)
        loss = measured.pop("loss")
        if not math.isfinite(loss):
            raise TrainingFailed(
                "nan_loss", f"the loss of step {step} is {loss}; resume from before it with a lower learning rate"
            )
        grad_norm = self.state.optimizer.step(lr)
        self.state.step = step
        trained = self._objective.sequences_of(indices)
        self.state.set_probe(sequences, trained)
        tokens = sum(sequences.lengths(trained).values())
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
            "peak_memory_bytes": self._peak_memory(),
            **self._validate(step),
        }
        return StepResult(step=step, values=values)

    def _make_objective(self) -> Objective:
        config, data, validation = self.config, self.data, self.validation
        if config.dpo is not None and isinstance(data, PairDataset) and not isinstance(validation, SftDataset):
            return DpoObjective(self.state, config, config.dpo, data, validation, self._progress)
        if config.dpo is None and isinstance(data, SftDataset) and not isinstance(validation, PairDataset):
            return NllObjective(self.policy, config, data, validation, self._progress)
        raise TrainingFailed("bad_recipe", "a config with dpo trains on pairs, and one without it on rows")

    def _peak_memory(self) -> float:
        local = {"memory/max": peak_memory_bytes(self.policy.device)}
        return self._process_group.reduce_metrics(local)["memory/max"]

    def use_best(self) -> None:
        """Load the best weights into the policy, if `best_metric` is set and a validation has run."""
        if self.config.best_metric and self.state.best is not None and self._best_file is not None:
            self._process_group.barrier()  # rank 0 has written it
            best, _ = load_tensors(self._best_file)
            self.policy.load_trainable_state_dict(best)

    def verdict(self) -> Verdict | None:
        """Compare the validation loss of the final weights with the source's, row by row; None without a validation."""
        rows = self.state.reference
        final = _BEST_ROWS if self.config.best_metric else _LAST_ROWS
        if _SOURCE_ROWS not in rows or final not in rows:
            return None
        return compare_losses(rows[_SOURCE_ROWS].tolist(), rows[final].tolist())

    def _indices(self, step: int) -> list[int]:
        epoch, batch_index = divmod(step - 1, self._steps_per_epoch)
        if self._order[0] != epoch:
            self._order = (epoch, DrawOrder(len(self.data), self.config.seed, epoch))
        size = self.config.batch_size
        return self._order[1].part(batch_index * size, (batch_index + 1) * size)

    def _validate(self, step: int) -> dict[str, float]:
        every = self.config.validation_every
        if self.validation is None or not every or (step % every and step != self.total):
            return {}
        started = time.perf_counter()
        measured, rows = self._objective.validate()
        self.state.reference[_LAST_ROWS] = rows
        loss = measured["loss"]
        if self.config.best_metric and (self.state.best is None or loss < self.state.best[0]):
            assert self._best_file is not None
            self.state.best = (loss, step)
            self.state.reference[_BEST_ROWS] = rows
            best = self.policy.trainable_state_dict()
            if self._process_group.is_main:
                save_tensors(self._best_file, best)
        values = {f"validation_{name}": value for name, value in measured.items()}
        values["seconds_validate"] = time.perf_counter() - started
        return values if self.state.best is None else {**values, "best_step": float(self.state.best[1])}
