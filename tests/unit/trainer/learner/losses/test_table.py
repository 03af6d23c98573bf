"""Each loss of the table has a function, and the page has its formula, its source and its defaults."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from synth.methods.losses import LOSSES, LossSpec
from synth.trainer.learner.rl import find_loss

PAGE = (Path(__file__).parents[5] / "docs" / "losses.md").read_text()


@pytest.mark.parametrize("spec", LOSSES.values(), ids=lambda spec: spec.name)
def test_a_loss_of_the_table_has_a_function_and_is_on_the_page(spec: LossSpec):
    assert getattr(find_loss(spec.name), "__name__", "") == f"{spec.name}_loss"
    rows = [line for line in PAGE.splitlines() if line.startswith(f"| `{spec.name}` |")]
    described, formula = rows
    assert f"| {spec.clip_low:g}, {spec.clip_high:g} |" in described
    source = re.match(r"arXiv [\d.]+", spec.source)
    assert source is not None
    assert source[0] in described
    assert "A" in formula


def test_the_page_lists_the_losses_of_the_table():
    sample = re.search(r'variety = "gspo" +# or (.*)', PAGE)
    assert sample is not None
    assert ["gspo", *sample[1].split(", ")] == list(LOSSES)
