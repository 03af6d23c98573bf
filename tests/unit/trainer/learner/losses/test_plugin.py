"""A loss of the operator's own: it is tried before it trains, and each of its mistakes is one error that names it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from examples.plugins import tapered
from synth.trainer.errors import TrainingFailed
from synth.trainer.learner.losses.base import Clip
from synth.trainer.learner.losses.plugin import _example, load_loss
from synth.trainer.learner.model.policy import load_policy
from synth.trainer.learner.rl import RlTrainer, find_loss
from tests.unit.trainer.batches import random_batch
from tests.unit.trainer.jobs import OPEN_GATES, rl_job

HERE = "tests.unit.trainer.learner.losses.plugin_losses"


@pytest.mark.parametrize(
    ("function", "what"),
    [
        ("raising", "it raises KeyError: 'temperature' at raising, line"),
        ("nan", "its loss is nan; expected a finite number"),
        ("nan_gradient", "its gradient is ["),
        ("per_token", "its loss is torch.float32 [6]; expected a scalar"),
        ("constant", "its loss has no gradient"),
        ("elsewhere", "its loss cannot be differentiated in logp_N"),
        ("halved", "its loss is of torch.float16; expected float32"),
        ("a_tensor", "it returns a Tensor; expected a LossOutput"),
        ("short", "its clipped_U is torch.bool [4]; expected [S] = [3], or [N] = [6]"),
        ("counted", "expected clipped_U of bool"),
        ("without_clip", "it raises TypeError: without_clip() got an unexpected keyword argument 'clip'"),
        ("missing", "has no attribute 'missing'"),
    ],
)
def test_each_mistake_is_one_error_before_anything_is_loaded(function: str, what: str):
    with pytest.raises(TrainingFailed, match=re.escape(what)) as failed:
        load_loss(f"{HERE}:{function}")
    assert failed.value.code == "plugin_failed"
    assert f"{HERE}:{function}" in failed.value.detail


def test_what_goes_wrong_on_a_batch_alone_is_the_same_error_and_nothing_is_saved(model_dir: Path):
    job = rl_job(loss=f"{HERE}:nan_on_long", **OPEN_GATES)
    trainer = RlTrainer(load_policy(model_dir, job, dropout=False), job)
    with pytest.raises(TrainingFailed, match="nan_on_long' is at fault: its loss is nan") as failed:
        trainer.step(random_batch(1))
    assert (failed.value.code, trainer.state.step) == ("plugin_failed", 0)


def test_a_plugin_that_is_our_loss_trains_the_same_bytes(model_dir: Path):
    weights: list[list[torch.Tensor]] = []
    for loss in ("grpo", f"{HERE}:as_grpo"):
        job = rl_job(loss=loss, clip_low=0.2, clip_high=0.28, **OPEN_GATES)
        trainer = RlTrainer(load_policy(model_dir, job, dropout=False), job)
        trainer.step(random_batch(1))
        weights.append([p.detach().clone() for p in trainer.policy.model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


def test_the_example_is_what_its_formula_says():
    inputs = _example(by_token=True)
    out = tapered(inputs, clip=Clip(0.2, 0.2))
    # The tokens that are kept: A·log π of the wanted ones, min(r, 1)·A·log π of the unwanted; with weight 0.99 each.
    first = 1.0 * -0.5 + 0.5 * -0.5 + torch.tensor(-0.5).exp().item() * -0.5 * -2.5
    second = 0.0 + 1.0 * -1.0 * -2.0
    assert out.loss.item() == pytest.approx(-0.99 * (first / 9 + second / 6), rel=1e-5)
    assert load_loss("examples.plugins:tapered").name == "examples.plugins:tapered"


def test_a_name_that_is_neither_ours_nor_a_plugin_is_refused():
    with pytest.raises(TrainingFailed, match="the loss is 'ppo'; expected \"gspo\""):
        find_loss("ppo")
