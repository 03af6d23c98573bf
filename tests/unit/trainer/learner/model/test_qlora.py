"""QLoRA: it learns over a base in 4 bits, which is to the bit the base that an engine serves."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from synth.methods.base import LoraSettings
from synth.trainer.errors import TrainingFailed
from synth.trainer.learner.checkpoint.checkpoint import write_checkpoint
from synth.trainer.learner.data.packing import Sequences, collate
from synth.trainer.learner.data.sft_dataset import SftDataset, encode_rows, load_tokenizer
from synth.trainer.learner.methods.sft import SftTrainer
from synth.trainer.learner.model.mean_nll import mean_nll
from synth.trainer.learner.model.policy import Policy, load_policy
from synth.trainer.learner.model.qlora import Nf4Linear
from synth.trainer.learner.rl import RlTrainer
from synth.weights.lora_merge import write_merged_model
from synth.weights.nf4 import write_rounded_model
from tests.unit.trainer.batches import random_batch, scored_by
from tests.unit.trainer.jobs import OPEN_GATES, machine_in, rl_job, sft_job
from tests.unit.trainer.sft_rows import addition_rows, training_rows


@pytest.fixture(scope="module")
def rounded(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rounded") / "nf4"
    write_rounded_model(model_dir, folder)
    return folder


@pytest.fixture(scope="module")
def data(model_dir: Path) -> SftDataset:
    return encode_rows(training_rows(addition_rows(64)), load_tokenizer(model_dir), sequence_length=128)


def rl_policy(folder: Path, mode: str, **changes: Any) -> Policy:
    """A policy whose adapter, from the same random numbers, is not zero."""
    torch.manual_seed(0)
    machine = machine_in(changes)
    policy = load_policy(folder, rl_job(mode=mode, **changes), machine, dropout=False)
    with torch.no_grad():
        for parameter in policy.trainable_parameters().values():
            parameter.normal_(std=0.05, generator=torch.Generator().manual_seed(parameter.numel()))
    return policy


def rl_trainer(folder: Path, **changes: Any) -> RlTrainer:
    job = rl_job(mode="qlora", **changes)
    torch.manual_seed(0)
    return RlTrainer(load_policy(folder, job, dropout=False), job)


def bytes_of(policy: Policy) -> dict[str, bytes]:
    return {n: t.numpy().tobytes() for n, t in policy.trainable_state_dict().items()}


def test_supervised_training_lowers_the_loss(rounded: Path, data: SftDataset) -> None:
    job = sft_job(mode="qlora", steps=30, lr=1e-2, lora=LoraSettings(r=8, alpha=16), packing="padded")
    trainer = SftTrainer(load_policy(rounded, job), job, data)
    losses = [trainer.step().values["loss"] for _ in range(trainer.total)]
    assert losses[-1] < 0.6 * losses[0]


def test_reinforcement_moves_the_adapter_towards_what_was_rewarded(rounded: Path) -> None:
    trainer = rl_trainer(rounded, minibatches=1, lr=1e-2, packing="padded")
    batch = scored_by(trainer.policy, random_batch(1))
    before = batch.logprobs.copy()
    trainer.step(batch)
    gain = scored_by(trainer.policy, copy.deepcopy(batch)).logprobs - before
    rewarded = sum(
        float(a * gain[i:j][batch.loss_mask[i:j]].mean())
        for a, i, j in zip(batch.advantages, batch.cu_seqlens, batch.cu_seqlens[1:], strict=False)
    )
    assert rewarded > 0


def test_a_batch_of_the_engine_that_serves_the_rounded_base_has_no_mismatch(rounded: Path) -> None:
    """The base that is served: an engine's weights are the rounded ones, in float32 on a CPU."""
    trainer = rl_trainer(rounded)
    engine = load_policy(rounded, rl_job(mode="lora"), dropout=False)
    values = trainer.step(scored_by(engine, random_batch(1))).values
    assert values["mismatch_max_lag0"] < 1e-5
    assert values["rejected_rate_lag0"] == values["token_truncated_rate_lag0"] == 0
    assert values["ppo_kl_first"] < 1e-8


