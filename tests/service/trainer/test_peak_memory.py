"""The memory of training that is predicted, against the allocator's peak over whole steps of the trainer."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.memory import Case, compare

#: Of each mode and of several families one, small enough for a machine that tests.
CHEAP = [
    Case("Qwen3"),
    Case("Qwen3", mode="lora", keys=("activation_checkpointing = true",)),
    Case("Qwen3", mode="qlora"),
    Case("Qwen3", keys=('optimizer = "adamw_8bit"',)),
    Case("Llama 3", kind="sft", mode="lora"),
    Case("Gemma 3", kind="sft"),
    Case("gpt-oss", mode="lora"),
    Case("Qwen3-MoE"),
]


@pytest.mark.long
@pytest.mark.parametrize("case", CHEAP, ids=lambda case: case.name)
def test_the_peak_of_training_is_within_15_percent_of_what_is_predicted(case: Case, tmp_path: Path) -> None:
    found = compare(case, tmp_path)
    assert found.ratio == pytest.approx(1, abs=0.15), (found.predicted, found.measured)
