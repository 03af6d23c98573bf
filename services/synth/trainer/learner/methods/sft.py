"""Supervised fine-tuning: the mean negative log-likelihood of the tokens of conversations."""

from __future__ import annotations

from torch import Tensor

from synth.methods.sft import SftJob
from synth.trainer.learner.data.packing import SequenceSource
from synth.trainer.learner.data.sft_dataset import SftDataset, encode_file
from synth.trainer.learner.distributed.process_group import add_metrics
from synth.trainer.learner.file_trainer import FileTrainer, train_file
from synth.trainer.learner.model.mean_nll import measure_nll
from synth.trainer.learner.session import Session


def train(session: Session, job: SftJob) -> None:
    """Train to the end of the job."""
    train_file(session, job, SftTrainer, encode_file)


class SftTrainer(FileTrainer[SftDataset[SequenceSource], SftJob]):
    """Σ weight·nll / Σ weight over the tokens of a step."""

    def sequences_of(self, indices: list[int]) -> list[int]:
        return indices

    def backward(self, indices: list[int]) -> dict[str, float]:
        sequences, group = self.data.sequences.select(indices), self.policy.process_group
        rows = list(range(len(sequences)))
        weight = float(sum(sequences.weights[sequences.trained_positions(i)].sum() for i in rows))
        micro_batches = self.policy.micro_batches(sequences.lengths(rows))

        def compute(part: tuple[list[int], bool]) -> tuple[Tensor, dict[str, float]]:
            micro = self.collate(sequences, part[0], dummy=part[1])
            logp_N, _ = self.policy.logprobs(micro)
            loss = -(logp_N * micro.gather(sequences.weights)).sum() / weight
            if micro.dummy:
                return loss * 0.0, {}
            return loss, {"loss": float(loss.detach()), "trained_tokens": float(len(logp_N))}

        sums = {"loss": 0.0, "trained_tokens": 0.0}
        key = (self.job.seed, self.state.step, group.rank)
        for done, new in enumerate(self.policy.threads.backward(compute, micro_batches, key=key), start=1):
            add_metrics(sums, new)
            self._progress("train", done, len(micro_batches))
        return group.reduce_metrics(sums)

    def validate(self) -> tuple[dict[str, float], Tensor]:
        assert self.validation is not None
        loss, rows_R2 = measure_nll(
            self.policy,
            self.validation.sequences,
            progress=lambda done, of: self._progress("validate", done, of),
        )
        return {"loss": loss}, rows_R2