def test_a_batch_of_the_base_as_it_was_would_be_rejected(rounded: Path, model_dir: Path) -> None:
    """Why the rounded base is served: to the gates, what 4 bits change is a mismatch like any other."""
    engine = load_policy(model_dir, rl_job(mode="lora"), dropout=False)
    # At their narrowest: the batch's sequences are short.
    values = rl_trainer(rounded, gate_tokens=1).step(scored_by(engine, random_batch(1))).values
    assert values["rejected_rate_lag0"] > 0.5


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
def test_gradients_are_those_of_an_adapter_on_the_rounded_weights(rounded: Path, dtype: str, recompute: bool) -> None:
    batch = random_batch(1)
    sequences = Sequences(batch.tokens, batch.loss_mask.astype("float32"), batch.cu_seqlens)
    micro = collate(sequences, list(range(8)), packing="packed")
    both: list[dict[str, torch.Tensor]] = []
    for mode in ("qlora", "lora"):
        policy = rl_policy(rounded, mode, dtype=dtype, activation_checkpointing=recompute)
        policy.logprobs(micro)[0].sum().backward()
        both.append({n: p.grad for n, p in policy.trainable_parameters().items() if p.grad is not None})
    assert both[0].keys() == both[1].keys()
    assert len(both[0]) == 2 * 14
    for name, gradient in both[0].items():
        assert torch.allclose(gradient, both[1][name], rtol=1e-4, atol=1e-5 if dtype == "fp32" else 3e-2), name


def test_the_base_is_kept_in_four_bits(rounded: Path) -> None:
    policy = rl_policy(rounded, "qlora")
    layers = {n: m for n, m in policy.model.named_modules() if isinstance(m, Nf4Linear)}
    assert len(layers) == 14
    for name, layer in layers.items():
        assert layer.weight.dtype == torch.uint8, name
        assert layer.weight.numel() == layer.in_features * layer.out_features / 2, name
    # What else has the size of a matrix is the adapter, and the embedding, which is the head too.
    trained = {id(p) for p in policy.trainable_parameters().values()}
    large = [p for p in policy.model.parameters() if p.ndim == 2 and id(p) not in trained]
    assert [tuple(p.shape) for p in large] == [(320, 64)]


def test_a_validation_leaves_the_training_as_it_was(rounded: Path, data: SftDataset) -> None:
    """bitsandbytes' own layer repacks its weights in `eval`, and has no gradient from then on."""
    ends: list[dict[str, bytes]] = []
    for validated in (False, True):
        job = sft_job(mode="qlora", steps=3)
        torch.manual_seed(0)
        trainer = SftTrainer(load_policy(rounded, job, dropout=False), job, data)
        for _ in range(3):
            if validated:
                mean_nll(trainer.policy, data.sequences)
            assert trainer.step().values["grad_norm"] > 0
        ends.append(bytes_of(trainer.policy))
    assert ends[0] == ends[1]


def test_a_resumed_run_has_the_bytes_of_a_straight_one(rounded: Path, tmp_path: Path) -> None:
    straight = rl_trainer(rounded, **OPEN_GATES)
    for k in (1, 2):
        straight.step(random_batch(k))
    write_checkpoint(tmp_path / "checkpoint", straight.state.snapshot())
    for k in (3, 4):
        straight.step(random_batch(k))
    again = rl_trainer(rounded, **OPEN_GATES)
    resumed = again.state.resume(tmp_path / "checkpoint")
    assert resumed.loss_then == resumed.loss_now is not None
    for k in (3, 4):
        again.step(random_batch(k))
    assert bytes_of(again.policy) == bytes_of(straight.policy)
    assert {n: t.numpy().tobytes() for n, t in again.state.optimizer.gathered()} == {
        n: t.numpy().tobytes() for n, t in straight.state.optimizer.gathered()
    }


def test_its_adapter_is_continued_or_merged_on_the_rounded_base(rounded: Path, tmp_path: Path) -> None:
    first = rl_policy(rounded, "qlora", lora=LoraSettings(r=4, alpha=8))
    first.write_model(tmp_path / "adapter")
    scores = scored_by(first, random_batch(1)).logprobs
    jobs = {mode: rl_job(mode=mode, lora=LoraSettings(r=4, alpha=8)) for mode in ("qlora", "lora", "full")}
    for mode, job in jobs.items():
        again = load_policy(rounded, job, adapter_dir=tmp_path / "adapter", dropout=False)
        assert scored_by(again, random_batch(1)).logprobs == pytest.approx(scores, abs=1e-5), mode
    write_merged_model(rounded, tmp_path / "adapter", tmp_path / "merged")
    merged = load_policy(tmp_path / "merged", jobs["full"], dropout=False)
    assert scored_by(merged, random_batch(1)).logprobs == pytest.approx(scores, abs=1e-5)


def test_a_base_that_was_not_rounded_is_refused(model_dir: Path) -> None:
    with pytest.raises(TrainingFailed, match="rounded to 4 bits") as caught:
        load_policy(model_dir, rl_job(mode="qlora"))
    assert caught.value.code == "bad_model"
