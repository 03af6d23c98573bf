"""`[distillation]`: a teacher model. The policy learns from the teacher's probability of each sampled token."""

from __future__ import annotations

from synth.jobs.schema.sections import Section
from synth.methods.distillation import DistillationKeys


class DistillationSection(DistillationKeys, Section, frozen=True):
    """`[distillation]`: on-policy distillation. The policy samples tokens, the teacher gives each token a probability,
    and training moves the policy towards the teacher: the reverse KL divergence, token by token."""
