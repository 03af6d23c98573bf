"""The frozen reference model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from synth.trainer.errors import TrainingFailed
from synth.trainer.learner.checkpoint.checkpoint import write_checkpoint
from synth.trainer.learner.data.packing import Sequences, collate
from synth.trainer.learner.model.policy import load_policy
from synth.trainer.learner.model.reference import FrozenCopyReference, SharedBaseReference, load_reference
from synth.trainer.learner.rl import RlTrainer
from synth.weights.nf4 import write_rounded_model
from synth.weights.policy_file import read_policy
from tests.unit.trainer.batches import at_iteration, random_batch
from tests.unit.trainer.jobs import OPEN_GATES, machine_in, rl_job


def trainer_for(model_dir: Path, *, adapter_dir: Path | None = None, **changes: Any) -> RlTrainer:
    machine = machine_in(changes)
    job = rl_job(**{"kl_beta": 0.1, "reference": "shared", **OPEN_GATES, **changes})
    torch.manual_seed(job.seed)
    policy = load_policy(model_dir, job, machine, adapter_dir=adapter_dir, dropout=False)
    return RlTrainer(policy, job, reference=load_reference(policy, job, adapter_dir=adapter_dir))


def trained(trainer: RlTrainer, steps: range) -> list[dict[str, float]]:
    return [trainer.step(random_batch(k)).values for k in steps]


@pytest.fixture(scope="module")
def rounded(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rounded") / "nf4"
    write_rounded_model(model_dir, folder)
    return folder


@pytest.fixture(scope="module")
def adapter(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter that jobs start from."""
    trainer = trainer_for(model_dir, mode="lora", kl_beta=0.0, reference="none")
    trained(trainer, range(1, 3))
    folder = tmp_path_factory.mktemp("adapters") / "adapter"
    trainer.policy.write_model(folder)
    return folder


@pytest.mark.parametrize(
    ("mode", "placement", "kind"),
    [
        ("full", "shared", FrozenCopyReference),
        ("full", "dedicated", FrozenCopyReference),
        ("lora", "shared", SharedBaseReference),
        ("lora", "dedicated", FrozenCopyReference),
        ("qlora", "shared", SharedBaseReference),
        ("qlora", "dedicated", FrozenCopyReference),
    ],
)
@pytest.mark.parametrize("continued", [False, True])
def test_the_reference_is_the_source_and_stays_it(
    model_dir: Path, rounded: Path, adapter: Path, mode: str, placement: str, kind: type, continued: bool
) -> None:
    source = adapter if continued else None
    job = rl_job(mode=mode, reference=placement, kl_beta=0.1, minibatches=1, **OPEN_GATES)
    policy = load_policy(rounded if mode == "qlora" else model_dir, job, adapter_dir=source, dropout=False)
    reference = load_reference(policy, job, adapter_dir=source)
    assert reference is not None
    assert type(reference) is kind
    batch = random_batch(1)
    sequences = Sequences(batch.tokens, batch.loss_mask.astype("float32"), batch.cu_seqlens)
    micro = collate(sequences, [0, 1, 2], packing="padded")
    with torch.no_grad():
        before, _ = policy.logprobs(micro, temperature=0.7)
    first, second = trained(RlTrainer(policy, job, reference=reference), range(1, 3))
    assert first["ref_kl"] == 0
    assert second["ref_kl"] > 0
    assert torch.equal(next(reference.logprobs([micro], temperature=0.7)), before)
    assert not torch.equal(policy.logprobs(micro, temperature=0.7)[0], before)


def test_the_two_references_of_an_adapter_train_the_same_bytes(model_dir: Path, adapter: Path) -> None:
    for source in (None, adapter):
        ends = []
        for placement in ("shared", "dedicated"):
            # Activations are computed again in the backward, when the reference must be long gone.
            changes = {"mode": "lora", "reference": placement, "activation_checkpointing": True}
            trainer = trainer_for(model_dir, adapter_dir=source, **changes)
            trained(trainer, range(1, 3))
            ends.append(trainer.policy.trainable_state_dict())
        assert ends[0].keys() == ends[1].keys()
        assert all(torch.equal(ends[0][n], t) for n, t in ends[1].items())


