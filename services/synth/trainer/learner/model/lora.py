"""LoRA adapters: added to a model or continued, and merged into it. Only the code that adds one imports peft."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from synth.images.qwen3_vl import is_qwen3_vl
from synth.methods.base import LoraSettings
from synth.models.architectures import has_experts
from synth.models.table import LORA_TARGETS, MM_PROJECTOR, PROJECTOR
from synth.trainer.errors import TrainingFailed
from synth.trainer.learner.model.qlora import Nf4Linear
from synth.trainer.machine import Machine
from synth.weights.policy_file import merge_lora
from synth.weights.tensor_file import load_tensors

#: Names of the modules that divide tokens among experts, which an adapter on every linear layer leaves out.
_ROUTERS = frozenset({"router", "gate", "shared_expert_gate"})
#: A kernel of these types reads the weight of a layer itself, and peft refuses an adapter there.
_KERNEL_READS = frozenset({"out_proj"})
_MAMBA_TYPES = frozenset({"falcon_h1", "falcon_mamba", "mamba", "mamba2", "nemotron_h"})


def merge_adapter(model: Any, adapter_dir: Path) -> None:
    """Merge the adapter of a folder into the loaded float32 model."""
    adapter_config = json.loads((adapter_dir / "adapter_config.json").read_text())
    adapter, _ = load_tensors(adapter_dir / "adapter_model.safetensors")
    model.load_state_dict(
        merge_lora(without_tied_duplicates(model.state_dict()), adapter, adapter_config), strict=False
    )
    model.tie_weights()


def without_tied_duplicates(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a state dict without the second name of a tensor that has two, such as a tied LM head."""
    seen: set[int] = set()
    return {n: t for n, t in state.items() if not (t.data_ptr() in seen or seen.add(t.data_ptr()))}


def add_adapter(model: Any, lora: LoraSettings, machine: Machine, adapter_dir: Path | None, *, dropout: bool) -> Any:
    """Add LoRA layers to a model as the job defines them, new or from `adapter_dir`. Returns peft's model.

    Raises `TrainingFailed` (bad_recipe, adapter_differs).
    """
    from synth.weights.peft_compat import LoraConfig, PeftModel, get_peft_model

    target_modules = _lora_target_modules(model, lora)
    if adapter_dir is not None:
        peft_model: Any = PeftModel.from_pretrained(model, str(adapter_dir), is_trainable=True)
        adapter = peft_model.peft_config["default"]
        agrees = (adapter.r, adapter.lora_alpha) == (lora.r, lora.alpha)
        if not agrees or set(peft_model.targeted_module_names) != target_modules:
            raise TrainingFailed(
                "adapter_differs",
                f"the source adapter has rank {adapter.r}, alpha {adapter.lora_alpha} and "
                f"{len(peft_model.targeted_module_names)} target modules; the job has rank {lora.r}, "
                f"alpha {lora.alpha} and {len(target_modules)}; set the adapter's values, or merge the adapter "
                "into its base first and start from that",
            )
        for layer in peft_model.modules():
            if isinstance(getattr(layer, "lora_dropout", None), nn.ModuleDict):
                layer.lora_dropout["default"] = nn.Dropout(lora.dropout if dropout else 0.0)
        return _leave_casts_to_autocast(peft_model, machine)
    peft_model = get_peft_model(
        model,
        LoraConfig(
            task_type="CAUSAL_LM",
            r=lora.r,
            lora_alpha=lora.alpha,
            lora_dropout=lora.dropout if dropout else 0.0,
            target_modules=sorted(target_modules),
        ),
    )
    return _leave_casts_to_autocast(peft_model, machine)


def _leave_casts_to_autocast(peft_model: Any, machine: Machine) -> Any:
    # peft casts the input of each adapter to float32, and autocast casts it back: the same numbers, for more time.
    if machine.dtype == "bf16":
        for layer in peft_model.modules():
            if hasattr(layer, "lora_A"):
                layer.cast_input_dtype_enabled = False
    return peft_model


def _lora_target_modules(model: Any, lora: LoraSettings) -> set[str]:
    from synth.weights.peft_compat import LoraConfig, check_target_module_exists

    head = model.get_output_embeddings()
    # A subclass may return more than a tensor, as the router of phimoe does.
    linear = {n: m for n, m in model.named_modules() if type(m) in (nn.Linear, Nf4Linear)}
    targets = lora.targets
    if targets == "all-linear" and is_qwen3_vl(model):
        targets = LORA_TARGETS["qwen3-vl"]
    if targets == "all-linear":
        routers = _ROUTERS if has_experts(model.config.get_text_config().to_dict()) else frozenset[str]()
        left_out = routers | (_KERNEL_READS if model.config.model_type in _MAMBA_TYPES else frozenset())
        return {n for n, m in linear.items() if m is not head and not left_out & set(n.split("."))}
    target_modules = {n for n in linear if check_target_module_exists(LoraConfig(target_modules=targets), n)}
    if isinstance(targets, list) and MM_PROJECTOR in targets and is_qwen3_vl(model):
        target_modules |= {n for n in linear if check_target_module_exists(LoraConfig(target_modules=PROJECTOR), n)}
    if not target_modules or any(linear[n] is head for n in target_modules):
        named = "the LM head" if target_modules else "no linear layer"
        raise TrainingFailed(
            "bad_recipe",
            f'lora.targets {lora.targets!r} name {named}; expected linear layers below the head; use "all-linear"',
        )
    return target_modules
