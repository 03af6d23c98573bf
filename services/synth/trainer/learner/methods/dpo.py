"""Direct Preference Optimization: training on preference pairs. Both sides of a pair are in one micro-batch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from synth.methods.dpo import DpoJob
from synth.trainer.learner.data.packing import MicroBatch, SequenceSource, windows
from synth.trainer.learner.data.pair_dataset import PairDataset, encode_pair_file
from synth.trainer.learner.distributed.process_group import add_metrics
from synth.trainer.learner.file_trainer import FileTrainer, train_file
from synth.trainer.learner.losses.base import sequence_index
from synth.trainer.learner.losses.dpo import DpoOutput, dpo_loss, preference_accuracy
from synth.trainer.learner.model.policy import Policy
from synth.trainer.learner.session import Session


def train(session: Session, job: DpoJob) -> None:
    """Train to the end of the job."""
    train_file(session, job, DpoTrainer, encode_pair_file)


@dataclass(frozen=True)
class _PairBatch:
    """A micro-batch of whole pairs. weight_N: of its tokens. side_S: of each sequence, 2k is the k-th pair's chosen."""

    pairs: list[int]
    micro: MicroBatch
    weight_N: Tensor
    side_S: Tensor

    def sum_sides(self, logp_N: Tensor) -> Tensor:
        """Return float64 [P, 2]: the weighted sum of the log-probabilities of each pair's chosen and rejected side."""
        sums = torch.zeros(2 * len(self.pairs), dtype=torch.float64, device=logp_N.device)
        side_N = self.side_S[sequence_index(self.micro.cu_seqlens)]
        return sums.index_add(0, side_N, (logp_N * self.weight_N).double()).view(-1, 2)