def test_the_adapter_of_the_reference_is_not_written(model_dir: Path, adapter: Path, tmp_path: Path) -> None:
    trainer = trainer_for(model_dir, adapter_dir=adapter, mode="lora")
    trained(trainer, range(1, 2))
    alone = load_policy(model_dir, rl_job(mode="lora"), adapter_dir=adapter, dropout=False)
    assert trainer.policy.trainable_names() == alone.trainable_names()
    for name, policy in (("adapter", trainer.policy), ("alone", alone)):
        policy.write_serving_weights(tmp_path / f"{name}.weights", version=1)
    assert (
        read_policy(tmp_path / "adapter.weights").digests.keys()
        == read_policy(tmp_path / "alone.weights").digests.keys()
    )


def test_a_large_beta_holds_the_policy_near_its_reference(model_dir: Path) -> None:
    distances: list[float] = []
    for beta in (1e-9, 10):
        trainer = trainer_for(model_dir, kl_beta=beta, lr=3e-3, minibatches=2)
        values = [trainer.step(at_iteration(random_batch(1), k)).values for k in range(1, 11)]
        distances.append(values[-1]["ref_kl"])
    assert distances[1] < distances[0] / 20


@pytest.mark.parametrize("mode", ["full", "lora"])
def test_a_resumed_run_has_the_reference_of_the_job_and_not_of_its_checkpoint(
    model_dir: Path, tmp_path: Path, mode: str
) -> None:
    straight = trainer_for(model_dir, mode=mode)
    trained(straight, range(1, 3))
    write_checkpoint(tmp_path / "checkpoint", straight.state.snapshot())
    expected = trained(straight, range(3, 4))[0]
    resumed = trainer_for(model_dir, mode=mode)
    resumed.state.resume(tmp_path / "checkpoint")
    assert trained(resumed, range(3, 4))[0]["ref_kl"] == expected["ref_kl"] > 0
    ends = [t.policy.trainable_state_dict() for t in (straight, resumed)]
    assert all(torch.equal(ends[0][n], t) for n, t in ends[1].items())


def test_loading_a_reference_leaves_the_random_state_as_it_was(model_dir: Path) -> None:
    states = []
    for reference in ("none", "dedicated"):
        job = rl_job(mode="lora", reference=reference, kl_beta=0.1)
        torch.manual_seed(0)
        policy = load_policy(model_dir, job, dropout=False)
        load_reference(policy, job)
        states.append(torch.get_rng_state())
    assert torch.equal(states[0], states[1])


def test_a_copy_has_the_attention_of_the_policy_and_not_of_the_device_it_was_loaded_on(model_dir: Path) -> None:
    job = rl_job(reference="dedicated", kl_beta=0.1)
    policy = load_policy(model_dir, job, dropout=False)
    policy.model.set_attn_implementation("eager")
    reference = load_reference(policy, job)
    assert isinstance(reference, FrozenCopyReference)
    assert reference.policy.model.config._attn_implementation == "eager"


def test_a_device_that_is_not_there_is_named(model_dir: Path) -> None:
    with pytest.raises(TrainingFailed, match=r"'meat:1'.*SYNTH_REFERENCE_DEVICE") as caught:
        trainer_for(model_dir, reference="dedicated", reference_device="meat:1")
    assert caught.value.code == "bad_recipe"


@pytest.mark.parametrize("wrong", [{"reference": "none"}, {"kl_beta": 0.0}])
def test_a_kl_term_without_a_reference_or_the_reverse_is_refused(model_dir: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(TrainingFailed, match="kl_beta") as caught:
        trainer_for(model_dir, **wrong)
    assert caught.value.code == "bad_recipe"
