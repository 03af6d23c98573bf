"""Whether a loaded model computes the sequences of a forward as it computes each of them alone.

A layer with a state carries it from one sequence of a packed row to the next, and some types do not pass on where a
sequence ends. Then rows are padded, whatever the job has.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from synth.images.qwen3_vl import is_qwen3_vl
from synth.methods.base import TrainingJob
from synth.models.architectures import LogitRule
from synth.trainer.errors import TrainingFailed
from synth.trainer.learner.data.packing import MicroBatch, Sequences, collate
from synth.trainer.learner.model.base_model import attention_of, set_attention
from synth.trainer.learner.model.varlen_attention import BY_SEQUENCE
from synth.trainer.machine import Machine

log = logging.getLogger(__name__)

Layout = Literal["packed", "padded"]


class ComparedModel(Protocol):
    """What is compared: a policy that was just loaded."""

    model: Any
    machine: Machine

    @property
    def model_dir(self) -> Path: ...

    @property
    def job(self) -> TrainingJob: ...

    @property
    def logit_rule(self) -> LogitRule: ...

    def autocast(self) -> contextlib.AbstractContextManager[Any]: ...

    def hidden_states(self, micro: MicroBatch) -> Tensor: ...


#: Lengths of the two sequences that are compared, and the largest difference of hidden states, by their largest value.
_LENGTHS = (7, 12)
_TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 5e-2}


@torch.no_grad()
def choose_layout(policy: ComparedModel) -> Layout:
    """Return the layout of the job's forwards: the job's own, or "padded" if packing changes the results.

    The model is on the CPU. Its first layers are compared, up to one of each kind. Raises `TrainingFailed` (bad_model)
    if padding changes it too, or if the logits are not what the model makes of its hidden states by itself.
    """
    model = policy.model
    vocabulary = model.get_output_embeddings().weight.shape[0]
    tokens = np.random.default_rng(0).integers(0, vocabulary, sum(_LENGTHS), dtype=np.int32)
    sequences = Sequences(tokens, np.ones(len(tokens), np.float32), np.cumsum([0, *_LENGTHS]))
    model.eval()
    with _on_cpu(policy), _first_layers(model):
        alone = torch.cat([_hidden(policy, sequences, [i], "padded") for i in range(len(_LENGTHS))])
        differences = {
            layout: float((_hidden(policy, sequences, [0, 1], layout) - alone).abs().max() / alone.abs().max())
            for layout in ("packed", "padded")
        }
        logits = _logits_difference(policy, torch.from_numpy(tokens.astype(np.int64))[None])
    model.train()
    tolerance = _TOLERANCES[alone.dtype]
    # A difference that is not a number is none that is small enough.
    if not logits <= tolerance:
        raise _refusal(policy, "computes its logits in an unknown way", logits, tolerance)
    if not differences["padded"] <= tolerance:
        fault = "computes a sequence in a padded row otherwise than alone"
        raise _refusal(policy, fault, differences["padded"], tolerance)
    if policy.job.packing == "packed" and not differences["packed"] <= tolerance:
        log.warning(
            "%s, a %s, mixes the sequences of a packed row (hidden states differ by %.2g): rows are padded",
            policy.model_dir.name,
            model.config.model_type,
            differences["packed"],
        )
        return "padded"
    return policy.job.packing


def _refusal(policy: ComparedModel, fault: str, difference: float, tolerance: float) -> TrainingFailed:
    name = f"{policy.model_dir.name}, a {policy.model.config.model_type},"
    values = f"the values differ by {difference:.2g} of the largest; expected at most {tolerance:.2g}"
    return TrainingFailed("bad_model", f"{name} {fault}: {values}")


def _logits_difference(policy: ComparedModel, ids_1L: Tensor) -> float:
    """Return how far the model's own logits are from those that are trained, by the largest of them."""
    if is_qwen3_vl(policy.model):
        return 0.0
    with policy.autocast():
        own_1LV = policy.model(input_ids=ids_1L, use_cache=False).logits.float()
        hidden_1LD = policy.model.base_model(input_ids=ids_1L, use_cache=False).last_hidden_state
        head = policy.model.get_output_embeddings()
        product_1LV = torch.nn.functional.linear(hidden_1LD, head.weight, head.bias).float()
    return float((policy.logit_rule.logits(product_1LV) - own_1LV).abs().max() / own_1LV.abs().max())


def _hidden(policy: ComparedModel, sequences: Sequences, indices: list[int], layout: Layout) -> Tensor:
    """Return the hidden states of these sequences but of their last tokens, end to end, [N, D]."""
    micro = collate(sequences, indices, packing=layout)
    return policy.hidden_states(micro).flatten(0, 1)[micro.predict_N]


@contextlib.contextmanager
def _on_cpu(policy: ComparedModel) -> Iterator[None]:
    """Compute on the CPU, also for a policy of a GPU; its attention kernel may be none of a CPU."""
    model, machine = policy.model, policy.machine
    attention = attention_of(model)
    if machine.device != "cpu":
        set_attention(model, BY_SEQUENCE)
    policy.machine = msgspec.structs.replace(machine, device="cpu")
    try:
        yield
    finally:
        policy.machine = machine
        if machine.device != "cpu":
            set_attention(model, attention)


@contextlib.contextmanager
def _first_layers(model: Any) -> Iterator[None]:
    """Let a model have its first layers only, until there is one of each kind."""
    decoder, kinds = model.get_decoder(), getattr(model.config.get_text_config(), "layer_types", None) or [None]
    layers = getattr(decoder, "layers", None)
    if not isinstance(layers, nn.ModuleList):
        yield
        return
    decoder.layers = layers[: max(2, *(kinds.index(kind) + 1 for kind in kinds))]
    try:
        yield
    finally:
        decoder.layers = layers
