"""Supervised fine-tuning: loop over epochs of tokenised rows, step, validate at intervals, keep the best weights.

Invariants: the loss of a step is Σ weight·nll / Σ weight over its whole batch, however the batch is divided into
micro-batches and ranks; the sequences of a step are a pure function of (seed, step), so the step is the data cursor.
"""

from __future__ import annotations

import math
import time
from pathlib import Path

from synth.trainer.config import SftTrainConfig
from synth.trainer.errors import TrainingFailed
from synth.trainer.learner.data.packing import collate, plan_micro_batches
from synth.trainer.learner.data.sft_dataset import IMAGE_COUNTS, SftDataset
from synth.trainer.learner.memory import peak_memory_bytes
from synth.trainer.learner.model.mean_nll import mean_nll
from synth.trainer.learner.model.policy import Policy
from synth.trainer.learner.optim.lr_schedule import learning_rate
from synth.trainer.learner.rng import permutation, reseed
from synth.trainer.learner.step_result import ProgressCallback, StepResult
from synth.trainer.learner.training_state import TrainingState
from synth.weights.policy_file import load_tensors, save_tensors


class SftTrainer:
    """Trains a policy on tokenised rows: call `step` until `state.step` reaches `total`, then `use_best`."""

    def __init__(
        self,
        policy: Policy,
        config: SftTrainConfig,
        data: SftDataset,
        *,
        validation: SftDataset | None = None,
        best_file: Path | None = None,
        progress: ProgressCallback | None = None,
    ) -> None:
        """best_file: where the best weights are kept; `best_metric` needs it. Raises `TrainingFailed` (bad_recipe)."""
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
        self._steps_per_epoch = math.ceil(len(data.sequences) / config.batch_size)
        self.total = config.steps if config.steps is not None else config.epochs * self._steps_per_epoch
        self._order: tuple[int, list[int]] = (-1, [])

    def step(self) -> StepResult:
        """One optimizer step over `batch_size` sequences. Raises `TrainingFailed` (nan_loss, nan_gradient)."""
        started = time.perf_counter()
        step = self.state.step + 1
        lr = learning_rate(self.config, step, self.total)
        sequences = self.data.sequences
        indices = self._indices(step)
        weight = float(sum(sequences.weights[sequences.trained_positions(i)].sum() for i in indices))
        if not self._process_group.is_main:
            # Rank 0 continues the generator that a checkpoint stores; that of another rank need not last.
            reseed(self.config.seed, step, self._process_group.rank)
        sums = self._backward(indices, weight)
        loss = sums["loss"]
        if not math.isfinite(loss):
            raise TrainingFailed(
                "nan_loss", f"the loss of step {step} is {loss}; resume from before it with a lower learning rate"
            )
        grad_norm = self.state.optimizer.step(lr)
        self.state.step = step
        self.state.set_probe(sequences, indices)
        tokens = sum(sequences.lengths(indices).values())
        seconds = time.perf_counter() - started
        values = self.state.reports[step] = {
            "loss": loss,
            "lr": lr,
            "grad_norm": grad_norm,
            "epoch": step / self._steps_per_epoch,
            "tokens": float(tokens),
            "trained_tokens": sums["trained"],
            "tokens_per_second": tokens / seconds,
            "seconds_train": seconds,
            "truncated_rows": self.data.counts["truncated_rows"],
            "truncated_tokens": self.data.counts["truncated_tokens"],
            "untrained_rows": self.data.counts["untrained_rows"],
            **{name: self.data.counts[name] for name in IMAGE_COUNTS if name in self.data.counts},
            "peak_memory_bytes": sums["memory/max"],
            **self._validate(step),
        }
        return StepResult(step=step, values=values)

    def _backward(self, indices: list[int], weight: float) -> dict[str, float]:
        """Compute the gradient of these sequences. Returns loss, trained tokens and peak memory over all ranks.

        weight: the sum of the weights of all their tokens.
        """
        config, sequences = self.config, self.data.sequences
        plan = plan_micro_batches(
            sequences.lengths(indices),
            budget=config.micro_batch_tokens,
            packing=config.packing,
            num_ranks=self._process_group.size,
        )
        micro_batches = self._process_group.shard_micro_batches(plan)
        loss, trained = 0.0, 0
        for done, (micro_batch_indices, dummy) in enumerate(micro_batches, start=1):
            micro = collate(
                sequences,
                micro_batch_indices,
                packing=config.packing,
                device=self.policy.device,
                images=self.policy.images,
                dummy=dummy,
            )
            logp_N, _ = self.policy.logprobs(micro)
            micro_loss = -(logp_N * micro.gather(sequences.weights)).sum() / weight
            if micro.dummy:
                (micro_loss * 0.0).backward()
                continue
            micro_loss.backward()
            loss += float(micro_loss.detach())
            trained += len(logp_N)
            self._progress("train", done, len(micro_batches))
        memory = peak_memory_bytes(self.policy.device)
        return self._process_group.reduce_metrics({"loss": loss, "trained": float(trained), "memory/max": memory})

    def use_best(self) -> None:
        """Load the best weights into the policy, where `best_metric` asks for them and a validation has been run."""
        if self.config.best_metric and self.state.best is not None and self._best_file is not None:
            self._process_group.barrier()  # rank 0 has written it
            best, _ = load_tensors(self._best_file)
            self.policy.load_trainable_state_dict(best)

    def _indices(self, step: int) -> list[int]:
        epoch, batch_index = divmod(step - 1, self._steps_per_epoch)
        if self._order[0] != epoch:
            self._order = (epoch, permutation(len(self.data.sequences), self.config.seed, epoch))
        size = self.config.batch_size
        return self._order[1][batch_index * size : (batch_index + 1) * size]

    def _validate(self, step: int) -> dict[str, float]:
        every = self.config.validation_every
        if self.validation is None or not every or (step % every and step != self.total):
            return {}
        started = time.perf_counter()
        loss = mean_nll(
            self.policy,
            self.validation.sequences,
            on_micro_batch=lambda done, of: self._progress("validate", done, of),
        )
        if self.config.best_metric and (self.state.best is None or loss < self.state.best[0]):
            assert self._best_file is not None
            self.state.best = (loss, step)
            best = self.policy.trainable_state_dict()
            if self._process_group.is_main:
                save_tensors(self._best_file, best)
        values = {"validation_loss": loss, "seconds_validate": time.perf_counter() - started}
        return values if self.state.best is None else {**values, "best_step": float(self.state.best[1])}
