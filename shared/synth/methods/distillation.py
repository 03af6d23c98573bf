"""On-policy distillation of a job, with every default applied."""

from __future__ import annotations

import msgspec


class DistillationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A teacher beside the rewards. The fields are the keys of `synth.jobs.schema.distillation.DistillationSection`.

    The advantage of a sampled token is reward_weight · A − kl_coef · (log μ − log π_teacher). A is the advantage of the
    rewards, and 0 if a group's rewards are all the same.
    """

    teacher: str
    kl_coef: float = 1.0
    reward_weight: float = 1.0
    max_outage_s: float = 3600.0
