"""Each decision has its day, its alternatives, and a fact that would change it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

_TEXT = (Path(__file__).parents[3] / "docs/decisions.md").read_text()
_DECISIONS = re.findall(r"^### (\d+)\. [^\n]+\n(.*?)(?=^##|\Z)", _TEXT, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("text", [text for _, text in _DECISIONS], ids=[number for number, _ in _DECISIONS])
def test_a_decision_ends_with_its_day_its_alternatives_and_what_would_change_it(text: str):
    last = " ".join(text.strip().split("\n\n")[-1].split())
    assert re.fullmatch(r"\*2\d{3}-\d\d-\d\d\.\* \*\*Alternatives:\*\* .+ \*\*Would change it:\*\* .+\.", last)
