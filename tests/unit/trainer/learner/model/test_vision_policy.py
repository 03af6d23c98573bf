"""Log-probabilities of sequences with images, and what is trained of a model that sees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import Qwen3VLForConditionalGeneration

from synth.methods.base import LoraSettings
from synth.trainer.learner.data.images import ImageLoader
from synth.trainer.learner.data.packing import Sequences, collate, plan_micro_batches
from synth.trainer.learner.model.policy import Policy, load_policy
from synth.trainer.learner.optim.adamw import Optimizer
from synth.weights.nf4 import write_rounded_model
from synth.weights.tensor_file import load_tensors
from tests.unit.trainer.jobs import rl_job
from tests.unit.trainer.vision import as_sequences, vision_batch

PROJECTOR = ("model.visual.merger.", "model.visual.deepstack_merger_list.")


@pytest.fixture(scope="module")
def sequences(loader: ImageLoader) -> Sequences:
    return as_sequences(vision_batch(loader, 1), loader)


def load(vision_dir: Path, loader: ImageLoader, *, adapter_dir: Path | None = None, **changes: Any) -> Policy:
    return load_policy(vision_dir, rl_job(**changes), adapter_dir=adapter_dir, images=loader, dropout=False)


def score(policy: Policy, sequences: Sequences, packing: Any = "packed", budget: int = 150) -> Tensor:
    """The log-probabilities of all trained tokens, in their order."""
    logp_T = torch.zeros(len(sequences.tokens))
    lengths = sequences.lengths(list(range(len(sequences))))
    for indices in plan_micro_batches(lengths, budget=budget, packing=packing):
        micro = collate(sequences, indices, packing=packing, images=policy.images)
        with torch.no_grad():
            logp_T[torch.from_numpy(micro.source_N)] = policy.logprobs(micro)[0]
    return logp_T


def train_once(policy: Policy, sequences: Sequences, lr: float = 1e-2) -> dict[str, Tensor]:
    """One step towards the trained tokens; the gradient of each parameter."""
    optimizer = Optimizer(policy.trainable_parameters(), policy.job)
    micro = collate(sequences, list(range(len(sequences))), packing="packed", images=policy.images)
    (-policy.logprobs(micro)[0].sum()).backward()
    gradients = {n: p.grad.clone() for n, p in policy.trainable_parameters().items() if p.grad is not None}
    optimizer.step(lr)
    return gradients


def test_packed_rows_padded_rows_and_single_sequences_have_the_same_logprobs(
    vision_dir: Path, loader: ImageLoader, sequences: Sequences
) -> None:
    policy = load(vision_dir, loader)
    packed = score(policy, sequences)
    assert torch.count_nonzero(packed) == int(sequences.weights.sum())
    torch.testing.assert_close(packed, score(policy, sequences, "padded"), atol=1e-5, rtol=0)
    torch.testing.assert_close(packed, score(policy, sequences, "padded", budget=1), atol=1e-5, rtol=0)


def test_logprobs_are_those_of_transformers_with_media_left_out(
    vision_dir: Path, loader: ImageLoader, sequences: Sequences
) -> None:
    found = score(load(vision_dir, loader), sequences)
    model: Any = Qwen3VLForConditionalGeneration.from_pretrained(vision_dir).eval()
    for i in range(len(sequences)):
        start, end = sequences.cu_seqlens[i : i + 2]
        ids_1L = torch.from_numpy(sequences.tokens[start:end].astype(np.int64))[None]
        patches = loader.patches(sequences.images[i], "cpu")
        shown = {} if patches is None else {"pixel_values": patches.pixels_PX, "image_grid_thw": patches.grid_I3}
        with torch.no_grad():
            logits_LV = model(
                input_ids=ids_1L, mm_token_type_ids=(ids_1L == loader.image_token).int(), use_cache=False, **shown
            ).logits[0]
        logits_LV[:, list(loader.banned)] = -torch.inf
        logp_L = logits_LV[:-1].log_softmax(-1).gather(1, ids_1L[0, 1:, None])[:, 0]
        trained = torch.from_numpy(sequences.weights[start + 1 : end]) > 0
        torch.testing.assert_close(found[start + 1 : end][trained], logp_L[trained], atol=1e-5, rtol=0)


def test_tokens_of_media_have_no_probability(vision_dir: Path, loader: ImageLoader) -> None:
    policy = load(vision_dir, loader)
    vocabulary = policy.model.config.text_config.vocab_size
    # One sequence for each token of the vocabulary, after the same two.
    tokens = np.stack([np.full(vocabulary, 7), np.full(vocabulary, 9), np.arange(vocabulary)], 1).astype(np.int32)
    for banned in ((), loader.banned):
        sequences = Sequences(
            tokens.reshape(-1),
            np.tile(np.array([0, 0, 1], np.float32), vocabulary),
            np.arange(0, 3 * vocabulary + 1, 3),
            banned=banned,
        )
        micro = collate(sequences, list(range(vocabulary)), packing="padded", images=loader)
        with torch.no_grad():
            logp_V, entropy_V = policy.logprobs(micro)
        assert float(logp_V.exp().sum()) == pytest.approx(1, abs=1e-5)
        assert float(entropy_V[0]) == pytest.approx(-float((logp_V.exp() * logp_V).nansum()), abs=1e-4)
        assert (logp_V == -torch.inf).nonzero().flatten().tolist() == sorted(banned)


def test_of_a_frozen_tower_the_projector_alone_is_trained(
    vision_dir: Path, loader: ImageLoader, sequences: Sequences, tmp_path: Path
) -> None:
    policy = load(vision_dir, loader)
    before = {n: t.clone() for n, t in policy.model.state_dict().items()}
    gradients = train_once(policy, sequences)
    policy.write_model(tmp_path / "model")
    after, _ = load_tensors(tmp_path / "model" / "model.safetensors")
    assert after.keys() == before.keys() - {"lm_head.weight"} == policy.model_names()
    changed = {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}
    tower = {n for n in after if n.startswith("model.visual.") and not n.startswith(PROJECTOR)}
    assert changed == after.keys() - tower == gradients.keys()
    again = load(tmp_path / "model", loader)
    torch.testing.assert_close(score(again, sequences), score(policy, sequences), atol=0, rtol=0)


def test_a_tower_that_is_not_frozen_is_trained(vision_dir: Path, loader: ImageLoader, sequences: Sequences) -> None:
    gradients = train_once(load(vision_dir, loader, freeze_vision_tower=False), sequences)
    assert float(gradients["model.visual.patch_embed.proj.weight"].abs().sum()) > 0


@pytest.mark.parametrize("mode", ["lora", "qlora"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_an_adapter_of_everything_adapts_language_and_projector_and_is_continued(
    mode: str, checkpointing: bool, vision_dir: Path, loader: ImageLoader, sequences: Sequences, tmp_path: Path
) -> None:
    base = vision_dir
    if mode == "qlora":
        base = tmp_path / "rounded"
        write_rounded_model(vision_dir, base)
    policy = load(base, loader, mode=mode, activation_checkpointing=checkpointing)
    adapted = {name.rpartition(".lora_")[0] for name in policy.trainable_parameters()}
    assert {name for name in adapted if "visual" in name} == {
        f"model.visual.{part}.linear_fc{k}" for part in ("merger", "deepstack_merger_list.0") for k in (1, 2)
    }
    assert len(adapted) == 4 + 2 * 7
    gradients = train_once(policy, sequences)
    reached = {n for n, g in gradients.items() if ".lora_B." in n and float(g.abs().sum()) > 0}
    assert reached == {n for n in policy.trainable_parameters() if ".lora_B." in n}
    policy.write_model(tmp_path / "adapter")
    again = load(base, loader, mode=mode, adapter_dir=tmp_path / "adapter")
    expected = score(policy, sequences)
    torch.testing.assert_close(score(again, sequences), expected, atol=1e-6, rtol=0)
    merged = load(base, loader, adapter_dir=tmp_path / "adapter")
    torch.testing.assert_close(score(merged, sequences), expected, atol=1e-4, rtol=0)


def test_activation_checkpointing_changes_no_gradient(
    vision_dir: Path, loader: ImageLoader, sequences: Sequences
) -> None:
    plain, saving = (
        train_once(load(vision_dir, loader, activation_checkpointing=on, freeze_vision_tower=False), sequences)
        for on in (False, True)
    )
    assert plain.keys() == saving.keys()
    for name, gradient in plain.items():
        torch.testing.assert_close(saving[name], gradient, atol=1e-5, rtol=1e-4)


def test_a_target_called_mm_projector_is_the_projector(vision_dir: Path, loader: ImageLoader) -> None:
    policy = load(vision_dir, loader, mode="lora", lora=LoraSettings(targets=["mm_projector", "q_proj"]))
    adapted = {name.rpartition(".lora_")[0] for name in policy.trainable_parameters()}
    assert len([name for name in adapted if name.startswith(PROJECTOR)]) == 4
    assert len([name for name in adapted if name.endswith("q_proj")]) == 2
    assert len(adapted) == 6


def test_text_alone_reaches_no_projector_and_is_packed_as_ever(
    vision_dir: Path, loader: ImageLoader, sequences: Sequences
) -> None:
    text = sequences.select([2, 5, 8])
    assert not any(text.images)
    policy = load(vision_dir, loader)
    gradients = train_once(policy, text)
    assert not any(name.startswith(PROJECTOR) for name in gradients)
    torch.testing.assert_close(score(policy, text), score(policy, text, "padded"), atol=1e-5, rtol=0)
