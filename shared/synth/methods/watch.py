"""The settings of the collapse watch."""

from __future__ import annotations

from typing import Literal

from synth.tables.keys import JobSettings, NonNegativeFloat, Positive, keys


@keys
class WatchKeys:
    """The action and the thresholds of `[training.watch]`."""

    __slots__ = ()

    action: Literal["warn", "pause", "stop"] = "warn"
    """the action on a sign, beside its `train.warned`: pause releases the job until it is resumed, stop fails the
    job"""
    patience: Positive = 5
    """iterations in a row that a sign must show before it counts, and be absent before it can count again"""
    window: Positive = 5
    """iterations in an average: of the job's first iterations, which later ones are compared with, and of its reward"""
    entropy_low: NonNegativeFloat = 0.1
    """entropy of the sampled tokens below this times the first iterations': the policy repeats one text"""
    entropy_high: NonNegativeFloat = 4.0
    """entropy above this times the first iterations': the policy samples nonsense"""
    unique_low: NonNegativeFloat = 0.3
    """share of different replies within a group below this times the first iterations'"""
    length_low: NonNegativeFloat = 0.2
    """mean number of tokens that a rollout samples below this times the first iterations'"""
    length_high: NonNegativeFloat = 4.0
    """mean number of tokens above this times the first iterations'"""
    truncated_rise: NonNegativeFloat = 0.5
    """share of replies that are cut off for their length, above the first iterations' by this"""
    no_signal: NonNegativeFloat = 0.9
    """share of groups that taught nothing, as all of their rewards are the same, above this"""
    clip_gap: NonNegativeFloat = 0.5
    """difference, above this, between the clip rates of sequences with a positive and with a negative advantage"""
    mismatch_kl: NonNegativeFloat = 0.05
    """KL divergence, nats a token, of the policy that trains from the one that sampled, above this"""
    grad_norm_high: NonNegativeFloat = 20.0
    """norm of the gradient before its clipping, above this times the first iterations'"""
    reward_drop: NonNegativeFloat = 0.6
    """fall of the mean reward from its best, both over the window, above this times the rewards' largest standard
    deviation so far"""
    stale_share: NonNegativeFloat = 0.5
    """share of sequences that were too old to be trained when their turn came, above this"""
    judge_drift: NonNegativeFloat = 0.5
    """fall of the environment's mean reward since the first iterations while the judges' scores rise, above this times
    its largest standard deviation so far"""


class WatchSettings(WatchKeys, JobSettings, frozen=True, kw_only=True):
    """The collapse watch of a job. A threshold of 0 is off."""
