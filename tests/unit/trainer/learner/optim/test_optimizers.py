"""AdamW with moments in 8 bits, and in main memory: what they learn, hold and save."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from synth.trainer.errors import TrainingFailed
from synth.trainer.learner import rng
from synth.trainer.learner.checkpoint.checkpoint import write_checkpoint
from synth.trainer.learner.data.pair_dataset import encode_pairs
from synth.trainer.learner.data.sft_dataset import encode_rows, load_tokenizer
from synth.trainer.learner.methods.dpo import DpoTrainer
from synth.trainer.learner.methods.sft import SftTrainer
from synth.trainer.learner.model.policy import load_policy
from synth.trainer.learner.optim import moments
from synth.trainer.learner.rl import RlTrainer
from tests.unit.trainer.batches import random_batch
from tests.unit.trainer.jobs import OPEN_GATES, dpo_job, rl_job, sft_job
from tests.unit.trainer.pair_rows import pair_rows, preference_pairs
from tests.unit.trainer.sft_rows import addition_rows, training_rows

KINDS: dict[str, dict[str, Any]] = {
    "adamw": {},
    "8 bits": {"optimizer": "adamw_8bit"},
    "offload": {"optimizer_offload": True},
    "both": {"optimizer": "adamw_8bit", "optimizer_offload": True},
}


def sft(model_dir: Path, **changes: Any) -> SftTrainer:
    job = sft_job(**{"steps": 60, **changes})
    rng.seed_everything(0, deterministic=True)
    policy = load_policy(model_dir, job)
    rows = encode_rows(training_rows(addition_rows(64)), load_tokenizer(model_dir), sequence_length=128)
    return SftTrainer(policy, job, rows)


def dpo(model_dir: Path, **changes: Any) -> DpoTrainer:
    job = dpo_job(steps=60, **changes)
    rng.seed_everything(0, deterministic=True)
    policy = load_policy(model_dir, job, dropout=False)
    pairs = encode_pairs(pair_rows(preference_pairs(16)), load_tokenizer(model_dir), sequence_length=128)
    return DpoTrainer(policy, job, pairs)


def rl(model_dir: Path, **changes: Any) -> RlTrainer:
    job = rl_job(minibatches=2, **OPEN_GATES, **changes)
    rng.seed_everything(0, deterministic=True)
    return RlTrainer(load_policy(model_dir, job, dropout=False), job)


TRAINERS: dict[str, Any] = {"sft": sft, "dpo": dpo, "rl": rl}


def step(trainer: SftTrainer | DpoTrainer | RlTrainer) -> dict[str, float]:
    k = trainer.state.step + 1
    return (trainer.step(random_batch(k, version=k - 1)) if isinstance(trainer, RlTrainer) else trainer.step()).values


def weights_of(trainer: SftTrainer | DpoTrainer | RlTrainer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.policy.trainable_state_dict().items()}


def test_moments_in_8_bits_learn_as_float32_does(model_dir: Path) -> None:
    curves = {
        kind: [step(trainer)["loss"] for _ in range(60)]
        for kind in ("adamw", "8 bits")
        for trainer in [sft(model_dir, **KINDS[kind])]
    }
    exact, rounded = curves["adamw"], curves["8 bits"]
    assert exact != rounded
    assert exact[-1] < 0.2 * exact[0]
    # At no step are they further apart than a few percent of what has been learned by then.
    assert max(abs(a - b) for a, b in zip(exact, rounded, strict=True)) < 0.05 * exact[0]
    assert rounded[-1] == pytest.approx(exact[-1], rel=0.2)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_what_is_offloaded_is_updated_as_it_would_be_otherwise(
    trainer: str, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moments, "CHUNK_ELEMENTS", 1000)  # so that every matrix takes several
    there, away = (TRAINERS[trainer](model_dir, **KINDS[kind]) for kind in ("adamw", "offload"))
    for _ in range(3):
        step(there)
        step(away)
    others = weights_of(away)
    for name, tensor in weights_of(there).items():
        torch.testing.assert_close(tensor, others[name], atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_run_that_resumes_has_the_bytes_of_one_that_went_through(
    trainer: str, kind: str, model_dir: Path, tmp_path: Path
) -> None:
    through = TRAINERS[trainer](model_dir, **KINDS[kind])
    for _ in range(2):
        step(through)
    write_checkpoint(tmp_path / "checkpoint", through.state.snapshot())
    resumed = TRAINERS[trainer](model_dir, **KINDS[kind])
    resumed.state.resume(tmp_path / "checkpoint")
    for _ in range(2):
        step(through)
        step(resumed)
    weights = weights_of(resumed)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in weights_of(through).items())
    state = dict(resumed.state.optimizer.gathered())
    assert all(torch.equal(tensor, state[name]) for name, tensor in through.state.optimizer.gathered())


def test_a_checkpoint_of_one_optimizer_is_not_gone_on_from_with_another(model_dir: Path, tmp_path: Path) -> None:
    trainer = sft(model_dir)
    step(trainer)
    write_checkpoint(tmp_path / "checkpoint", trainer.state.snapshot())
    with pytest.raises(TrainingFailed) as refused:
        sft(model_dir, **KINDS["8 bits"]).state.resume(tmp_path / "checkpoint")
    assert refused.value.code == "bad_checkpoint"


def test_matrices_are_in_8_bits_and_vectors_are_not(model_dir: Path) -> None:
    trainer = sft(model_dir, **KINDS["8 bits"])
    step(trainer)
    state, shapes = dict(trainer.state.optimizer.gathered()), trainer.policy.trainable_parameters()
    for name, parameter in shapes.items():
        quantized = parameter.ndim == 2 and parameter.numel() >= 4096
        for moment in ("exp_avg", "exp_avg_sq"):
            assert state[f"{name}/{moment}"].dtype == (torch.uint8 if quantized else torch.float32)
            assert state[f"{name}/{moment}"].shape == parameter.shape
            assert (f"{name}/{moment}_scale" in state) == quantized
    assert any(tensor.dtype == torch.uint8 for tensor in state.values())
