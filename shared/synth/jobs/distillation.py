"""On-policy distillation of a job, with every default applied."""

from __future__ import annotations

import msgspec


class DistillationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A teacher beside the rewards: see `synth.jobs.schema.distillation.DistillationSection`, whose keys these are.

    The advantage of a sampled token is reward_weight · A − kl_coef · (log μ − log π_teacher), with A that of the
    rewards, 0 where a group's are all the same.
    """

    teacher: str
    kl_coef: float = 1.0
    reward_weight: float = 1.0
    max_outage_s: float = 3600.0
