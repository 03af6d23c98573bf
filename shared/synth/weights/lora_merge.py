"""Merge a LoRA adapter into its base, as a separate model directory."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from torch import Tensor

from synth.weights.durable import atomic_folder
from synth.weights.policy_file import WeightsError, merge_lora
from synth.weights.published_names import published_parts
from synth.weights.tensor_file import load_tensors, save_tensors

__all__ = ["WeightsError", "write_merged_model"]

#: Of each name in an adapter's file, by peft.
_PREFIX = "base_model.model."


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
        merged = merge_lora(weights, _in_names_of(base, weights, deltas), config)
        save_tensors(partial / "model.safetensors", merged, header={"format": "pt"})


def _in_names_of(base: Path, weights: dict[str, Tensor], adapter: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return an adapter with the names that the layers have in the files of its base.

    A few types name a layer otherwise in memory, such as the shared experts of hy_v3.
    """
    stems = {name: name.removeprefix(_PREFIX).partition(".lora_")[0] for name in adapter}
    if all(f"{stem}.weight" in weights for stem in stems.values()):
        return adapter
    import torch
    import transformers

    auto: Any = transformers
    with torch.device("meta"):
        model = auto.AutoModelForCausalLM.from_config(auto.AutoConfig.from_pretrained(base, local_files_only=True))
    parts = published_parts(model, {name: tensor.shape for name, tensor in model.state_dict().items()})
    names = {name: of_file[0][0].removesuffix(".weight") for name, of_file in parts.items() if of_file}
    return {
        f"{_PREFIX}{names.get(f'{stem}.weight', stem)}{name.removeprefix(_PREFIX + stem)}": adapter[name]
        for name, stem in stems.items()
    }
