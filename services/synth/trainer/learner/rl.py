"""Reinforcement learning, one rollout batch at a time.

A step: split the batch into minibatches, compute log-probabilities of all of it under the policy before the step
(π_old), then for each minibatch: forward, correct for the policy that sampled, loss (and KL to the reference),
backward, optimizer step.

Invariants: π_old is computed on the same micro-batches that are trained, so the first minibatch's ratio is exactly 1;
micro-batches and their order are a pure function of (seed, step, batch, ranks); the sequences of a rollout are in one
minibatch; the weight of a token is known before the forward, and counts sequences with zero advantage too.
"""

from __future__ import annotations

import functools
import importlib
import math
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from synth.methods.losses import LOSSES, find_spec, list_losses
from synth.methods.rl import RlJob
from synth.plugins import is_plugin
from synth.trainer.errors import TrainingFailed
from synth.trainer.learner.canary import canary_tokens
from synth.trainer.learner.data.packing import MicroBatch, Sequences, collate
from synth.trainer.learner.losses.base import Clip, LossInputs
from synth.trainer.learner.losses.importance_correction import correct_importance
from synth.trainer.learner.losses.plugin import Loss, load_loss
from synth.trainer.learner.losses.reduction import rejected_weight, rescaling, token_weights
from synth.trainer.learner.losses.reference_kl import reference_kl
from synth.trainer.learner.memory import peak_memory_bytes
from synth.trainer.learner.metrics import MicroBatchMetrics, StepMetrics, batch_metrics
from synth.trainer.learner.model.policy import Policy
from synth.trainer.learner.model.reference import Reference
from synth.trainer.learner.optim.lr_schedule import learning_rate
from synth.trainer.learner.rng import permutation
from synth.trainer.learner.step_result import ProgressCallback, StepResult
from synth.trainer.learner.training_state import TrainingState
from synth.trajectories import RolloutBatch


def find_loss(name: str) -> Loss:
    """Return a loss of ours, or of a plugin, which is tried. Raises `TrainingFailed` (bad_recipe, plugin_failed)."""
    if is_plugin(name):
        return load_loss(name)
    if name not in LOSSES:
        raise TrainingFailed("bad_recipe", f"the loss is {name!r}; expected {list_losses()}, or a plugin")
    module = importlib.import_module(f"synth.trainer.learner.losses.{LOSSES[name].file}")
    return getattr(module, f"{name}_loss")


@dataclass(frozen=True)
class _Minibatch:
    """The work of one optimizer step.

    micro_batches: of this rank. indices: the sequences that are trained, on any rank. sequences: all of them.
    """

    micro_batches: list[MicroBatch]
    indices: list[int]
    sequences: list[int]


