"""The vLLM engine shows its models no images, and says so before it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from synth.cli.tiny_models.qwen3_vl import make_tiny_qwen3_vl
from synth.errors import Permanent
from synth.inference.engines.vllm.base_model import read_base_model_info


def test_a_vision_model_is_refused_with_what_to_do(tmp_path: Path):
    made = make_tiny_qwen3_vl(tmp_path / "sees")
    with pytest.raises(Permanent, match=r"'sees' is a vision model.*SYNTH_ENGINE"):
        read_base_model_info(made.path)
