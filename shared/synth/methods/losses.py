"""The built-in losses of RL, and the correction for tokens that another policy sampled.

A loss is one row, which the job file's keys, its errors, its page and the trainer read.

The function of a loss is `<name>_loss` in a file of `services/synth/trainer/learner/losses/`.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

from synth.tables.keys import JobSettings, NonNegative, Range, keys

BuiltinLoss = Literal["gspo", "gspo_token", "grpo", "dppo", "cispo"]


class LossSpec(NamedTuple):
    """A loss, and its defaults. source: of its formula; docs/losses.md has the formula.

    measure: the quantity that it bounds, of which clip_low and clip_high are the default ends. token_truncation: the
    default cap on π_old/μ of a token. per_token: whether a token can have an advantage of its own. own_keys: keys of
    `[training]` that only it has. file: of its function.
    """

    name: BuiltinLoss
    file: str
    source: str
    measure: str
    clip_low: float
    clip_high: float
    token_truncation: float = 2.0
    per_token: bool = True
    own_keys: tuple[str, ...] = ()


_ROWS = (
    LossSpec("gspo", "gspo", "arXiv 2507.18071, §5.1", "ratio of a sequence", 3e-4, 4e-4, per_token=False),
    LossSpec("gspo_token", "gspo", "arXiv 2507.18071, eq. 13", "ratio of a sequence", 3e-4, 4e-4),
    # The ends are DAPO's (arXiv 2503.14476).
    LossSpec("grpo", "grpo", "arXiv 2402.03300, eq. 3", "ratio of a token", 0.2, 0.28, own_keys=("dual_clip",)),
    # The bounds are those of open implementations. The paper's §5.4 warns of a tight truncation.
    LossSpec("dppo", "dppo", "arXiv 2602.04879", "probability of a token", 0.2, 0.2, token_truncation=20.0),
    # No lower bound, as in MiniMax-M1. The upper end is a weight of 4, as in an open implementation.
    LossSpec("cispo", "cispo", "arXiv 2506.13585, eq. 4", "weight of a token", 1.0, 3.0),
)
LOSSES: dict[str, LossSpec] = {spec.name: spec for spec in _ROWS}
assert tuple(LOSSES) == get_args(BuiltinLoss)

#: The loss whose defaults a plugin has, because most losses bound the ratio of a token.
PLUGIN_DEFAULTS = LOSSES["grpo"]


def find_spec(loss: str) -> LossSpec:
    """Return the row of a loss; for a plugin the one with its defaults."""
    return LOSSES.get(loss, PLUGIN_DEFAULTS)


def list_losses(*, per_token: bool = False) -> str:
    """Return the names of the losses for an error or a page. per_token: only those in which a token has its own."""
    *names, last = [f'"{row.name}"' for row in _ROWS if row.per_token or not per_token]
    return f"{', '.join(names)} or {last}"


def list_defaults(end: Literal["clip_low", "clip_high"]) -> str:
    """Return the default of one end of the clip for each loss, with the quantity that it bounds."""
    return ", ".join(f"{row.name} {getattr(row, end):g} ({row.measure})" for row in _ROWS)


@keys
class CorrectionKeys:
    """The sequences that `[training.correction]` rejects."""

    __slots__ = ()

    gates: bool = True
    """whether sequences are rejected at all"""
    on_policy: Range = (0.99, 1.01)
    """the least and the largest mean ratio of tokens that the policy in training itself sampled, so that only numerics
    differ"""
    off_policy: Range = (0.5, 2.0)
    """the same of tokens that an older policy sampled"""
    gate_tokens: NonNegative = 64
    """a mean over fewer tokens has a wider gate, by the root of gate_tokens / tokens, as it strays further by chance;
    with 0 every sequence has the same gate"""
    rejected: Literal["leave", "count"] = "count"
    """count: the weight of a rejected sequence is lost, so the step is smaller; leave: its weight is shared among the
    sequences that are kept"""


class CorrectionSettings(CorrectionKeys, JobSettings, frozen=True, kw_only=True):
    """The correction of a job."""
