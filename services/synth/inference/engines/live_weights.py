"""Swaps weights into a live model, in place, and proves which weights it then serves."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from synth.errors import Permanent
from synth.inference.engines.protocol import WeightProof
from synth.weights.policy_file import PolicyWeights, WeightsError, read_policy, tensor_digests
from synth.weights.published_names import published_parts, published_tensors


class LiveModel:
    """A causal language model whose weights, or whose adapter's, can be replaced while it serves.

    model: the bare model. Its forward stays the same object, because an adapter is injected into its layers. device:
    on which it computes.
    """

    def __init__(self, model: Any, adapter: Path | None) -> None:
        self.model = model
        self.device = next(model.parameters()).device
        self._peft_model: Any = None
        if adapter is not None:
            from synth.weights.peft_compat import PeftModel

            self._peft_model = PeftModel.from_pretrained(model, str(adapter))
            self._peft_model.eval()
        self._freeze()

    def load(self, weights: PolicyWeights) -> WeightProof:
        """Copy a policy's tensors into the live ones and read them back.

        Raises `Permanent` if names or shapes differ; then nothing has changed.
        """
        if weights.kind == "lora" and self._peft_model is None:
            self._attach_adapter(weights.lora or {})
        live = self._adapter_tensors() if weights.kind == "lora" else self._model_tensors()
        check_fit(weights, {name: tuple(tensor.shape) for name, tensor in live.items()})
        for name, tensor in weights.tensors.items():
            live[name].copy_(tensor)
        return _verify(weights, live)

    def move(self, device: torch.device | str) -> None:
        """Move every tensor, and give the memory that this frees back to the system.

        An attached adapter is part of the model's layers.
        """
        with torch.inference_mode(mode=False):
            self.model.to(device)
        if self.device.type == "cuda":
            gc.collect()
            torch.cuda.empty_cache()

    def _attach_adapter(self, config: dict[str, Any]) -> None:
        from synth.weights.peft_compat import LoraConfig, get_peft_model

        known = {k: v for k, v in config.items() if k in LoraConfig.__dataclass_fields__}
        self._peft_model = get_peft_model(self.model, LoraConfig(**known))
        self._peft_model.eval()
        self._freeze()

    def _freeze(self) -> None:
        for parameter in self.model.parameters():
            parameter.requires_grad_(False)

    def _model_tensors(self) -> dict[str, Tensor]:
        if self._peft_model is not None:
            raise Permanent("full weights for a model that serves an adapter; expected the adapter alone")
        live: dict[str, Tensor] = dict(self.model.state_dict())
        if self.model.config.tie_word_embeddings:
            live.pop("lm_head.weight", None)
        return published_tensors(published_parts(self.model, {n: t.shape for n, t in live.items()}), live)

    def _adapter_tensors(self) -> dict[str, Tensor]:
        from synth.weights.peft_compat import get_peft_model_state_dict

        return get_peft_model_state_dict(self._peft_model)


def read_weights(file: Path, version: int) -> PolicyWeights:
    """Read a policy weights file, and check every tensor against its digest.

    Raises `Permanent` if the file is incomplete, or holds another version than announced.
    """
    try:
        weights = read_policy(file)
    except (WeightsError, OSError) as error:
        raise Permanent(f"policy version {version} cannot be loaded: {error}") from error
    if weights.version != version:
        raise Permanent(f"{file.name} holds policy version {weights.version}, expected {version}")
    return weights


def check_fit(weights: PolicyWeights, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise `Permanent` if a policy's tensors differ in name or shape from the tensors of the model that serves it."""
    tensors = weights.tensors
    names = sorted(tensors.keys() ^ shapes.keys())
    misshapen = sorted(n for n in tensors.keys() & shapes.keys() if tuple(tensors[n].shape) != shapes[n])
    if names or misshapen:
        raise Permanent(
            f"policy version {weights.version} does not fit the model that serves it: {len(names)} tensors are on one "
            f"side only, {len(misshapen)} have another shape, first {(names or misshapen)[0]!r}"
        )


def _verify(weights: PolicyWeights, live: dict[str, Tensor]) -> WeightProof:
    """Compare the live tensors' digests with the file's; if the dtypes differ, with digests of the cast tensors."""
    matched = 0
    for name, announced in weights.digests.items():
        tensor = weights.tensors[name]
        same = tensor.dtype == live[name].dtype
        expected = announced if same else tensor_digests({name: tensor.to(live[name].dtype)})[name]
        matched += tensor_digests({name: live[name]})[name] == expected
    return WeightProof(version=weights.version, tensors=len(weights.digests), matched=matched)


def model_dtype(device: torch.device, stored: torch.dtype | None, requested: str | None) -> torch.dtype:
    """Return the requested dtype, as in `EngineSettings.dtype`; else float32 on a CPU, where bfloat16 is slower and
    tests need exact numbers, and elsewhere the stored dtype."""
    if requested is not None:
        return {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[requested]
    return torch.float32 if device.type == "cpu" or stored is None else stored
