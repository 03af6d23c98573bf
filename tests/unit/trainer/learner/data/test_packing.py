"""Micro-batches: all of it once, within budget, and the same numbers packed or padded."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from synth.trainer.learner.data.packing import Sequences, collate, plan_micro_batches
from synth.trainer.learner.data.sft_dataset import SftDataset
from synth.trainer.learner.methods.sft import SftTrainer
from synth.trainer.learner.model.mean_nll import mean_nll
from synth.trainer.learner.model.policy import Policy, load_policy
from synth.trainer.learner.rl import RlTrainer
from tests.unit.trainer.batches import LOSSES, random_batch
from tests.unit.trainer.jobs import OPEN_GATES, rl_job, sft_job

Packing = Literal["packed", "padded"]


@pytest.mark.parametrize("packing", ["packed", "padded"])
def test_a_plan_has_every_sequence_once_and_keeps_its_budget(packing: Packing) -> None:
    rng = np.random.default_rng(0)
    lengths = {i: int(n) for i, n in enumerate(rng.integers(1, 90, 200))} | {200: 500}
    groups = plan_micro_batches(lengths, budget=256, packing=packing)
    assert sorted(i for g in groups for i in g) == list(range(201))
    for group in groups:
        tokens = [lengths[i] for i in group]
        used = sum(tokens) if packing == "packed" else max(tokens) * len(tokens)
        assert used <= 256 or group == [200]
    assert groups == plan_micro_batches(lengths, budget=256, packing=packing)


def test_bins_are_full_and_their_attention_is_balanced() -> None:
    lengths = {i: 10 + i % 50 for i in range(400)}
    groups = plan_micro_batches(lengths, budget=1024, packing="packed")
    assert len(groups) <= 1.1 * sum(lengths.values()) / 1024 + 1
    cost = [sum(lengths[i] ** 2 for i in g) for g in groups]
    assert max(cost) < 1.5 * min(cost)


@pytest.mark.parametrize("packing", ["packed", "padded"])
def test_each_trained_token_is_predicted_from_the_one_before_it(packing: Packing) -> None:
    sequences = Sequences(
        np.array([10, 11, 12, 20, 21], np.int32), np.array([0, 1, 0, 1, 1], np.float32), np.array([0, 3, 5])
    )
    micro = collate(sequences, [0, 1], packing=packing)
    # The first token of a sequence is predicted from nothing, and 12 has no weight.
    assert micro.source_N.tolist() == [1, 4]
    assert micro.target_N.tolist() == [11, 21]
    assert micro.input_ids_BL.flatten()[micro.predict_N].tolist() == [10, 20]
    assert micro.cu_seqlens.tolist() == [0, 1, 2]
    if packing == "packed":
        assert micro.position_ids_BL is not None
        assert micro.position_ids_BL.tolist() == [[0, 1, 2, 0, 1]]
    else:
        assert micro.input_ids_BL.tolist() == [[10, 11, 12], [20, 21, 0]]


def _sequences(seed: int = 0) -> Sequences:
    batch = random_batch(1, seed=seed)
    return Sequences(batch.tokens, batch.loss_mask.astype(np.float32), batch.cu_seqlens)


def test_a_packed_row_attends_within_its_own_sequence(model_dir: Path) -> None:
    policy = load_policy(model_dir, rl_job())
    sequences = _sequences()
    together = collate(sequences, list(range(len(sequences))), packing="packed")
    packed, _ = policy.logprobs(together)
    alone = torch.cat([policy.logprobs(collate(sequences, [i], packing="padded"))[0] for i in range(len(sequences))])
    assert torch.allclose(packed, alone, atol=2e-5)


def test_a_sequence_of_one_token_between_two_others_does_not_join_them(model_dir: Path) -> None:
    policy = load_policy(model_dir, rl_job())
    tokens = np.array([7, 8, 9, 10, 11, 12, 13], dtype=np.int32)
    sequences = Sequences(tokens, np.ones(7, dtype=np.float32), np.array([0, 3, 4, 7]))
    packed, _ = policy.logprobs(collate(sequences, [0, 1, 2], packing="packed"))
    alone, _ = policy.logprobs(collate(sequences, [2], packing="padded"))
    assert torch.allclose(packed[-2:], alone, atol=1e-5)


def _gradients(policy: Policy) -> dict[str, torch.Tensor]:
    return {n: p.grad.clone() for n, p in policy.trainable_parameters().items() if p.grad is not None}


def _same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert torch.allclose(a[name], b[name], atol=2e-6, rtol=1e-4), name


@pytest.mark.parametrize("budget", [256, 100_000])
@pytest.mark.parametrize("loss", LOSSES)
def test_packed_and_padded_rl_have_the_same_loss_and_gradients(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch, budget: int, loss: dict[str, Any]
) -> None:
    seen: list[tuple[float, dict[str, torch.Tensor]]] = []
    for packing in ("packed", "padded"):
        job = rl_job(packing=packing, minibatches=1, micro_batch_tokens=budget, **loss, **OPEN_GATES)
        policy = load_policy(model_dir, job, dropout=False)
        trainer = RlTrainer(policy, job)
        monkeypatch.setattr(trainer.state.optimizer, "step", lambda lr, **_: 1.0)
        seen.append((trainer.step(random_batch(1)).values["loss"], _gradients(policy)))
    assert seen[0][0] == pytest.approx(seen[1][0], abs=1e-5)
    _same(seen[0][1], seen[1][1])


@pytest.mark.parametrize("budget", [128, 100_000])
def test_packed_and_padded_sft_have_the_same_loss_and_gradients(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch, budget: int
) -> None:
    seen: list[tuple[float, dict[str, torch.Tensor]]] = []
    data = SftDataset(_sequences(), dict.fromkeys(("truncated_rows", "truncated_tokens", "untrained_rows"), 0.0))
    for packing in ("packed", "padded"):
        job = sft_job(packing=packing, micro_batch_tokens=budget)
        policy = load_policy(model_dir, job)
        trainer = SftTrainer(policy, job, data)
        monkeypatch.setattr(trainer.state.optimizer, "step", lambda lr, **_: 1.0)
        seen.append((trainer.step().values["loss"], _gradients(policy)))
    assert seen[0][0] == pytest.approx(seen[1][0], abs=1e-5)
    _same(seen[0][1], seen[1][1])


def test_the_validation_loss_does_not_depend_on_the_micro_batches(model_dir: Path) -> None:
    losses = [
        mean_nll(load_policy(model_dir, sft_job(packing=packing, micro_batch_tokens=budget)), _sequences())
        for packing in ("packed", "padded")
        for budget in (64, 4096)
    ]
    assert losses == pytest.approx([losses[0]] * 4, abs=1e-5)
