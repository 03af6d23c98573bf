"""Fine-tuning: it learns, it counts by tokens, and it keeps the best."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from synth.trainer.errors import TrainingFailed
from synth.trainer.learner.checkpoint.checkpoint import write_checkpoint
from synth.trainer.learner.data.sft_dataset import SftDataset, encode_rows, load_tokenizer
from synth.trainer.learner.methods.sft import SftTrainer
from synth.trainer.learner.model.mean_nll import mean_nll
from synth.trainer.learner.model.policy import load_policy
from synth.trainer.learner.optim.lr_schedule import learning_rate
from tests.unit.trainer.jobs import sft_job
from tests.unit.trainer.sft_rows import addition_rows, training_rows


@pytest.fixture(scope="module")
def data(model_dir: Path) -> SftDataset:
    return encode_rows(training_rows(addition_rows(64)), load_tokenizer(model_dir), sequence_length=128)


def test_it_learns_the_rows(model_dir: Path, data: SftDataset) -> None:
    job = sft_job(steps=30, lr=5e-3, packing="padded")
    trainer = SftTrainer(load_policy(model_dir, job), job, data)
    losses = [trainer.step().values["loss"] for _ in range(trainer.total)]
    assert losses[-1] < 0.5 * losses[0]


def test_the_loss_is_the_mean_over_tokens_however_the_batch_is_cut(model_dir: Path, data: SftDataset) -> None:
    first = [
        SftTrainer(load_policy(model_dir, job), job, data).step().values["loss"]
        for job in (sft_job(batch_size=64, micro_batch_tokens=n) for n in (64, 100_000))
    ]
    assert first[0] == pytest.approx(first[1], abs=1e-5)
    assert first[1] == pytest.approx(mean_nll(load_policy(model_dir, sft_job()), data.sequences), abs=1e-5)


def test_an_epoch_takes_every_row_once_in_an_order_of_its_own(model_dir: Path, data: SftDataset) -> None:
    job = sft_job(batch_size=24, epochs=2)
    trainer = SftTrainer(load_policy(model_dir, job), job, data)
    assert trainer.total == 6
    indices = [trainer._indices(step) for step in range(1, 7)]
    epochs = [list(itertools.chain.from_iterable(indices[k : k + 3])) for k in (0, 3)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(64))
    assert epochs[0] != epochs[1]


def test_the_best_weights_are_kept(model_dir: Path, data: SftDataset, tmp_path: Path) -> None:
    # The learning rate grows too large: the first validation is the best one.
    job = sft_job(steps=8, lr=0.3, validation_every=2, warmup_steps=8, best_metric="validation_loss")
    policy = load_policy(model_dir, job)
    trainer = SftTrainer(policy, job, data, validation=data, best_file=tmp_path / "best")
    seen = {s.step: s.values.get("validation_loss") for s in (trainer.step() for _ in range(8))}
    assert [k for k, v in seen.items() if v is not None] == [2, 4, 6, 8]
    assert trainer.state.best is not None
    best_loss, best_step = trainer.state.best
    assert best_loss == min(v for v in seen.values() if v is not None)
    assert best_step < 8
    trainer.use_best()
    assert mean_nll(policy, data.sequences) == best_loss


def test_the_verdict_compares_the_kept_weights_with_the_source_also_after_a_resume(
    model_dir: Path, data: SftDataset, tmp_path: Path
) -> None:
    held_out = encode_rows(training_rows(addition_rows(80)[64:]), load_tokenizer(model_dir), sequence_length=128)

    def run(best: str) -> SftTrainer:
        job = sft_job(steps=12, lr=5e-3, validation_every=4, best_metric="validation_loss")
        return SftTrainer(load_policy(model_dir, job), job, data, validation=held_out, best_file=tmp_path / best)

    straight, again = run("a"), run("b")
    values = [straight.step().values for _ in range(6)]
    write_checkpoint(tmp_path / "checkpoint", straight.state.snapshot(best_file=tmp_path / "a"))
    values += [straight.step().values for _ in range(6)]
    verdict = straight.verdict()
    assert verdict is not None
    assert (verdict.outcome, verdict.measure, verdict.count) == ("learned", "validation_loss", 16)
    losses = [v["validation_loss"] for v in values if "validation_loss" in v]
    assert verdict.before == pytest.approx(mean_nll(load_policy(model_dir, sft_job()), held_out.sequences))
    assert verdict.after == pytest.approx(min(losses))
    again.state.resume(tmp_path / "checkpoint")
    while again.state.step < again.total:
        again.step()
    assert again.verdict() == verdict


def test_without_validation_rows_there_is_no_verdict(model_dir: Path, data: SftDataset) -> None:
    job = sft_job(steps=1)
    trainer = SftTrainer(load_policy(model_dir, job), job, data)
    trainer.step()
    assert trainer.verdict() is None


def test_a_best_metric_without_a_validation_file_is_refused(model_dir: Path, data: SftDataset) -> None:
    job = sft_job(best_metric="validation_loss")
    with pytest.raises(TrainingFailed, match="validation"):
        SftTrainer(load_policy(model_dir, job), job, data)


def test_a_loss_that_is_not_a_number_stops(model_dir: Path, data: SftDataset) -> None:
    job = sft_job()
    policy = load_policy(model_dir, job)
    with torch.no_grad():
        policy.model.model.norm.weight[0] = float("nan")
    with pytest.raises(TrainingFailed) as caught:
        SftTrainer(policy, job, data).step()
    assert caught.value.code == "nan_loss"


@pytest.mark.parametrize(("schedule", "end"), [("constant", 1.0), ("linear", 0.1), ("cosine", 0.1)])
def test_the_learning_rate_warms_up_and_ends_at_its_floor(schedule: str, end: float) -> None:
    job = sft_job(lr=1.0, schedule=schedule, min_lr_ratio=0.1, warmup_ratio=0.05, warmup_steps=None)
    lrs = np.array([learning_rate(job, s, 100) for s in range(1, 101)])
    assert lrs[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert lrs[-1] == pytest.approx(end)
    assert (np.diff(lrs[4:]) <= 0).all()


@pytest.mark.parametrize(("schedule", "half"), [("constant", 1.0), ("linear", 0.55), ("cosine", 0.55)])
def test_the_learning_rate_is_half_way_down_in_the_middle_of_the_steps_after_the_warm_up(
    schedule: str, half: float
) -> None:
    job = sft_job(lr=1.0, schedule=schedule, min_lr_ratio=0.1, warmup_steps=10)
    assert [learning_rate(job, step, 110) for step in (10, 60)] == pytest.approx([1.0, half])
