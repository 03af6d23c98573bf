"""A resume checkpoint proves itself, or is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from synth.trainer.errors import TrainingFailed
from synth.trainer.learner.checkpoint.checkpoint import load_checkpoint, write_checkpoint
from synth.trainer.learner.checkpoint.fingerprint import check_same_loss
from synth.trainer.learner.model.policy import load_policy
from synth.trainer.learner.rl import RlTrainer
from tests.unit.trainer.batches import random_batch
from tests.unit.trainer.jobs import OPEN_GATES, machine_in, rl_job


def trainer_for(model_dir: Path, **changes: Any) -> RlTrainer:
    machine, job = machine_in(changes), rl_job(**OPEN_GATES, **changes)
    return RlTrainer(load_policy(model_dir, job, machine, dropout=False), job)


@pytest.fixture
def folder(model_dir: Path, tmp_path: Path) -> Path:
    trainer = trainer_for(model_dir)
    trainer.step(random_batch(1))
    write_checkpoint(tmp_path / "checkpoint", trainer.state.snapshot())
    return tmp_path / "checkpoint"


def test_a_checkpoint_appears_whole(folder: Path) -> None:
    assert [f.name for f in folder.parent.iterdir()] == ["checkpoint"]
    found = load_checkpoint(folder)
    assert found.state.step == 1
    assert found.state.probe_loss is not None
    assert found.optimizer


def test_a_resumed_run_has_the_step_and_its_metrics(model_dir: Path, folder: Path) -> None:
    trainer = trainer_for(model_dir)
    resumed = trainer.state.resume(folder)
    assert trainer.state.step == 1
    assert resumed.loss_then == resumed.loss_now
    assert resumed.reports[1]["trained_tokens"] > 0


def test_a_checkpoint_keeps_the_metrics_of_every_step_since_the_one_before(model_dir: Path, tmp_path: Path) -> None:
    trainer = trainer_for(model_dir)
    for k in (1, 2, 3):
        last = trainer.step(random_batch(k, version=k - 1))
        if k != 2:
            write_checkpoint(tmp_path / f"checkpoint-{k}", trainer.state.snapshot())
    resumed = trainer_for(model_dir).state.resume(tmp_path / "checkpoint-3")
    assert list(resumed.reports) == [2, 3]
    assert resumed.reports[3] == last.values


def test_a_checkpoint_before_any_training_has_no_loss_to_prove(model_dir: Path, tmp_path: Path) -> None:
    trainer = trainer_for(model_dir)
    trainer.step(random_batch(1, zero=16))
    write_checkpoint(tmp_path / "checkpoint", trainer.state.snapshot())
    again = trainer_for(model_dir)
    assert again.state.resume(tmp_path / "checkpoint").loss_now is None
    assert again.state.step == 1


@pytest.mark.parametrize("name", ["resume/optimizer.safetensors", "resume/rng.json", "resume/manifest.json"])
def test_a_missing_file_is_named(model_dir: Path, folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(TrainingFailed, match=name) as caught:
        trainer_for(model_dir).state.resume(folder)
    assert caught.value.code == "bad_checkpoint"


def test_a_checkpoint_of_another_config_is_not_resumed(model_dir: Path, folder: Path) -> None:
    with pytest.raises(TrainingFailed, match="another config"):
        trainer_for(model_dir, lr=1e-4).state.resume(folder)


def test_a_checkpoint_is_resumed_under_other_machine_fields(model_dir: Path, folder: Path) -> None:
    resumed = trainer_for(model_dir, threads=2, deterministic=False).state.resume(folder)
    assert resumed.loss_now == pytest.approx(resumed.loss_then, abs=1e-3)


def test_weights_that_do_not_reproduce_the_loss_stop_the_resume(model_dir: Path, folder: Path) -> None:
    """The bytes of the checkpoint are right and the code is wrong: only the loss shows it."""
    trainer = trainer_for(model_dir)
    scale = trainer.policy.model.model.rotary_emb
    scale.inv_freq.mul_(1.01)
    with pytest.raises(TrainingFailed, match="same machine type") as caught:
        trainer.state.resume(folder)
    assert caught.value.code == "resume_mismatch"


def test_another_fingerprint_may_differ_within_its_tolerance(folder: Path) -> None:
    state = load_checkpoint(folder).state
    saved, loss = state.fingerprint, state.probe_loss
    assert loss is not None
    other = msgspec.structs.replace(saved, instruction_set="x86_64-NONE")
    check_same_loss(loss, loss + 5e-4, saved=saved, here=other, step=1)
    with pytest.raises(TrainingFailed, match="NONE now"):
        check_same_loss(loss, loss + 2e-3, saved=saved, here=other, step=1)
    with pytest.raises(TrainingFailed):
        check_same_loss(loss, loss + 1e-7, saved=saved, here=saved, step=1)


def test_a_checkpoint_of_another_precision_may_differ_by_that_of_the_coarser(folder: Path) -> None:
    state = load_checkpoint(folder).state
    here, loss = state.fingerprint, state.probe_loss
    assert loss is not None
    saved = msgspec.structs.replace(here, dtype="bf16")
    check_same_loss(loss, loss + 1e-2, saved=saved, here=here, step=1)
    with pytest.raises(TrainingFailed, match="bf16 then, fp32 now"):
        check_same_loss(loss, loss + 3e-2, saved=saved, here=here, step=1)


def test_a_save_that_died_half_way_leaves_no_checkpoint(model_dir: Path, folder: Path) -> None:
    half = folder.with_name(".checkpoint-2.partial")
    shutil.copytree(folder, half)
    (half / "resume" / "manifest.json").unlink()
    with pytest.raises(TrainingFailed, match=r"manifest\.json"):
        trainer_for(model_dir).state.resume(half)
