"""`[training.correction]`: the correction for tokens that were sampled by another policy than the one in training."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from synth.jobs.schema.sections import NonNegative, NonNegativeFloat, PositiveFloat, Section

Range = Annotated[list[NonNegativeFloat], Field(min_length=2, max_length=2)]


class CorrectionSection(Section):
    """`[training.correction]`: a token's weight is the ratio of its probabilities under the policy in training and
    under the one that sampled it. A sequence whose geometric mean of these ratios is too far from 1 is rejected."""

    token_truncation: PositiveFloat | None = None
    """the same as `[training] token_truncation`"""
    gates: bool = True
    """whether sequences are rejected at all"""
    on_policy: Range = Field(default=[0.99, 1.01])
    """the least and the largest mean ratio of tokens that the policy in training itself sampled, so that only numerics
    differ"""
    off_policy: Range = Field(default=[0.5, 2.0])
    """the same of tokens that an older policy sampled"""
    gate_tokens: NonNegative = 64
    """a mean over fewer tokens has a wider gate, by the root of gate_tokens / tokens, as it strays further by chance;
    with 0 every sequence has the same gate"""
    rejected: Literal["leave", "count"] = "count"
    """count: the weight of a rejected sequence is lost, so the step is smaller; leave: its weight is shared among the
    sequences that are kept"""