class RlTrainer:
    """Trains a policy, one `step` for each batch, in the order of their iterations (from 1).

    reference: from `load_reference`, for this job. Raises `TrainingFailed` (bad_recipe) if it is missing.
    """

    def __init__(
        self,
        policy: Policy,
        job: RlJob,
        *,
        reference: Reference | None = None,
        progress: ProgressCallback | None = None,
    ) -> None:
        self.policy = policy
        self.job = job
        self.state = TrainingState(policy)
        if (job.kl_beta > 0) != (reference is not None):
            raise TrainingFailed(
                "bad_recipe",
                f"job.kl_beta is {job.kl_beta} and job.reference is {job.reference!r}; expected a "
                "reference if kl_beta is above 0, and none if it is 0",
            )
        self._loss = find_loss(job.loss)
        self._clip = Clip(*job.clip)
        self._reference = reference
        self._progress: ProgressCallback = progress or (lambda stage, done, of: None)

    def step(self, batch: RolloutBatch) -> StepResult:
        """Train on one batch. With nothing to learn from, the step counts and the policy stays (`skipped` = 1).

        Raises `TrainingFailed`: out_of_order, bad_batch, nan_loss, nan_gradient.
        """
        started = time.perf_counter()
        step = self.state.step + 1
        sequences, lag_T = self._read_batch(batch, step)
        lr = learning_rate(self.job, step, self.job.iterations)
        step_metrics = StepMetrics(lr=lr)
        within_staleness_S = self._within_staleness(batch, lag_T)
        parts = self._divide(batch, step)
        minibatches = self._minibatches(sequences, within_staleness_S & _has_advantage(batch), parts)
        tokens_S = np.asarray([len(sequences.trained_positions(i)) for i in range(len(sequences))], np.int64)
        token_weight_S = self._token_weights(batch, tokens_S, len(parts))
        old_logps = self._old_logps(minibatches, batch.meta.temperature)
        reference_logps = self._reference_logps(minibatches, batch.meta.temperature)
        old_logps_done = time.perf_counter()
        done, forwards = 0, sum(len(minibatch.micro_batches) for minibatch in minibatches)
        for k, minibatch in enumerate(minibatches):
            rejected = 0.0
            compute = functools.partial(self._compute_loss, batch, lag_T, token_weight_S, first_minibatch=k == 0)
            scored = zip(minibatch.micro_batches, old_logps[k], reference_logps[k], strict=True)
            for trained in self.policy.threads.backward(compute, scored):
                if trained is not None:
                    step_metrics.add_micro_batch(trained)
                    rejected += trained.rejected
                done += 1
                self._progress("train", done, forwards)
            scale = self._scale(float(token_weight_S[minibatch.sequences] @ tokens_S[minibatch.sequences]), rejected)
            step_metrics.add_optimizer_step(self.state.optimizer.step(lr, scale=scale), scale=scale)
        self.state.step = step
        step_metrics.all_reduce(self.policy.process_group)
        trained_indices = sorted(i for minibatch in minibatches for i in minibatch.indices)
        self.state.set_probe(sequences, trained_indices, temperature=batch.meta.temperature)
        self.state.canary = self.state.canary or canary_tokens(sequences)
        peak = {"memory/max": peak_memory_bytes(self.policy.device)}
        now = time.perf_counter()
        values = self.state.reports[step] = {
            **batch_metrics(batch, lag_T, trained_indices, self.policy.eos_ids),
            **step_metrics.compute(),
            "sequences_stale": float((~within_staleness_S).sum()),
            "seconds_old_logprobs": old_logps_done - started,
            "seconds_train": now - old_logps_done,
            "tokens_per_second": len(batch.tokens) / (now - started),
            "peak_memory_bytes": self.policy.process_group.reduce_metrics(peak)["memory/max"],
        }
        return StepResult(step=step, values=values)

    def _scale(self, total: float, rejected: float) -> float:
        """Return the factor on a minibatch's gradient. total: its weight. rejected: the part that it rejected."""
        if self.job.correction.rejected == "count":
            return 1.0
        return rescaling(total, self.policy.process_group.reduce_metrics({"rejected": rejected})["rejected"])

    def _read_batch(self, batch: RolloutBatch, step: int) -> tuple[Sequences, npt.NDArray[np.int32]]:
        """Return the batch as sequences, and each token's lag in policy versions. Raises `TrainingFailed`."""
        if batch.meta.iteration != step:
            raise TrainingFailed(
                "out_of_order",
                f"the batch is of iteration {batch.meta.iteration}; expected {step}: {step - 1} steps are done",
            )
        # A policy's version is the number of steps that made it.
        lag_T = np.where(batch.loss_mask, (step - 1) - batch.versions, 0).astype(np.int32)
        if lag_T.size and lag_T.min() < 0:
            raise TrainingFailed(
                "bad_batch",
                f"iteration {step} holds tokens sampled by version {int(batch.versions.max())}; expected at most "
                f"{step - 1}, the version in training",
            )
        if batch.token_advantages is not None and not find_spec(self.job.loss).per_token:
            raise TrainingFailed(
                "bad_batch",
                f"iteration {step} has advantages of single tokens, and {self.job.loss} has one for a sequence; "
                f"expected the loss {list_losses(per_token=True)}",
            )
        loader, banned = self.policy.images, ()
        if loader is not None:
            banned = loader.banned
            if batch.processor and batch.processor != loader.fingerprint:
                raise TrainingFailed(
                    "processor_differs",
                    f"the images of iteration {step} were processed as {batch.processor} by what sampled it, and the "
                    f"trainer processes them as {loader.fingerprint}; expected one result, which takes the same "
                    "preprocessor_config.json, Pillow and transformers in both",
                )
            if np.isin(batch.tokens[batch.loss_mask], banned).any():
                raise TrainingFailed(
                    "bad_batch",
                    f"iteration {step} holds sampled tokens that stand for media ({banned}); expected an engine that "
                    "never samples them",
                )
        weights = batch.loss_mask.astype(np.float32)
        return Sequences(batch.tokens, weights, batch.cu_seqlens, batch.masks, batch.images, banned), lag_T

    def _within_staleness(self, batch: RolloutBatch, lag_T: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Return bool [S]: which sequences have no token older than `max_staleness`."""
        # The collector admits a rollout only at a recent enough policy. This check is of the tokens themselves, at the
        # step that would train them.
        if not batch.sequences:
            return np.zeros(0, np.bool_)
        return np.maximum.reduceat(lag_T, batch.cu_seqlens[:-1]) <= self.job.max_staleness

    def _divide(self, batch: RolloutBatch, step: int) -> list[list[int]]:
        """Return the sequences of each minibatch. A rollout's sequences stay together, because they weigh as one."""
        starts = np.unique(np.sort(batch.rollout), return_index=True)[1]
        rollouts = np.split(np.argsort(batch.rollout, kind="stable"), starts[1:]) if batch.sequences else []
        order = permutation(len(rollouts), self.job.seed, step)
        parts = np.array_split(np.asarray(order, dtype=np.int64), self.job.minibatches)
        return [[int(i) for r in part for i in rollouts[r]] for part in parts if len(part)]

    def _token_weights(
        self, batch: RolloutBatch, tokens_S: npt.NDArray[np.int64], minibatches: int
    ) -> npt.NDArray[np.float64]:
        """Return float64 [S]: the weight of one token of each sequence in the loss. tokens_S: how many are trained."""
        groups = np.asarray([rollout.group for rollout in batch.meta.rollouts], np.int32)
        return token_weights(
            self.job.loss_reduction,
            tokens_S,
            batch.rollout,
            groups[batch.rollout],
            minibatches=minibatches,
        )

    def _minibatches(
        self, sequences: Sequences, trains_S: npt.NDArray[np.bool_], parts: list[list[int]]
    ) -> list[_Minibatch]:
        """Return the minibatches that have something to learn from. trains_S: which sequences add to the gradient.

        One that does not is counted, and not put through the model.
        """
        minibatches: list[_Minibatch] = []
        for part in parts:
            indices = [i for i in part if trains_S[i] and len(sequences.trained_positions(i))]
            micro_batches = [
                collate(
                    sequences,
                    micro_batch_indices,
                    packing=self.policy.layout,
                    device=self.policy.device,
                    images=self.policy.images,
                    dummy=dummy,
                )
                for micro_batch_indices, dummy in self.policy.micro_batches(sequences.lengths(indices))
            ]
            if micro_batches:
                minibatches.append(_Minibatch(micro_batches, indices, part))
        return minibatches

    def _old_logps(self, minibatches: list[_Minibatch], temperature: float) -> list[list[Tensor | None]]:
        """Return log π_old of every micro-batch, [N] each.

        None for the first minibatch: it trains on weights that are still π_old, so its own forward is π_old.
        """

        def compute(micro: MicroBatch) -> Tensor:
            return self.policy.logprobs(micro, temperature=temperature)[0]

        old_logps: list[list[Tensor | None]] = [[None] * len(part.micro_batches) for part in minibatches[:1]]
        for minibatch in minibatches[1:]:
            old_logps.append([])
            for logp_N in self.policy.threads.map(compute, minibatch.micro_batches):
                old_logps[-1].append(logp_N)
                self._progress("old_logprobs", len(old_logps[-1]), len(minibatch.micro_batches))
        return old_logps

    def _reference_logps(self, minibatches: list[_Minibatch], temperature: float) -> list[list[Tensor | None]]:
        """Return log π_ref of every micro-batch, [N] each; None without a reference."""
        reference_logps: list[list[Tensor | None]] = []
        for minibatch in minibatches:
            if self._reference is None:
                reference_logps.append([None] * len(minibatch.micro_batches))
                continue
            reference_logps.append([])
            for logp_N in self._reference.logprobs(minibatch.micro_batches, temperature=temperature):
                reference_logps[-1].append(logp_N)
                self._progress("reference", len(reference_logps[-1]), len(minibatch.micro_batches))
        return reference_logps

    def _compute_loss(
        self,
        batch: RolloutBatch,
        lag_T: npt.NDArray[np.int32],
        token_weight_S: npt.NDArray[np.float64],
        scored: tuple[MicroBatch, Tensor | None, Tensor | None],
        *,
        first_minibatch: bool,
    ) -> tuple[Tensor, MicroBatchMetrics | None]:
        """Return the loss of a micro-batch, and its metrics; None for a dummy. scored: it, log π_old and log π_ref."""
        micro, old_logp_N, reference_logp_N = scored
        logp_N, entropy_N = self.policy.logprobs(micro, temperature=batch.meta.temperature)
        old_logp_N = logp_N.detach() if old_logp_N is None else old_logp_N
        behaviour_logp_N = micro.gather(batch.logprobs)
        correction = correct_importance(old_logp_N, behaviour_logp_N, micro.gather(lag_T), micro.cu_seqlens, self.job)
        inputs = LossInputs(
            logp_N=logp_N,
            old_logp_N=old_logp_N,
            behaviour_logp_N=behaviour_logp_N,
            weight_N=correction.weight_N,
            keep_S=correction.keep_S,
            advantage_S=torch.from_numpy(batch.advantages[micro.sequence_indices]).to(logp_N.device),
            cu_seqlens=micro.cu_seqlens,
            token_weight_S=torch.from_numpy(token_weight_S[micro.sequence_indices]).to(logp_N),
            token_advantage_N=None if batch.token_advantages is None else micro.gather(batch.token_advantages),
        )
        out = self._loss(inputs, clip=self._clip)
        kl = None if reference_logp_N is None else reference_kl(inputs, reference_logp_N)
        total = out.loss if kl is None else out.loss + self.job.kl_beta * kl.loss
        if micro.dummy:
            return total * 0.0, None
        loss = total.item()
        if not math.isfinite(loss):
            raise TrainingFailed(
                "nan_loss",
                f"the loss of step {self.state.step + 1} is {loss}; resume from the last checkpoint with a lower "
                "learning rate, or look at the log-probabilities in the batch",
            )
        return total, MicroBatchMetrics.of(
            loss=loss,
            rejected=rejected_weight(inputs),
            log_ratio_N=logp_N.detach() - old_logp_N,
            entropy_N=entropy_N,
            advantage_U=out.advantage_U,
            clipped_U=out.clipped_U,
            correction=correction.sums,
            first_minibatch=first_minibatch,
            reference_kl_N=None if kl is None else kl.kl_N,
        )


def _has_advantage(batch: RolloutBatch) -> npt.NDArray[np.bool_]:
    """Return bool [S]: which sequences have an advantage other than 0, for a token at least."""
    if batch.token_advantages is None or not batch.sequences:
        return batch.advantages != 0
    return np.logical_or.reduceat(batch.token_advantages != 0, batch.cu_seqlens[:-1])
