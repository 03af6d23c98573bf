"""One type of each kind of layer: trainer, embedded engine and transformers compute the same, over two updates."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from synth.weights.lora_merge import write_merged_model
from synth.weights.policy_file import read_policy
from tests.service.families.model_types import save_type
from tests.service.families.test_families import (
    TOLERANCE,
    by_library,
    by_policy,
    largest_difference,
    sampled,
    serving,
    trained,
    untrained,
)
from tests.unit.trainer.batches import random_batch, scored_by

#: Caps of logits and of scores, a scale, a head with a bias, other shapes of values than of keys, of each layer its
#: own, shared keys and values.
_REPRESENTATIVES = ("gemma2", "cohere2", "granite", "phi", "deepseek_v3", "mimo_v2_flash", "gemma3n_text")


@pytest.fixture(scope="module", params=_REPRESENTATIVES)
def model_type(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def folder(model_type: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("type") / "model"
    save_type(path, model_type)
    return path


async def test_trainer_engine_and_library_agree_over_two_updates(folder: Path, tmp_path: Path):
    engine = await serving(folder)
    trainer = untrained(folder)
    before = await sampled(engine)
    assert largest_difference(before, by_library(folder)) <= TOLERANCE
    assert largest_difference(before, by_policy(trainer.policy)) <= TOLERANCE
    for version in (1, 2):
        trainer.step(scored_by(trainer.policy, random_batch(version)))
        file = tmp_path / f"v{version}.safetensors"
        trainer.policy.write_serving_weights(file, version=version)
        proof = await engine.update_weights(file, version)
        assert (proof.matched, proof.tensors) == (len(read_policy(file).digests),) * 2
        after = await sampled(engine)
        assert largest_difference(after, by_policy(trainer.policy)) <= TOLERANCE
    await engine.close()
    trainer.policy.write_model(tmp_path / "model")
    assert largest_difference(after, by_library(tmp_path / "model")) <= TOLERANCE
    assert largest_difference(after, by_library(folder)) > TOLERANCE


def test_a_resumed_policy_computes_the_same_bits(folder: Path):
    trainer, again = trained(folder), untrained(folder)
    again.policy.load_trainable_state_dict(trainer.policy.trainable_state_dict())
    ids = list(range(5, 45))
    assert torch.equal(by_policy(again.policy)(ids), by_policy(trainer.policy)(ids))


def test_an_adapter_trains_and_is_merged(folder: Path, tmp_path: Path):
    policy = trained(folder, mode="lora").policy
    policy.write_model(tmp_path / "adapter")
    write_merged_model(folder, tmp_path / "adapter", tmp_path / "merged")
    ids = list(range(5, 45))
    merged = by_library(tmp_path / "merged")(ids)
    torch.testing.assert_close(merged, by_policy(policy)(ids), rtol=0, atol=TOLERANCE)
