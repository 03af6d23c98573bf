"""`[distillation]`: a teacher model. The policy learns from the teacher's probability of each sampled token."""

from __future__ import annotations

from synth.jobs.schema.sections import Name, NonNegativeFloat, PositiveFloat, Section


class DistillationSection(Section):
    """`[distillation]`: on-policy distillation. The policy samples tokens, the teacher gives each token a probability,
    and training moves the policy towards the teacher: the reverse KL divergence, token by token."""

    teacher: Name
    """the teacher: a base model, or one that a job of your organisation made; it has the policy's own tokenizer, and is
    served by this cluster, beside the policy"""
    kl_coef: PositiveFloat = 1.0
    """the advantage of a token is lowered by this times log policy - log teacher"""
    reward_weight: NonNegativeFloat = 1.0
    """the weight of the rewards' advantage beside the teacher's; with 0 the policy learns from the teacher alone"""
    max_outage_s: PositiveFloat = 3600.0
    """seconds that the teacher may be unavailable before the job ends; rollouts wait for it, and none is lost"""
