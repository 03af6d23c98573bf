"""The arithmetic of a job's memory for models that see and for MoE, against the bytes of the trainer's tensors."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMoeConfig,
    Qwen3VLMoeForConditionalGeneration,
)

from synth.images.prompt_image import expand_image_tokens
from synth.jobs.memory import training_memory
from synth.jobs.parse.toml import read_toml
from synth.jobs.resolve.job import Overrides, resolve_job
from synth.local.tiny_models.qwen3_vl import make_tiny_qwen3_vl
from synth.methods.rl import RlJob
from synth.models import Registry
from synth.models.config_shape import read_shape
from synth.models.shape import ModelShape
from synth.trainer.learner.data.images import ImageLoader
from synth.trainer.learner.data.packing import MicroBatch, Sequences, collate
from synth.trainer.learner.model import logprobs
from synth.trainer.learner.model.policy import Policy, load_policy
from synth.trainer.learner.optim.adamw import Optimizer
from synth.trainer.owner.learner_config import machine_of
from synth.trainer.settings import TrainerSettings
from synth.weights.nf4 import write_rounded_model
from tests.unit.trainer.learner.test_memory import saved_bytes
from tests.unit.trainer.vision import noise, store_image

JOB = """\
[services]
task_url = "http://127.0.0.1:8001"
[model]
base = "{base}"
trainer_mode = "{mode}"
{model}
[training]
iterations_per_epoch = 1
micro_batch_tokens = 128
activation_checkpointing = {checkpointing}
"""
ADAPTER = """\
[training.lora]
r = 4
alpha = 8
{targets}
"""
TOKENS = 128
#: No two sizes are equal, so that no tensor is taken for another.
_TEXT: dict[str, Any] = {
    "vocab_size": 419,
    "hidden_size": 96,
    "intermediate_size": 224,
    "num_hidden_layers": 6,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "tie_word_embeddings": True,
}
_EXPERTS: dict[str, Any] = {"moe_intermediate_size": 56, "num_experts": 7, "num_experts_per_tok": 3}
_TOWER: dict[str, Any] = {
    "depth": 5,
    "hidden_size": 80,
    "num_heads": 4,
    "intermediate_size": 176,
    "out_hidden_size": 96,
    "patch_size": 16,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
    "num_position_embeddings": 64,
    "deepstack_visual_indexes": [1, 3],
}
_ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [6, 3, 3], "mrope_interleaved": True}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a dense model that sees, an MoE that sees, and an MoE that reads."""
    folder = tmp_path_factory.mktemp("models")
    source = make_tiny_qwen3_vl(folder / "source").path
    made: Any = json.loads((source / "config.json").read_bytes())
    ids = {name: made[name] for name in made if name.endswith("_token_id")}
    text = _TEXT | {"rope_parameters": _ROPE}
    torch.manual_seed(0)
    for name, model in (
        ("sees", Qwen3VLForConditionalGeneration(Qwen3VLConfig(text_config=text, vision_config=_TOWER, **ids))),
        (
            "sees-experts",
            Qwen3VLMoeForConditionalGeneration(
                Qwen3VLMoeConfig(text_config=text | _EXPERTS, vision_config=_TOWER, **ids)
            ),
        ),
        ("experts", Qwen3MoeForCausalLM(Qwen3MoeConfig(**_TEXT, **_EXPERTS))),
    ):
        shutil.copytree(source, folder / name, ignore=lambda *_: ["model.safetensors", "config.json"])
        model.save_pretrained(folder / name)
    return folder


@dataclass
class Case:
    """A job, the policy that it trains, and a forward of it; all tokens but sixteen are of images, if it sees any."""

    job: RlJob
    shape: ModelShape
    policy: Policy
    micro: MicroBatch


