"""What a token weighs: the three reductions against plain formulas in float64, and a rollout of branches as one."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from synth.trainer.learner.losses.base import Clip
from synth.trainer.learner.losses.grpo import grpo_loss
from synth.trainer.learner.losses.reduction import Reduction, token_weights
from synth.trainer.learner.model.policy import load_policy
from synth.trainer.learner.optim.adamw import Optimizer
from synth.trainer.learner.rl import RlTrainer
from synth.trajectories import BatchMeta, Branch, RolloutBatch, RolloutMeta
from tests.unit.trainer.batches import random_batch, scored_by
from tests.unit.trainer.jobs import OPEN_GATES, rl_job
from tests.unit.trainer.loss_inputs import gradient, loss_inputs

REDUCTIONS: list[Reduction] = ["sequence", "token", "prompt"]
#: Two prompts: rollouts 0 and 1 (of two branches and of one), rollouts 2 and 3 (of one and of three).
TOKENS = [3, 5, 2, 7, 1, 4, 6]
ROLLOUT = [0, 0, 1, 2, 3, 3, 3]
GROUP = [0, 0, 0, 1, 1, 1, 1]
ADVANTAGES = [1.0, 1.0, -1.0, 0.5, -0.5, -0.5, -0.5]


def weights_of(reduction: Reduction, *, minibatches: int = 1) -> list[float]:
    rollout, group = (np.asarray(numbers, np.int32) for numbers in (ROLLOUT, GROUP))
    return token_weights(reduction, np.asarray(TOKENS), rollout, group, minibatches=minibatches).tolist()


def plain(reduction: Reduction, loss_N: torch.Tensor) -> torch.Tensor:
    """The reduction as it is said in words, without weights."""
    by_sequence = loss_N.split(TOKENS)
    if reduction == "token":
        return loss_N.mean()
    owners = ROLLOUT if reduction == "sequence" else GROUP
    means = [
        torch.cat([losses for losses, of in zip(by_sequence, owners, strict=True) if of == owner]).mean()
        for owner in sorted(set(owners))
    ]
    return torch.stack(means).mean()


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_a_reduction_is_the_mean_that_its_name_says_in_float64(reduction: Reduction) -> None:
    torch.manual_seed(0)
    old = -torch.rand(sum(TOKENS), dtype=torch.float64)
    logp = (old + 0.3 * torch.randn(sum(TOKENS), dtype=torch.float64)).requires_grad_()
    inputs = dataclasses.replace(
        loss_inputs(logp, old, ADVANTAGES, TOKENS),
        token_weight_S=torch.tensor(weights_of(reduction), dtype=torch.float64),
    )
    clip = Clip(0.2, 0.28)
    ratio_N = (logp - old).exp()
    advantage_N = torch.repeat_interleave(torch.tensor(ADVANTAGES, dtype=torch.float64), torch.tensor(TOKENS))
    clipped_N = ratio_N.clamp(1 - clip.low, 1 + clip.high)
    expected = plain(reduction, -torch.minimum(ratio_N * advantage_N, clipped_N * advantage_N))
    out = grpo_loss(inputs, clip=clip)
    assert out.loss.item() == pytest.approx(expected.item(), abs=1e-14)
    assert torch.allclose(gradient(out.loss, logp), gradient(expected, logp), atol=1e-15)


@pytest.mark.parametrize("minibatches", [1, 4])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_the_weights_of_a_batch_add_up_to_its_minibatches(reduction: Reduction, minibatches: int) -> None:
    weights = weights_of(reduction, minibatches=minibatches)
    assert np.dot(weights, TOKENS) == pytest.approx(minibatches)


def test_the_advantages_of_a_group_cancel_however_many_branches_its_rollouts_have() -> None:
    pushed = np.asarray(weights_of("sequence")) * TOKENS * ADVANTAGES
    assert pushed[:3].sum() == pytest.approx(0)
    assert pushed[3:].sum() == pytest.approx(0)


def test_a_rollout_without_trained_tokens_weighs_nothing_and_is_counted() -> None:
    numbers = np.asarray([0, 1], np.int32)
    weights = token_weights("sequence", np.asarray([4, 0]), numbers, numbers, minibatches=1)
    assert (weights * [4, 0]).tolist() == [0.5, 0]


def one_rollout_with(branches: int, trainer: RlTrainer) -> RolloutBatch:
    """Two rollouts of a prompt: the first samples the same in each of its branches, the second teaches nothing."""
    tokens = np.asarray([7, 9, 11, 13, 17, 19], np.int32)
    mask = np.arange(6) >= 2
    branch = Branch(
        tokens, mask, np.where(mask, -5, 0).astype(np.float32), np.where(mask, 0, -1), np.where(mask, 0, -1)
    )
    rollouts = [RolloutMeta(rollout_id=f"j_t1_{i}", seed=0, group=0, reward=float(i)) for i in range(2)]
    meta = BatchMeta(job_id="j", iteration=1, temperature=1.0, rollouts=rollouts, groups_kept=1, groups_dropped=0)
    batch = RolloutBatch.build([branch] * (branches + 1), [1.0] * branches + [0.0], [0] * branches + [1], meta)
    return scored_by(trainer.policy, batch)


def gradient_of(batch: RolloutBatch, trainer: RlTrainer, monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    """The gradient of a batch's one optimizer step, whose parameters it leaves as they are."""
    found: list[torch.Tensor] = []

    def keep(optimizer: Optimizer, lr: float, *, scale: float) -> float:
        gradients = optimizer._gradients()  # pyright: ignore[reportPrivateUsage]
        found.append(scale * torch.cat([g.flatten() for g in gradients]))
        return 1.0

    monkeypatch.setattr(Optimizer, "step", keep)
    trainer.step(batch)
    return found[0]


