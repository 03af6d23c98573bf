"""The settings of on-policy distillation."""

from __future__ import annotations

from synth.tables.keys import JobSettings, Name, NonNegativeFloat, PositiveFloat, keys


@keys
class DistillationKeys:
    """The teacher of `[distillation]`, and its weights."""

    __slots__ = ()

    teacher: Name
    """the teacher: a base model, or one that a job of your organisation made; it has the policy's own tokenizer, and is
    served by this cluster, beside the policy"""
    kl_coef: PositiveFloat = 1.0
    """the advantage of a token is lowered by this times log policy - log teacher"""
    reward_weight: NonNegativeFloat = 1.0
    """the weight of the rewards' advantage beside the teacher's; with 0 the policy learns from the teacher alone"""
    max_outage_s: PositiveFloat = 3600.0
    """seconds that the teacher may be unavailable before the job ends; rollouts wait for it, and none is lost"""


class DistillationSettings(DistillationKeys, JobSettings, frozen=True, kw_only=True):
    """A teacher beside the rewards.

    The advantage of a sampled token is reward_weight · A − kl_coef · (log μ − log π_teacher). A is the advantage of the
    rewards, and 0 if a group's rewards are all the same.
    """
