"""The arithmetic of a job's memory, against the bytes that the trainer's tensors have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from synth.jobs.memory import LOGITS_CHUNK, TrainingMemory, training_memory
from synth.jobs.parse.toml import read_toml
from synth.jobs.resolve.job import Overrides, resolve_job
from synth.methods.rl import RlJob
from synth.models import Registry
from synth.models.config_shape import read_shape
from synth.models.shape import ModelShape
from synth.trainer.learner.data.packing import MicroBatch, Sequences, collate
from synth.trainer.learner.model import logprobs
from synth.trainer.learner.model.policy import Policy, load_policy
from synth.trainer.learner.optim.adamw import Optimizer
from synth.trainer.owner.learner_config import machine_of
from synth.trainer.settings import TrainerSettings

JOB = """\
[services]
task_url = "http://127.0.0.1:8001"
[model]
base = "small"
trainer_mode = "{mode}"
[training]
iterations_per_epoch = 1
micro_batch_tokens = 128
activation_checkpointing = {checkpointing}
[training.lora]
r = 4
alpha = 8
"""
TOKENS = 128


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of which no two sizes are equal, so that no tensor is taken for another."""
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=331,
        hidden_size=96,
        intermediate_size=224,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=20,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder / "small")
    return folder


def shape_of(models: Path) -> ModelShape:
    shape = read_shape(models / "small")
    assert shape is not None
    return shape


def job_of(models: Path, mode: str, checkpointing: bool = False) -> RlJob:
    text = JOB.format(mode=mode, checkpointing=str(checkpointing).lower())
    if mode == "full":
        text = text.partition("[training.lora]")[0]
    job = resolve_job(read_toml(text, name="job.toml"), overrides=Overrides(), registry=Registry(models)).job
    assert isinstance(job, RlJob)
    return job


def trained(models: Path, job: RlJob, dtype: Any) -> Policy:
    machine = machine_of(job, TrainerSettings(device="cpu", dtype=dtype))
    return load_policy(models / "small", job, machine, dropout=False)


def micro_batch(policy: Policy) -> MicroBatch:
    tokens = np.arange(TOKENS, dtype=np.int32)
    sequences = Sequences(tokens, np.ones(TOKENS, np.float32), np.array([0, 50, TOKENS]))
    return collate(sequences, [0, 1], packing="packed", device=policy.device)


def saved_bytes(policy: Policy, micro: MicroBatch) -> tuple[int, int]:
    """Bytes that a forward saves for its backward, each storage once: activations, and copies of weights."""
    own = {t.untyped_storage().data_ptr() for t in (*policy.model.parameters(), *policy.model.buffers())}
    sizes = {tuple(p.shape) for p in policy.model.parameters() if p.ndim == 2}
    copies: dict[int, tuple[int, Tensor]] = {}
    found: dict[int, tuple[int, Tensor]] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            weight = tensor.ndim == 2 and {tuple(tensor.shape), tuple(tensor.T.shape)} & sizes
            # Kept, so that no other tensor gets its address.
            (copies if weight else found)[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        policy.logprobs(micro)
    return sum(size for size, _ in found.values()), sum(size for size, _ in copies.values())


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("mode", ["full", "lora"])
def test_weights_gradients_and_moments_are_the_bytes_of_the_tensors(models: Path, mode: str, dtype: Any) -> None:
    job = job_of(models, mode)
    policy = trained(models, job, dtype)
    computed = training_memory(job, shape_of(models), dtype=dtype)
    optimizer = Optimizer(policy.trainable_parameters(), job)
    logp_N, _ = policy.logprobs(micro_batch(policy))
    logp_N.sum().backward()
    gradients = [p.grad for p in policy.model.parameters() if p.grad is not None]
    assert computed.weights == sum(p.nbytes for p in policy.model.parameters())
    assert computed.gradients == sum(gradient.nbytes for gradient in gradients)
    optimizer.step(1e-3)
    moments = {name: t for name, t in optimizer.gathered() if not name.endswith("/step")}
    assert computed.moments == sum(t.nbytes for t in moments.values())


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("mode", ["full", "lora"])
def test_activations_and_copies_are_what_a_forward_saves(
    models: Path, mode: str, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", 331 * 16)  # in chunks, as on a GPU
    job = job_of(models, mode)
    policy = trained(models, job, dtype)
    computed = training_memory(job, shape_of(models), dtype=dtype)
    activations, copies = saved_bytes(policy, micro_batch(policy))
    # Below an adapter, the first layer has less to save: nothing before it is trained.
    assert activations <= computed.activations <= 1.1 * activations
    assert copies <= computed.casts <= 1.1 * copies


@pytest.mark.parametrize("mode", ["full", "lora"])
def test_checkpointing_keeps_the_input_of_each_layer(models: Path, mode: str) -> None:
    job, shape = job_of(models, mode, checkpointing=True), shape_of(models)
    policy = trained(models, job, "bf16")
    assert policy.job.activation_checkpointing
    with_it = training_memory(job, shape)
    without = training_memory(job_of(models, mode), shape)
    inputs = [0]

    def pack(tensor: Tensor) -> Tensor:
        if tuple(tensor.shape) == (1, TOKENS, shape.hidden):
            inputs[0] += tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        policy.logprobs(micro_batch(policy))
    kept = with_it.activations - (without.activations - with_it.activations) / (shape.layers - 1)
    assert inputs[0] < with_it.activations < without.activations / 2
    assert kept > 0


def test_a_reference_is_a_copy_where_it_cannot_share_the_base(models: Path) -> None:
    shape = shape_of(models)

    def reference(mode: str, placement: str) -> int:
        text = JOB.format(mode=mode, checkpointing="false").replace("[training]", "[training]\nkl_beta = 0.1")
        if mode == "full":
            text = text.partition("[training.lora]")[0]
        text += f'[reference]\nplacement = "{placement}"\n'
        job = resolve_job(read_toml(text, name="job.toml"), overrides=Overrides(), registry=Registry(models)).job
        assert isinstance(job, RlJob)
        return training_memory(job, shape).reference

    assert reference("full", "shared") == 4 * shape.parameters
    assert reference("lora", "shared") == 0
    assert reference("lora", "dedicated") == 2 * shape.parameters


def test_the_logits_are_those_of_a_chunk_of_the_trainer(models: Path) -> None:
    assert LOGITS_CHUNK == {"cpu": logprobs.CHUNK_ELEMENTS, "cuda": logprobs.GPU_CHUNK_ELEMENTS}
    computed = training_memory(job_of(models, "lora"), shape_of(models))
    assert computed.logits == 3 * 4 * TOKENS * 331
    assert isinstance(computed, TrainingMemory)
    assert computed.total == sum(
        (
            computed.weights,
            computed.casts,
            computed.gradients,
            computed.moments,
            computed.reference,
            computed.activations,
            computed.logits,
        )
    )
