"""The memory of training that is predicted, against the allocator's peak over whole steps of the trainer."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.memory import Case, compare

#: One of each mode and of several families, small enough for a machine that tests.
CASES = [
    Case("Qwen3"),
    Case("Llama 3", kind="sft", mode="lora"),
    Case("Qwen3-MoE"),
]
#: These run with `make soak`; `benchmarks/memory.py` has every family and mode.
MORE = [
    Case("Qwen3", mode="lora", keys=("activation_checkpointing = true",)),
    Case("Qwen3", mode="qlora"),
    Case("Qwen3", keys=('optimizer = "adamw_8bit"',)),
    Case("Gemma 3", kind="sft"),
    Case("gpt-oss", mode="lora"),
]


@pytest.mark.long
@pytest.mark.parametrize(
    "case", [*CASES, *(pytest.param(case, marks=pytest.mark.soak) for case in MORE)], ids=lambda case: case.name
)
def test_the_peak_of_training_is_within_15_percent_of_what_is_predicted(case: Case, tmp_path: Path) -> None:
    result = compare(case, tmp_path)
    assert result.ratio == pytest.approx(1, abs=0.15), (result.predicted, result.measured)
