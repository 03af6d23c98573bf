"""The arithmetic of a job's memory, against every family's own tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from synth.jobs.memory import training_memory
from synth.models.config_shape import read_shape
from synth.trainer.learner.data.packing import MicroBatch, Sequences, collate
from synth.trainer.learner.model import logprobs
from synth.trainer.learner.model.policy import Policy
from synth.trainer.learner.optim.adamw import Optimizer
from tests.service.families.architectures import ARCHITECTURES, Architecture, save_architecture
from tests.unit.trainer.learner.test_memory import TOKENS, job_of, saved_bytes, trained

#: No two of them are equal, so that no tensor is taken for another; those families have no heads of another width.
_SIZES = {"vocab_size": 331, "num_hidden_layers": 6, "num_attention_heads": 6, "num_key_value_heads": 2}
_WIDE = {"hidden_size": 120, "head_dim": 20}
_OTHER_WIDTH = ("Qwen3", "Gemma3", "GptOss")


@pytest.fixture(scope="module", params=ARCHITECTURES, ids=lambda a: a.name)
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of a family, "small"."""
    architecture: Architecture = request.param
    sizes: dict[str, Any] = {**_SIZES, **_WIDE, "intermediate_size": 32 if architecture.experts else 224}
    if architecture.model.startswith(_OTHER_WIDTH):
        sizes["hidden_size"] = 96
    if "layer_types" in architecture.sizes:
        sizes["layer_types"] = architecture.sizes["layer_types"] * 3
    if architecture.model.startswith(("Phi3", "Olmo3", "Qwen2")):
        del sizes["head_dim"]
    folder = tmp_path_factory.mktemp("models")
    save_architecture(folder / "small", architecture, **sizes)
    return folder


def one_sequence(policy: Policy) -> MicroBatch:
    tokens = np.arange(TOKENS, dtype=np.int32)
    sequences = Sequences(tokens, np.ones(TOKENS, np.float32), np.array([0, TOKENS]))
    return collate(sequences, [0], packing="packed", device=policy.device)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("mode", ["full", "lora"])
def test_what_a_family_holds_is_what_its_forward_saves(
    models: Path, mode: str, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", 331 * 16)  # in chunks, as on a GPU
    job, shape = job_of(models, mode), read_shape(models / "small")
    assert shape is not None
    policy = trained(models, job, dtype)
    computed = training_memory(job, shape, dtype=dtype, longest=TOKENS)
    activations, copies = saved_bytes(policy, one_sequence(policy))
    # Below an adapter the first of six layers has less to save.
    assert 0.95 * activations <= computed.activations <= 1.15 * activations
    assert copies <= computed.casts <= 1.1 * copies
    assert computed.weights == sum(p.nbytes for p in policy.model.parameters())


@pytest.mark.parametrize("mode", ["full", "lora"])
def test_moments_in_8_bits_have_the_bytes_that_are_computed(models: Path, mode: str) -> None:
    import msgspec

    job, shape = msgspec.structs.replace(job_of(models, mode), optimizer="adamw_8bit"), read_shape(models / "small")
    assert shape is not None
    policy = trained(models, job, "fp32")
    optimizer = Optimizer(policy.trainable_parameters(), job)
    for parameter in policy.trainable_parameters().values():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step(1e-3)
    held = sum(t.nbytes for name, t in optimizer.gathered() if not name.endswith("/step"))
    # A matrix of which a file has another side first has another number of blocks: gpt-oss' experts.
    assert training_memory(job, shape).moments == pytest.approx(held, rel=2e-3)
    offloaded = training_memory(msgspec.structs.replace(job, optimizer_offload=True), shape)
    assert (offloaded.moments, offloaded.offloaded) == (0, training_memory(job, shape).moments)
