"""Losses of an operator who makes every mistake that there is."""

from __future__ import annotations

from dataclasses import replace

import torch

from synth.trainer.learner.losses.base import Clip, LossInputs, LossOutput
from synth.trainer.learner.losses.grpo import grpo_loss

as_grpo = grpo_loss


def raising(inputs: LossInputs, *, clip: Clip) -> LossOutput:
    raise KeyError("temperature")


def nan(inputs: LossInputs, *, clip: Clip) -> LossOutput:
    out = grpo_loss(inputs, clip=clip)
    return replace(out, loss=out.loss * float("nan"))


def nan_gradient(inputs: LossInputs, *, clip: Clip) -> LossOutput:
    out = grpo_loss(inputs, clip=clip)
    return replace(out, loss=out.loss + (inputs.logp_N - inputs.logp_N.detach()).abs().sqrt().sum())


def per_token(inputs: LossInputs, *, clip: Clip) -> LossOutput:
    return replace(grpo_loss(inputs, clip=clip), loss=-inputs.logp_N * inputs.advantage_N())


def constant(inputs: LossInputs, *, clip: Clip) -> LossOutput:
    return replace(grpo_loss(inputs, clip=clip), loss=torch.zeros(()))


def elsewhere(inputs: LossInputs, *, clip: Clip) -> LossOutput:
    return replace(grpo_loss(inputs, clip=clip), loss=torch.zeros((), requires_grad=True) * 2)


def halved(inputs: LossInputs, *, clip: Clip) -> LossOutput:
    out = grpo_loss(inputs, clip=clip)
    return replace(out, loss=out.loss.half())


def a_tensor(inputs: LossInputs, *, clip: Clip) -> torch.Tensor:
    return grpo_loss(inputs, clip=clip).loss


def short(inputs: LossInputs, *, clip: Clip) -> LossOutput:
    return replace(grpo_loss(inputs, clip=clip), clipped_U=torch.zeros(4, dtype=torch.bool))


def counted(inputs: LossInputs, *, clip: Clip) -> LossOutput:
    out = grpo_loss(inputs, clip=clip)
    return replace(out, clipped_U=out.clipped_U.float())


def without_clip(inputs: LossInputs) -> LossOutput:
    return grpo_loss(inputs, clip=Clip(0.2, 0.2))


def nan_on_long(inputs: LossInputs, *, clip: Clip) -> LossOutput:
    """Right on small examples alone."""
    return (nan if len(inputs.logp_N) > 6 else grpo_loss)(inputs, clip=clip)
