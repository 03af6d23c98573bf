"""Direct Preference Optimization: training on preference pairs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field

from synth.methods.base import FileJob, Mode
from synth.tables.keys import JobSettings, PositiveFloat, keys


@keys
class DpoKeys:
    """Keys of `[hyperparameters]` that only DPO has."""

    __slots__ = ()

    beta: PositiveFloat = 0.1
    """of DPO: how strongly the policy is held near the model that it began as"""
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    """of DPO: the share of the pairs that are taken to be labelled the wrong way round"""


class DpoSettings(DpoKeys, JobSettings, frozen=True, kw_only=True):
    """Direct Preference Optimization of a job."""


class DpoJob(FileJob, frozen=True, kw_only=True, tag="sft"):
    """DPO on the preference pairs of a file. On the wire it has the kind of SFT, and a `dpo`."""

    method = "dpo"
    rows = "pairs"
    row_sequences = 2
    learning_rates: ClassVar[Mapping[Mode, float]] = {"full": 1e-6, "lora": 1e-5, "qlora": 1e-5}
    without_dropout = "with dropout the policy is not its own reference"

    dpo: DpoSettings
