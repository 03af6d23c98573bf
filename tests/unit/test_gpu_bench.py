"""The GPU benchmark runs, from a bare checkout, and counts what it says it counts."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.run import FULL, QWEN3_06B, TINY, measure

SOURCE = Path(__file__).parents[2] / "benchmarks/gpu/run.py"


def test_it_measures_training_and_sampling():
    rows = measure(TINY, device="cpu", steps=1)
    assert [row.what for row in rows] == ["SFT, full", "RL (GSPO), LoRA r16", "sampling, prompts included"]
    for row in rows:
        assert row.tokens_per_second > 0
        assert row.mfu is None


def test_it_imports_our_algorithms_and_what_they_need_alone():
    nodes = ast.walk(ast.parse(SOURCE.read_text()))
    modules = [n.module or "" for n in nodes if isinstance(n, ast.ImportFrom)]
    ours = {m.split(".")[1] for m in modules if m.startswith("synth.")}
    others = {m.partition(".")[0] for m in modules if not m.startswith("synth.")}
    assert ours == {"cli", "inference", "trainer", "trajectories"}
    assert {m for m in modules if m.startswith("synth.cli")} == {"synth.cli.make_model"}
    assert others - set(sys.stdlib_module_names) == {"transformers"}


def test_flops_are_six_a_parameter_and_token_and_attention_over_half_the_square():
    # The usual count for a full backward: 6 N + 12 · layers · width · length, of which causality needs half.
    parameters, width = 596_049_920, QWEN3_06B.heads * QWEN3_06B.head_dim
    flops = QWEN3_06B.flops(parameters, FULL, context=2048 / 2)
    assert flops == pytest.approx(6 * parameters + 12 * QWEN3_06B.layers * width * 2048 / 2)
