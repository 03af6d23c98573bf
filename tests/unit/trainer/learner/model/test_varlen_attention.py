"""Attention over packed rows: exact, without a mask, and kept where all else is computed again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from synth.trainer.learner.data.packing import MicroBatch, Sequences, collate
from synth.trainer.learner.model import varlen_attention
from synth.trainer.learner.model.policy import Policy, load_policy
from tests.unit.trainer.jobs import rl_job

LENGTHS = (5, 64, 1, 27, 40)


class Recorder(TorchDispatchMode):
    """Which operators ran, and the number of elements of the largest tensor that one of them made."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.calls.append(str(func))
        made = out if isinstance(out, tuple | list) else (out,)
        self.largest = max([self.largest, *(t.numel() for t in made if isinstance(t, torch.Tensor))])
        return out

    def attentions(self) -> int:
        return sum("_scaled_dot_product" in call and "backward" not in call for call in self.calls)


def packed(lengths: tuple[int, ...] = LENGTHS) -> MicroBatch:
    ends = np.cumsum([0, *lengths])
    tokens = np.random.default_rng(0).integers(5, 300, ends[-1]).astype(np.int32)
    sequences = Sequences(tokens, np.ones(ends[-1], np.float32), ends)
    return collate(sequences, list(range(len(lengths))), packing="packed")


def policy(model_dir: Path, **changes: Any) -> Policy:
    return load_policy(model_dir, rl_job(**changes), dropout=False)


def gradients(policy: Policy, micro: MicroBatch) -> dict[str, torch.Tensor]:
    policy.logprobs(micro)[0].sum().backward()
    return {n: p.grad for n, p in policy.trainable_parameters().items() if p.grad is not None}


def test_packed_rows_score_and_learn_as_with_the_mask_of_transformers(model_dir: Path) -> None:
    ours, theirs = policy(model_dir), policy(model_dir)
    assert ours.model.config._attn_implementation == varlen_attention.BY_SEQUENCE
    theirs.model.set_attn_implementation("sdpa")
    micro = packed()
    assert torch.allclose(ours.logprobs(micro)[0], theirs.logprobs(micro)[0], atol=1e-5)
    found, expected = gradients(ours, micro), gradients(theirs, micro)
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        assert torch.allclose(gradient, expected[name], atol=1e-3), name


def test_nothing_has_the_size_of_a_row_squared(model_dir: Path) -> None:
    micro = packed((20,) * 60)
    tokens, widest = 1200, 320  # the widest that a token has: its logits
    with Recorder() as seen:
        policy(model_dir).logprobs(micro)[0].sum().backward()
    assert seen.largest <= tokens * widest < tokens**2


def test_one_sequence_alone_and_padded_rows_are_plainly_causal(model_dir: Path) -> None:
    model = policy(model_dir)
    one = packed((64,))
    sequences = Sequences(one.input_ids_BL[0].numpy().astype(np.int32), np.ones(64, np.float32), np.array([0, 64]))
    padded = collate(sequences, [0], packing="padded")
    assert torch.allclose(model.logprobs(one)[0], model.logprobs(padded)[0], atol=1e-6)


@pytest.mark.parametrize("mode", ["full", "lora"])
def test_recomputed_activations_give_the_same_gradients_and_attention_runs_once(model_dir: Path, mode: str) -> None:
    micro, layers = packed(), 2
    runs: list[dict[str, torch.Tensor]] = []
    for recompute in (False, True):
        torch.manual_seed(0)
        trained = policy(model_dir, mode=mode, activation_checkpointing=recompute)
        with Recorder() as seen:
            runs.append(gradients(trained, micro))
        assert seen.attentions() == layers * len(LENGTHS)
    for name, gradient in runs[0].items():
        assert torch.equal(gradient, runs[1][name]), name


def test_activations_that_are_recomputed_are_not_kept(model_dir: Path) -> None:
    def kept(**changes: Any) -> int:
        """Bytes that the forward keeps for its backward, weights not counted."""
        trained = policy(model_dir, **changes)
        weights = {p.data_ptr() for p in trained.model.parameters()}
        sizes: dict[int, int] = {}

        def note(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.data_ptr() not in weights:
                sizes[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            trained.logprobs(packed())
        return sum(sizes.values())

    assert kept(activation_checkpointing=True) < 0.5 * kept()


def test_a_model_with_windows_attends_by_sequence_and_one_with_other_layers_as_transformers_does(
    model_dir: Path,
) -> None:
    config = policy(model_dir).model.config
    for layer_types, chosen in (
        (["full_attention", "sliding_attention"], varlen_attention.BY_SEQUENCE),
        (["full_attention", "linear_attention"], "sdpa"),
    ):
        config.layer_types = layer_types
        assert varlen_attention.choose_attention(config, torch.device("cuda"), torch.bfloat16) == chosen
