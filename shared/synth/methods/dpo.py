"""Direct Preference Optimization: training on preference pairs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import msgspec

from synth.methods.base import FileJob, Mode


class DpoSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Direct Preference Optimization, in the names of the trainer's configuration.

    beta: how strongly the policy is held near its source model. label_smoothing: the share of pairs that are assumed to
    be the wrong way round.
    """

    beta: float = 0.1
    label_smoothing: float = 0.0


class DpoJob(FileJob, frozen=True, kw_only=True, tag="sft"):
    """DPO on the preference pairs of a file. On the wire it has the kind of SFT, and a `dpo`."""

    method = "dpo"
    rows = "pairs"
    row_sequences = 2
    learning_rates: ClassVar[Mapping[Mode, float]] = {"full": 1e-6, "lora": 1e-5, "qlora": 1e-5}
    without_dropout = "with dropout the policy is not its own reference"

    dpo: DpoSettings