class DpoTrainer(FileTrainer[PairDataset[SequenceSource], DpoJob]):
    """DPO's loss, as a mean over the pairs of a step.

    The reference is the policy at the start of the job. Its log-probabilities of each pair are computed once, before
    the first step, and kept in the training state and its checkpoints: no second model is in memory, and a job that
    resumes compares with the same numbers.
    """

    def prepare(self) -> None:
        """Compute the reference's log-probabilities, unless the state has them from a checkpoint."""
        if "data" in self.state.reference:
            return
        self.state.reference["data"] = self._score(self.data)
        if self.validation is not None:
            self.state.reference["validation"] = self._score(self.validation)

    def sequences_of(self, indices: list[int]) -> list[int]:
        return self.data.sequences_of(indices)

    def backward(self, indices: list[int]) -> dict[str, float]:
        """As `FileTrainer`; also the implicit rewards, their margin and how often they prefer the chosen side."""
        reference = self.state.reference["data"]
        micro_batches = self._micro_batches(self.data, indices)

        def compute(part: tuple[list[int], bool]) -> tuple[Tensor, dict[str, float]]:
            batch = self._pair_batch(self.data, *part)
            logp_N, _ = self.policy.logprobs(batch.micro)
            logp_P2 = batch.sum_sides(logp_N)
            out = self._loss(logp_P2, reference[batch.pairs])
            loss = out.loss_P.sum() / len(indices)
            if batch.micro.dummy:
                return loss * 0.0, {}
            return loss, _pair_sums(out, logp_P2.detach()) | {"trained_tokens": float(len(logp_N))}

        sums: dict[str, float] = {}
        for done, new in enumerate(self.policy.threads.backward(compute, micro_batches), start=1):
            add_metrics(sums, new)
            self._progress("train", done, len(micro_batches))
        sums = self.policy.process_group.reduce_metrics(sums)
        tokens = sums.pop("trained_tokens")
        return _means(sums, len(indices)) | {"trained_tokens": tokens}

    def validate(self) -> tuple[dict[str, float], Tensor]:
        assert self.validation is not None
        reference = self.state.reference["validation"]
        sums: dict[str, float] = {}
        loss_R = torch.zeros(len(self.validation), dtype=torch.float64)
        for pairs, logp_P2 in self._scored(self.validation, "validate"):
            out = self._loss(logp_P2, reference[pairs])
            loss_R[pairs] = out.loss_P.double().cpu()
            add_metrics(sums, _pair_sums(out, logp_P2))
        group = self.policy.process_group
        # Each pair was measured by one rank, and is 0 on the others.
        group.all_reduce_([loss_R])
        metrics = _means(group.reduce_metrics(sums), len(self.validation))
        return metrics, torch.stack([loss_R, torch.ones_like(loss_R)], dim=1)

    def _loss(self, logp_P2: Tensor, reference_P2: Tensor) -> DpoOutput:
        return dpo_loss(
            logp_P2,
            reference_P2.to(logp_P2.device),
            beta=self.job.dpo.beta,
            label_smoothing=self.job.dpo.label_smoothing,
        )

    def _score(self, data: PairDataset[SequenceSource]) -> Tensor:
        """Return float64 [P, 2], on the CPU: the log-probability of each side of each pair under the current policy."""
        scores = torch.zeros((len(data), 2), dtype=torch.float64)
        for pairs, logp_P2 in self._scored(data, "reference"):
            scores[pairs] = logp_P2.cpu()
        # Each pair was scored by one rank, and is 0 on the others.
        self.policy.process_group.all_reduce_([scores])
        return scores

    def _scored(self, data: PairDataset[SequenceSource], stage: str) -> Iterator[tuple[list[int], Tensor]]:
        """Yield some pairs of this rank, and `sum_sides` of the policy without dropout, until it had all of them."""

        def compute(part: tuple[list[int], bool]) -> tuple[list[int], Tensor]:
            batch = self._pair_batch(data, *part)
            logp_P2 = batch.sum_sides(self.policy.logprobs(batch.micro)[0])
            return ([] if batch.micro.dummy else batch.pairs), logp_P2

        with _evaluating(self.policy):
            for window in windows(len(data)):
                micro_batches = self._micro_batches(data, window)
                for done, (pairs, logp_P2) in enumerate(self.policy.threads.map(compute, micro_batches), start=1):
                    if pairs:
                        yield pairs, logp_P2
                    self._progress(stage, window[0] + len(window) * done // len(micro_batches), len(data))

    def _micro_batches(self, data: PairDataset[SequenceSource], pairs: list[int]) -> list[tuple[list[int], bool]]:
        return self.policy.micro_batches({p: self._tokens(data, p) for p in pairs})

    def _pair_batch(self, data: PairDataset[SequenceSource], pairs: list[int], dummy: bool) -> _PairBatch:
        sequences = data.sequences.select(data.sequences_of(pairs))
        micro = self.collate(sequences, list(range(len(sequences))), dummy=dummy)
        side_S = torch.tensor(data.sides_of(pairs), device=self.policy.device)
        return _PairBatch(pairs, micro, micro.gather(sequences.weights), side_S)

    def _tokens(self, data: PairDataset[SequenceSource], pair: int) -> int:
        """Return the tokens that a pair takes in a forward, padding included."""
        lengths = data.sequences.lengths(data.sequences_of([pair])).values()
        return sum(lengths) if self.policy.layout == "packed" else max(lengths) * len(lengths)


@contextlib.contextmanager
def _evaluating(policy: Policy) -> Iterator[None]:
    """Switch the policy's dropout off within the context."""
    policy.model.eval()
    try:
        yield
    finally:
        policy.model.train()


def _pair_sums(out: DpoOutput, logp_P2: Tensor) -> dict[str, float]:
    """Return the sums over some pairs from which their means are computed."""
    chosen_P, rejected_P = logp_P2.detach().unbind(1)
    sums: dict[str, Tensor] = {
        "loss": out.loss_P.detach(),
        "rewards_chosen": out.chosen_P,
        "rewards_rejected": out.rejected_P,
        "rewards_margin": out.margin_P,
        "preference_accuracy": preference_accuracy(out.margin_P),
        "logprob_chosen": chosen_P,
        "logprob_rejected": rejected_P,
    }
    return {name: float(values.sum()) for name, values in sums.items()}


def _means(sums: dict[str, float], count: int) -> dict[str, float]:
    return {name: value / count for name, value in sums.items()}
