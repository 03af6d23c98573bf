"""`[distillation]`: a teacher model, whose probability of each sampled token is what the policy learns from."""

from __future__ import annotations

from synth.jobs.schema.sections import Name, NonNegativeFloat, PositiveFloat, Section


class DistillationSection(Section):
    """`[distillation]`: on-policy distillation. The policy samples, the teacher says how likely each token is to it,
    and the policy learns to say what the teacher would: the reverse KL, token by token."""

    teacher: Name
    """the teacher: a base model, or one that a job of your organisation made; it has the policy's own tokenizer, and is
    served by this cluster, beside the policy"""
    kl_coef: PositiveFloat = 1.0
    """the advantage of a token is lowered by this times log policy - log teacher"""
    reward_weight: NonNegativeFloat = 1.0
    """what the advantage of the rewards counts beside it; 0 learns from the teacher alone, whatever is paid"""
    max_outage_s: PositiveFloat = 3600.0
    """how long the teacher may be away, in seconds, before the job ends; rollouts wait for it, and none is lost"""
