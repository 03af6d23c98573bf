"""The GPU benchmark runs, from a bare checkout, and counts what it says it counts."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest
import torch
from transformers import Qwen3ForCausalLM

from benchmarks.gpu.run import ROWS, Result, Row, measure, smoke, table
from benchmarks.gpu.shapes import FULL, QWEN3_06B, QWEN3_4B, Shape

FOLDER = Path(__file__).parents[3] / "benchmarks/gpu"


@pytest.mark.parametrize(
    "row", [r for r in ROWS if not r.options.get("compiled")], ids=lambda r: f"{r.shape.name} {r.name}"
)
def test_every_row_measures(row: Row, tmp_path: Path):
    found = measure(smoke(row), device="cpu", steps=1, scratch=tmp_path)
    assert found.tokens_per_second > 0
    assert found.mfu is None
    assert list(tmp_path.iterdir()) == []


def test_a_row_that_failed_says_why_in_its_own_line():
    lines = table({0: Result(None, "out of memory"), 3: Result(None, "exit 1")}, ROWS).splitlines()
    assert len(lines) == 4
    assert "out of memory" in lines[2]
    assert all(line.count("|") == 8 for line in lines)


def test_it_imports_our_algorithms_and_what_they_need_alone():
    nodes = [n for file in FOLDER.glob("*.py") for n in ast.walk(ast.parse(file.read_text()))]
    modules = {n.module or "" for n in nodes if isinstance(n, ast.ImportFrom)}
    modules |= {alias.name for n in nodes if isinstance(n, ast.Import) for alias in n.names}
    ours = {m.split(".")[1] for m in modules if m.startswith("synth.")}
    others = {m.partition(".")[0] for m in modules if not m.startswith("synth.")}
    assert ours == {"inference", "local", "methods", "trainer", "trajectories"}
    assert {m for m in modules if m.startswith("synth.local")} == {"synth.local.tiny_models.qwen3"}
    assert others - set(sys.stdlib_module_names) == {"benchmarks", "numpy", "torch", "transformers"}


@pytest.mark.parametrize("shape", [QWEN3_06B, QWEN3_4B], ids=lambda s: s.name)
def test_parameters_are_counted_as_the_model_has_them(shape: Shape):
    with torch.device("meta"):
        model = Qwen3ForCausalLM(shape.config(context=64))
    assert shape.parameters == sum(p.numel() for p in model.parameters())


def test_flops_are_six_a_parameter_and_token_and_attention_over_half_the_square():
    # The usual count for a full backward: 6 N + 12 · layers · width · length, of which causality needs half.
    width = QWEN3_06B.heads * QWEN3_06B.head_dim
    flops = QWEN3_06B.flops(FULL, context=2048 / 2)
    assert flops == pytest.approx(6 * QWEN3_06B.parameters + 12 * QWEN3_06B.layers * width * 2048 / 2)
