"""Base models made on the spot: never over one that is there, unless asked to."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.test_command_line import synthctl


@pytest.mark.long
def test_a_model_is_made_once_and_anew_only_when_asked_to(tmp_path: Path):
    make = ("models", "make", "tiny-qwen3", "--seed")
    weights = tmp_path / ".synth/models/tiny-qwen3/model.safetensors"
    assert synthctl(*make, "0", cwd=tmp_path).returncode == 0
    first = weights.read_bytes()
    refused = synthctl(*make, "1", cwd=tmp_path)
    assert (refused.returncode, weights.read_bytes() == first) == (2, True)
    assert "--replace" in refused.stderr
    assert synthctl(*make, "1", "--replace", cwd=tmp_path).returncode == 0
    assert weights.read_bytes() != first
    assert [p.name for p in weights.parent.parent.iterdir()] == ["tiny-qwen3"]
