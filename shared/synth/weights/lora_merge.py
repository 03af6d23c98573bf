"""Merge a LoRA adapter into its base, as a separate model directory."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from torch import Tensor

from synth.weights.durable import atomic_folder
from synth.weights.policy_file import WeightsError, merge_lora
from synth.weights.tensor_file import load_tensors, save_tensors

__all__ = ["WeightsError", "write_merged_model"]


def write_merged_model(base: Path, adapter: Path, target: Path) -> None:
    """Write `base` with `adapter` (a peft directory) merged into it, float32, at `target`; whole, or not at all.

    An existing target is complete, and is kept. Raises `WeightsError` for an adapter whose merge is not
    a plain sum.
    """
    if target.exists():
        return
    config = json.loads((adapter / "adapter_config.json").read_text())
    deltas, _ = load_tensors(adapter / "adapter_model.safetensors")
    weights: dict[str, Tensor] = {}
    for shard in sorted(base.glob("*.safetensors")):
        weights |= load_tensors(shard)[0]
    with atomic_folder(target) as partial:
        for file in base.iterdir():
            if file.is_file() and not file.name.endswith((".safetensors", ".safetensors.index.json")):
                shutil.copy(file, partial / file.name)
        save_tensors(partial / "model.safetensors", merge_lora(weights, deltas, config), header={"format": "pt"})