def trainer_of(model_dir: Path, **changes: object) -> RlTrainer:
    job = rl_job(**{"minibatches": 1, **OPEN_GATES, **changes})
    return RlTrainer(load_policy(model_dir, job, dropout=False), job)


@pytest.mark.parametrize("loss", ["gspo", "grpo", "dppo"])
def test_a_rollout_of_eight_branches_pushes_as_much_as_one_of_one(
    model_dir: Path, loss: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its one weight it pushed 16/9 times as much, as 8 of 9 sequences instead of 1 of 2 rollouts."""
    one, eight = (
        gradient_of(one_rollout_with(n, trainer := trainer_of(model_dir, loss=loss)), trainer, monkeypatch)
        for n in (1, 8)
    )
    assert one.norm() > 0.1
    assert (eight.norm() / one.norm()).item() == pytest.approx(1, abs=1e-5)
    torch.testing.assert_close(eight, one, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_the_size_of_micro_batches_changes_no_gradient(
    model_dir: Path, reduction: Reduction, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = random_batch(1, branches_each=3)
    gradients = [
        gradient_of(
            batch,
            trainer_of(model_dir, loss="grpo", loss_reduction=reduction, micro_batch_tokens=tokens, packing=packing),
            monkeypatch,
        )
        for tokens, packing in ((16, "packed"), (64, "padded"), (4096, "packed"))
    ]
    for other in gradients[1:]:
        torch.testing.assert_close(other, gradients[0], atol=1e-5, rtol=1e-4)


def test_the_sequences_of_a_rollout_are_never_in_two_minibatches(model_dir: Path) -> None:
    job = rl_job(minibatches=3)
    trainer = RlTrainer(load_policy(model_dir, job, dropout=False), job)
    batch = random_batch(1, branches_each=3)
    parts = trainer._divide(batch, 1)  # pyright: ignore[reportPrivateUsage]
    assert sorted(i for part in parts for i in part) == list(range(16))
    owners = [{int(batch.rollout[i]) for i in part} for part in parts]
    assert all(not one & other for k, one in enumerate(owners) for other in owners[k + 1 :])


def test_what_rejected_sequences_weigh_is_lost_or_goes_to_the_others(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four rollouts as long as each other, the first is rejected, and the last teaches nothing but is there."""
    found: dict[str, torch.Tensor] = {}
    for rejected in ("count", "leave", "as if it were not there"):
        trainer = trainer_of(model_dir, on_policy=(0.99, 1.01), rejected="leave" if rejected == "leave" else "count")
        batch = scored_by(trainer.policy, four_rollouts(without_first=rejected == "as if it were not there"))
        if rejected != "as if it were not there":
            batch.logprobs[2:6] -= 1
        found[rejected] = gradient_of(batch, trainer, monkeypatch)
        assert trainer.state.reports[1]["rejected_sequences"] == (rejected != "as if it were not there")
    torch.testing.assert_close(found["leave"], found["as if it were not there"], atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(found["count"], found["leave"] * 3 / 4, atol=1e-6, rtol=1e-4)


def four_rollouts(*, without_first: bool) -> RolloutBatch:
    mask = np.arange(6) >= 2
    first = np.where(mask, 0, -1)
    numbers = range(1 if without_first else 0, 4)
    branches = [
        Branch(np.arange(6, dtype=np.int32) + 7 * i, mask, np.zeros(6, np.float32), versions=first, calls=first)
        for i in numbers
    ]
    rollouts = [RolloutMeta(rollout_id=f"j_t1_{i}", seed=0, group=0, reward=1.0) for i in numbers]
    meta = BatchMeta(job_id="j", iteration=1, temperature=1.0, rollouts=rollouts, groups_kept=1, groups_dropped=0)
    return RolloutBatch.build(branches, [[1.0, 1.0, -2.0, 0.0][i] for i in numbers], list(range(len(branches))), meta)