def case(
    models: Path,
    base: str,
    mode: str,
    dtype: Any = "bf16",
    *,
    model: str = "",
    targets: str = "",
    checkpointing: bool = False,
) -> Case:
    text = JOB.format(base=base, mode=mode, model=model, checkpointing=str(checkpointing).lower())
    text += ADAPTER.format(targets=targets) if mode != "full" else ""
    job = resolve_job(read_toml(text, name="job.toml"), overrides=Overrides(), registry=Registry(models)).job
    assert isinstance(job, RlJob)
    shape = read_shape(models / base)
    assert shape is not None
    folder = models / base
    if mode == "qlora":
        folder = models / f".{base}-rounded"
        write_rounded_model(models / base, folder)
    loader = ImageLoader.load(folder, models / ".images") if shape.vision is not None else None
    machine = machine_of(job, TrainerSettings(device="cpu", dtype=dtype))
    policy = load_policy(folder, job, machine, images=loader, dropout=False)
    shown = ()
    ids = np.arange(TOKENS, dtype=np.int32)
    if loader is not None:
        image = loader.describe(store_image(loader.folder, noise(5, (128, 128))))
        shown = (image,) * (TOKENS // image.tokens - 1)
        images = expand_image_tokens([loader.image_token] * len(shown), shown, loader.image_token)
        ids = np.array([*images, *range(7, 7 + TOKENS - len(images))], np.int32)
    weights = np.zeros(TOKENS, np.float32)
    weights[-16:] = 1
    cu_seqlens = np.array([0, TOKENS])
    sequences = Sequences(ids, weights, cu_seqlens, images=(shown,) if shown else ())
    return Case(job, shape, policy, collate(sequences, [0], packing="packed", images=loader, device=policy.device))


FROZEN, WHOLE = "", "freeze_vision_tower = false"
TOWER = 'target_modules = ["qkv", "q_proj", "mm_projector"]'


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("base", "mode", "model", "targets"),
    [
        ("sees", "full", FROZEN, ""),
        ("sees", "full", WHOLE, ""),
        ("sees", "lora", "", ""),
        ("sees", "lora", "", TOWER),
        ("sees", "lora", "", 'target_modules = ["all-linear"]'),
        ("sees-experts", "full", FROZEN, ""),
        ("sees-experts", "lora", "", ""),
        ("experts", "full", "", ""),
        ("experts", "lora", "", ""),
    ],
)
def test_weights_gradients_and_moments_are_the_bytes_of_the_tensors(
    models: Path, base: str, mode: str, model: str, targets: str, dtype: Any
) -> None:
    c = case(models, base, mode, dtype, model=model, targets=targets)
    computed = training_memory(c.job, c.shape, dtype=dtype)
    optimizer = Optimizer(c.policy.trainable_parameters(), c.policy.job)
    logp_N, _ = c.policy.logprobs(c.micro)
    logp_N.sum().backward()
    gradients = [p.grad for p in c.policy.model.parameters() if p.grad is not None]
    assert computed.weights == sum(p.nbytes for p in c.policy.model.parameters())
    assert computed.gradients == sum(gradient.nbytes for gradient in gradients)
    optimizer.step(1e-3)
    moments = {name: t for name, t in optimizer.gathered() if not name.endswith("/step")}
    assert computed.moments == sum(t.nbytes for t in moments.values())


@pytest.mark.parametrize("base", ["sees", "sees-experts"])
def test_four_bits_are_of_the_towers_linear_layers_too_and_of_no_expert(models: Path, base: str) -> None:
    c = case(models, base, "qlora")
    computed = training_memory(c.job, c.shape)
    held = [*c.policy.model.parameters(), *c.policy.model.buffers()]
    scales = c.shape.quantized_parameters / 64
    assert computed.weights == pytest.approx(sum(t.nbytes for t in held) + scales, rel=0.02)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("base", "mode", "model", "targets"),
    [
        ("sees", "full", FROZEN, ""),
        ("sees", "full", WHOLE, ""),
        ("sees", "lora", "", ""),
        ("sees-experts", "full", FROZEN, ""),
        ("sees-experts", "lora", "", ""),
        ("experts", "full", "", ""),
        ("experts", "lora", "", ""),
    ],
)
def test_activations_and_copies_are_what_a_forward_saves(
    models: Path, base: str, mode: str, model: str, targets: str, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", 419 * 4)  # in chunks, as on a GPU
    c = case(models, base, mode, dtype, model=model, targets=targets)
    computed = training_memory(c.job, c.shape, dtype=dtype)
    activations, copies = saved_bytes(c.policy, c.micro)
    images = computed.image_activations * (TOKENS - 16) // TOKENS  # those that this forward shows
    # What needs no gradient of its input has less to save: below an adapter, the first layer and the projector's.
    assert activations <= computed.activations + images <= 1.12 * activations
    assert copies <= computed.casts <= 1.15 * copies


def test_checkpointing_keeps_the_inputs_of_the_towers_blocks(models: Path) -> None:
    plain, saving = (case(models, "sees", "full", model=WHOLE, checkpointing=on) for on in (False, True))
    without, computed = (training_memory(c.job, c.shape).image_activations for c in (plain, saving))
    inputs: set[int] = set()

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tuple(tensor.shape) == (4 * (TOKENS - 16), _TOWER["hidden_size"]):
            inputs.add(tensor.data_ptr())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        logp_N, _ = saving.policy.logprobs(saving.micro)
    # The input of each block, and what the last merger reads.
    assert len(inputs) == _TOWER["depth"] + 1, logp_N
    assert computed < without / 2


def test_a_frozen_tower_leaves_what_its_projector_reads(models: Path) -> None:
    plain, saving = (case(models, "sees", "full", model=FROZEN, checkpointing=on) for on in (False, True))
    assert len({training_memory(c.job, c.shape).image_activations for c in (plain, saving)}) == 1
    trained: list[bool] = []
    for c in (plain, saving):
        for block in c.policy.model.model.visual.blocks:
            block.register_forward_hook(lambda _module, _given, out: trained.append(out.requires_grad))
        c.policy.logprobs(c.micro)
    assert trained == [False] * 2 * _TOWER["depth"]
