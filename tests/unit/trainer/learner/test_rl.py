"""One RL step on one batch: what changes the policy, and what does not."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from synth.trainer.errors import TrainingFailed
from synth.trainer.learner.model.policy import Policy, load_policy
from synth.trainer.learner.rl import RlTrainer
from synth.trajectories import RolloutBatch, TokenMasks, TokenSet
from tests.unit.trainer.batches import LOSSES, random_batch, scored_by
from tests.unit.trainer.jobs import OPEN_GATES, rl_job


def trainer_for(model_dir: Path, **changes: object) -> RlTrainer:
    job = rl_job(**changes)
    torch.manual_seed(job.seed)
    return RlTrainer(load_policy(model_dir, job, dropout=False), job)


def weights(policy: Policy) -> dict[str, torch.Tensor]:
    return {n: t.clone() for n, t in policy.trainable_state_dict().items()}


def changed(before: dict[str, torch.Tensor], policy: Policy) -> bool:
    return any(not torch.equal(before[n], t) for n, t in policy.trainable_state_dict().items())


@pytest.mark.parametrize("packing", ["packed", "padded"])
@pytest.mark.parametrize("mode", ["full", "lora"])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_first_minibatch_starts_at_a_ratio_of_one(
    model_dir: Path, packing: str, mode: str, loss: dict[str, Any]
) -> None:
    # At this learning rate no later minibatch is clipped as a whole, which would leave out an optimizer step.
    trainer = trainer_for(model_dir, packing=packing, mode=mode, lr=1e-4, **loss)
    values = trainer.step(scored_by(trainer.policy, random_batch(1))).values
    assert values["ppo_kl_first"] < 1e-8
    assert values["clipped_first"] == 0
    assert values["ppo_kl"] > 0
    assert values["optimizer_moves"] == 4
    assert values["rejected_rate_lag0"] == 0
    assert values["mismatch_kl"] < 1e-8


def test_old_logprobs_of_later_minibatches_are_those_of_the_policy_before_the_step(model_dir: Path) -> None:
    trainer = trainer_for(model_dir, lr=1e-30)
    values = trainer.step(scored_by(trainer.policy, random_batch(1))).values
    assert values["ppo_kl"] == 0
    assert values["clip_rate_positive"] == values["clip_rate_negative"] == 0


@pytest.mark.parametrize("loss", LOSSES)
def test_a_step_raises_what_was_rewarded(model_dir: Path, loss: dict[str, Any]) -> None:
    trainer = trainer_for(model_dir, packing="padded", minibatches=1, lr=3e-3, **loss)
    batch = scored_by(trainer.policy, random_batch(1))
    trainer.step(batch)
    after = scored_by(trainer.policy, dataclasses.replace(batch, logprobs=batch.logprobs.copy()))
    gain = np.array(
        [
            (after.logprobs - batch.logprobs)[a:b][batch.loss_mask[a:b]].mean()
            for a, b in zip(batch.cu_seqlens, batch.cu_seqlens[1:], strict=False)
        ]
    )
    assert (gain * batch.advantages).sum() > 0


def test_each_loss_trains_a_policy_of_its_own_but_gspo_token_which_is_gspo(model_dir: Path) -> None:
    ends: dict[str, bytes] = {}
    for loss in LOSSES:
        trainer = trainer_for(model_dir, **loss)
        trainer.step(scored_by(trainer.policy, random_batch(1)))
        ends[loss["loss"]] = b"".join(t.numpy().tobytes() for t in trainer.policy.trainable_state_dict().values())
    assert ends["gspo"] == ends["gspo_token"]
    assert len(set(ends.values())) == 4


def test_dppo_bounds_how_far_the_policy_is_from_the_one_that_sampled(model_dir: Path) -> None:
    rates: list[tuple[float, float]] = []
    for shift in (0.0, 1.0):
        trainer = trainer_for(model_dir, minibatches=1, loss="dppo", clip_low=1e-4, clip_high=1e-4, **OPEN_GATES)
        batch = scored_by(trainer.policy, random_batch(1))
        batch.logprobs[batch.loss_mask] -= shift
        values = trainer.step(batch).values
        rates.append((values["clip_rate_positive"], values["clip_rate_negative"]))
    assert rates == [(0, 0), (1, 0)]


@pytest.mark.parametrize("batch", [random_batch(1, zero=16), random_batch(1, sequences=0)], ids=["flat", "empty"])
def test_nothing_to_learn_from_is_a_skipped_step_that_changes_nothing(model_dir: Path, batch: RolloutBatch) -> None:
    trainer = trainer_for(model_dir)
    before = weights(trainer.policy)
    result = trainer.step(batch)
    assert result.step == 1
    assert result.values["skipped"] == 1
    assert not changed(before, trainer.policy)
    assert trainer.step(random_batch(2)).step == 2


def test_when_all_is_rejected_the_momentum_changes_nothing(model_dir: Path) -> None:
    trainer = trainer_for(model_dir)
    trainer.step(scored_by(trainer.policy, random_batch(1)))
    before = weights(trainer.policy)
    unlikely = random_batch(2)
    unlikely.logprobs[unlikely.loss_mask] = -1e-3  # far above what the policy gives any of them
    values = trainer.step(unlikely).values
    assert values["rejected_rate_lag0"] == 1
    assert values["optimizer_moves"] == 0
    assert values["grad_norm"] == 0
    assert not changed(before, trainer.policy)


def test_zero_advantage_sequences_are_counted_but_not_run(model_dir: Path) -> None:
    both: list[tuple[float, float]] = []
    for zero in (0, 8):
        trainer = trainer_for(model_dir, minibatches=1, **OPEN_GATES)
        batch = random_batch(1)
        batch.advantages[:zero] = 0
        values = trainer.step(batch).values
        both.append((values["sequences"], values["sequences_trained"]))
    assert both == [(16, 16), (16, 8)]


@pytest.mark.parametrize("loss", LOSSES)
def test_a_prompt_or_tool_token_is_not_trained(model_dir: Path, loss: dict[str, Any]) -> None:
    """What stands at masked positions in the arrays of the batch cannot reach the loss."""
    losses: list[float] = []
    for noise in (0.0, 5.0):
        trainer = trainer_for(model_dir, minibatches=1, **loss)
        batch = scored_by(trainer.policy, random_batch(1))
        batch.logprobs[~batch.loss_mask] = noise
        batch.versions[~batch.loss_mask] = int(noise)
        values = trainer.step(batch).values
        losses.append(values["loss"])
        assert values["trained_tokens"] == batch.loss_mask.sum()
    assert losses[0] == losses[1]


def test_the_same_batch_gives_the_same_bytes(model_dir: Path) -> None:
    ends = []
    for _ in range(2):
        trainer = trainer_for(model_dir)
        trainer.step(scored_by(trainer.policy, random_batch(1)))
        ends.append(weights(trainer.policy))
    assert all(torch.equal(ends[0][n], ends[1][n]) for n in ends[0])


def test_the_temperature_of_the_sampling_is_divided_out(model_dir: Path) -> None:
    trainer = trainer_for(model_dir)
    warm = random_batch(1)
    warm = dataclasses.replace(warm, meta=msgspec.structs.replace(warm.meta, temperature=0.7))
    values = trainer.step(scored_by(trainer.policy, warm)).values
    assert values["mismatch_kl"] < 1e-8
    assert values["ppo_kl_first"] < 1e-8


@pytest.mark.parametrize("packing", ["packed", "padded"])
def test_what_a_grammar_left_out_is_left_out_of_the_softmax(model_dir: Path, packing: str) -> None:
    batch = constrained(random_batch(1))
    trainer = trainer_for(model_dir, packing=packing)
    values = trainer.step(scored_by(trainer.policy, batch)).values
    assert (values["mismatch_kl"] < 1e-8, values["ppo_kl_first"] < 1e-8) == (True, True)
    # As if the trainer knew nothing of it: the mass of the allowed tokens becomes mismatch.
    trainer = trainer_for(model_dir, packing=packing, **OPEN_GATES)
    unmasked = dataclasses.replace(scored_by(trainer.policy, constrained(random_batch(1))), masks=None)
    assert trainer.step(unmasked).values["mismatch_kl"] > 0.1


def constrained(batch: RolloutBatch) -> RolloutBatch:
    """The batch as if a grammar had allowed some tokens alone at every second trained position."""
    few, most = np.arange(320) % 7 == 0, np.arange(320) % 7 != 0
    sets: list[TokenSet | None] = []
    for i, token in enumerate(batch.tokens):
        among = few if few[token] else most
        sets.append(TokenSet.of(among) if batch.loss_mask[i] and i % 2 else None)
    return dataclasses.replace(batch, masks=TokenMasks.of(sets))


def test_staleness_and_truncation_are_reported(model_dir: Path) -> None:
    trainer = trainer_for(model_dir, **OPEN_GATES)
    trainer.step(random_batch(1))
    values = trainer.step(random_batch(2, version=0)).values
    assert values["staleness_share_1"] == 1
    assert values["staleness_mean"] == 1
    assert values["completion_truncated_rate"] == 1  # none of the random sequences ends with <|im_end|>
    assert all(isinstance(v, float) and np.isfinite(v) for v in values.values())


def test_a_sequence_that_is_too_stale_is_counted_and_not_trained(model_dir: Path) -> None:
    trainer = trainer_for(model_dir, max_staleness=1, **OPEN_GATES)
    for k in (1, 2, 3):
        trainer.step(scored_by(trainer.policy, random_batch(k)))
    before = weights(trainer.policy)
    values = trainer.step(random_batch(4, version=1)).values
    assert (values["sequences_stale"], values["skipped"]) == (16, 1)
    assert not changed(before, trainer.policy)


def test_the_oldest_token_of_a_rollout_that_spans_versions_is_the_one_that_counts(model_dir: Path) -> None:
    trainer = trainer_for(model_dir, max_staleness=1, **OPEN_GATES)
    for k in (1, 2, 3):
        trainer.step(scored_by(trainer.policy, random_batch(k)))
    batch = random_batch(4, version=3)
    for sequence, began_on in enumerate((1, 2)):
        first = batch.cu_seqlens[sequence] + int(batch.loss_mask[batch.cu_seqlens[sequence] :].argmax())
        batch.versions[first] = began_on
    values = trainer.step(batch).values
    assert values["sequences_stale"] == 1
    assert values["staleness_max"] == 2


def test_a_batch_out_of_order_is_refused(model_dir: Path) -> None:
    with pytest.raises(TrainingFailed, match="expected 1") as caught:
        trainer_for(model_dir).step(random_batch(2))
    assert caught.value.code == "out_of_order"


def test_a_batch_from_the_future_is_refused(model_dir: Path) -> None:
    with pytest.raises(TrainingFailed, match="version 3"):
        trainer_for(model_dir).step(random_batch(1, version=3))


def test_a_nan_stops_before_any_weight_changes(model_dir: Path) -> None:
    trainer = trainer_for(model_dir, minibatches=1)
    before = weights(trainer.policy)
    batch = random_batch(1)
    batch.logprobs[np.flatnonzero(batch.loss_mask)[3]] = np.nan
    with pytest.raises(TrainingFailed) as caught:
        trainer.step(batch)
    assert caught.value.code == "nan_loss"
    assert not changed(before, trainer.policy)
