"""However many threads compute the micro-batches, the bytes are the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.memory import Case, write_model
from synth.methods.base import LoraSettings
from synth.trainer.errors import TrainingFailed
from synth.trainer.learner import rng
from synth.trainer.learner.checkpoint.checkpoint import write_checkpoint
from synth.trainer.learner.data.packing import plan_micro_batches
from synth.trainer.learner.data.pair_dataset import encode_pairs
from synth.trainer.learner.data.sft_dataset import encode_rows, load_tokenizer
from synth.trainer.learner.methods.dpo import DpoTrainer
from synth.trainer.learner.methods.sft import SftTrainer
from synth.trainer.learner.model.dropout import KeyedDropout, drawing
from synth.trainer.learner.model.policy import load_policy
from synth.trainer.learner.model.reference import load_reference
from synth.trainer.learner.rl import RlTrainer
from synth.trainer.machine import Machine
from tests.unit.trainer.batches import random_batch
from tests.unit.trainer.jobs import OPEN_GATES, dpo_job, rl_job, sft_job
from tests.unit.trainer.pair_rows import pair_rows, preference_pairs
from tests.unit.trainer.sft_rows import addition_rows, training_rows

_LORA = LoraSettings(r=4, alpha=8)
_DROPOUT = LoraSettings(r=4, alpha=8, dropout=0.1)
_STEPS = 3


def rl(model_dir: Path, threads: int, **changes: Any) -> RlTrainer:
    job = rl_job(minibatches=2, micro_batch_tokens=2048, **OPEN_GATES, **changes)
    rng.seed_everything(job.seed, deterministic=True)
    policy = load_policy(model_dir, job, Machine(threads=threads), dropout=False)
    policy.__dict__["eos_ids"] = {2}
    return RlTrainer(policy, job, reference=load_reference(policy, job))


def sft(model_dir: Path, threads: int, **changes: Any) -> SftTrainer:
    data = encode_rows(training_rows(addition_rows(64)), load_tokenizer(model_dir), sequence_length=128)
    job = sft_job(batch_size=32, micro_batch_tokens=1024, steps=_STEPS, validation_every=1, **changes)
    rng.seed_everything(job.seed, deterministic=True)
    return SftTrainer(load_policy(model_dir, job, Machine(threads=threads)), job, data, validation=data)


def dpo(model_dir: Path, threads: int, **changes: Any) -> DpoTrainer:
    data = encode_pairs(pair_rows(preference_pairs(32)), load_tokenizer(model_dir), sequence_length=128)
    job = dpo_job(batch_size=32, micro_batch_tokens=1024, steps=_STEPS, **changes)
    rng.seed_everything(job.seed, deterministic=True)
    policy = load_policy(model_dir, job, Machine(threads=threads), dropout=False)
    return DpoTrainer(policy, job, data, validation=data)


def train(trainer: Any, *, to: int = _STEPS) -> list[dict[str, float]]:
    """Train to a step; returns the metrics of each, without those of time and memory."""
    values: list[dict[str, float]] = []
    while trainer.state.step < to:
        batch = [random_batch(trainer.state.step + 1, sequences=64)] if isinstance(trainer, RlTrainer) else []
        step = trainer.step(*batch).values
        values.append({n: v for n, v in step.items() if not n.startswith(("seconds", "tokens_per", "peak"))})
    return values


def state(trainer: Any) -> dict[str, torch.Tensor]:
    """The weights, and the moments of the optimizer."""
    moments = {f"moments/{name}": tensor for name, tensor in trainer.state.optimizer.gathered()}
    return trainer.policy.trainable_state_dict() | moments


def assert_same(one: Any, other: Any) -> None:
    a, b = state(one), state(other)
    assert a.keys() == b.keys()
    assert [name for name in a if not torch.equal(a[name], b[name])] == []


CASES: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (rl, {"packing": "packed"}),
    (rl, {"packing": "padded", "activation_checkpointing": True}),
    (rl, {"mode": "lora", "lora": _LORA, "kl_beta": 0.1, "reference": "shared"}),
    (rl, {"kl_beta": 0.1, "reference": "shared", "rejected": "leave"}),
    (sft, {"packing": "packed"}),
    (sft, {"packing": "padded", "mode": "lora", "lora": _DROPOUT}),
    (sft, {"mode": "lora", "lora": _DROPOUT, "activation_checkpointing": True}),
    (dpo, {"mode": "lora", "lora": _LORA}),
]


@pytest.mark.parametrize(("make", "changes"), CASES)
def test_threads_change_no_bit_also_after_a_resume(
    model_dir: Path, tmp_path: Path, make: Callable[..., Any], changes: dict[str, Any]
) -> None:
    one = make(model_dir, 1, **changes)
    values = train(one)
    two = make(model_dir, 2, **changes)
    assert train(two) == values
    assert_same(one, two)
    four = make(model_dir, 4, **changes)
    train(four, to=1)
    write_checkpoint(tmp_path / "checkpoint", four.state.snapshot())
    resumed = make(model_dir, 2, **changes)
    result = resumed.state.resume(tmp_path / "checkpoint")
    assert (result.loss_now, result.same_fingerprint) == (result.loss_then, True)
    train(resumed)
    assert_same(one, resumed)


def test_threads_change_no_bit_of_experts(tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 128, "moe_intermediate_size": 32, "num_hidden_layers": 2}
    write_model(tmp_path / "model", Case("Qwen3-MoE", sizes=sizes))
    one, two = (rl(tmp_path / "model", threads) for threads in (1, 2))
    assert train(one, to=2) == train(two, to=2)
    assert_same(one, two)


@pytest.mark.parametrize("make", [rl, dpo])
def test_a_small_step_has_work_for_four_threads(model_dir: Path, make: Callable[..., Any]) -> None:
    trainer = make(model_dir, 1)
    done: list[int] = []
    trainer._progress = lambda stage, at, of: done.append(of) if stage == "train" else None
    train(trainer, to=1)
    assert done[-1] % 4 == 0


@pytest.mark.parametrize(("rows", "forwards"), [(20, 1), (30, 2), (60, 4)])
def test_a_step_of_few_tokens_is_divided_into_fewer_forwards(rows: int, forwards: int) -> None:
    plan = plan_micro_batches(dict.fromkeys(range(rows), 40), budget=8192, packing="padded", forwards=4)
    assert [len(part) for part in plan] == [rows // forwards] * forwards


def test_a_dropout_draws_by_its_key_and_scales_what_stays() -> None:
    first, second = (KeyedDropout(0.25, number) for number in (0, 1))
    x = torch.ones(100, 100)
    with drawing(0, 1):
        out, again, other = first(x), first(x), second(x)
    with drawing(0, 2):
        later = first(x)
    assert torch.equal(out, again)
    assert not torch.equal(out, other)
    assert not torch.equal(out, later)
    assert (out == 0).float().mean().item() == pytest.approx(0.25, abs=0.02)
    assert out.mean().item() == pytest.approx(1, abs=0.03)
    assert torch.equal(first.eval()(x), x)


def test_an_adapter_with_dropout_trains_on_several_threads(model_dir: Path) -> None:
    ends: list[dict[str, torch.Tensor]] = []
    for dropout in (0.0, 0.1):
        trainer = sft(model_dir, 2, mode="lora", lora=LoraSettings(r=4, alpha=8, dropout=dropout))
        assert not trainer.policy.threads.draws
        train(trainer)
        ends.append(trainer.policy.trainable_state_dict())
    assert any(not torch.equal(ends[0][name], tensor) for name, tensor in ends[1].items())


def test_the_first_micro_batch_that_fails_is_the_one_that_is_reported(model_dir: Path) -> None:
    trainer = rl(model_dir, 2)
    with torch.no_grad():
        trainer.policy.model.model.norm.weight[0] = float("nan")
    with pytest.raises(TrainingFailed) as caught:
        train(trainer, to=1)
    assert caught.value.code == "nan_loss"
    assert all(p.grad is None for p in trainer.policy.trainable_parameters().values())
