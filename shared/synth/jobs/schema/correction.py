"""`[training.correction]`: the correction for tokens that were sampled by another policy than the one in training."""

from __future__ import annotations

from synth.jobs.schema.sections import Section
from synth.methods.losses import CorrectionKeys
from synth.tables.keys import PositiveFloat


class CorrectionSection(CorrectionKeys, Section, frozen=True):
    """`[training.correction]`: a token's weight is the ratio of its probabilities under the policy in training and
    under the one that sampled it. A sequence whose geometric mean of these ratios is too far from 1 is rejected."""

    token_truncation: PositiveFloat | None = None
    """the same as `[training] token_truncation`"""
