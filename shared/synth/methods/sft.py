"""Supervised fine-tuning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from synth.methods.base import FileJob, Mode


class SftJob(FileJob, frozen=True, kw_only=True, tag="sft"):
    """Supervised fine-tuning on the conversations of a file. dpo: on the wire, what a DPO job has there."""

    method = "sft"
    rows = "conversations"
    learning_rates: ClassVar[Mapping[Mode, float]] = {"full": 1e-5, "lora": 2e-4, "qlora": 2e-4}
    low_precision_head = True

    dpo: None = None
