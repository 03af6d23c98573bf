"""The training process: its protocol, and what survives `kill -9`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from synth.methods.base import LoraSettings
from synth.trainer.learner.data.images import ImageLoader
from synth.trainer.protocol import IMAGES_FOLDER
from synth.weights.policy_file import read_policy
from tests.service.trainer.learner_process import LearnerProcess, start_message
from tests.unit.trainer.batches import random_batch
from tests.unit.trainer.jobs import OPEN_GATES, rl_job, sft_job
from tests.unit.trainer.sft_rows import addition_rows, data_file, write_rows
from tests.unit.trainer.vision import square_rows, vision_batch

STEPS, CUT = 20, 10
# Files that have the same bytes after an uninterrupted run and after a resumed one; the manifest holds wall times.
STATE_FILES = ("resume/optimizer.safetensors", "resume/probe.safetensors", "resume/rng.json")


@pytest.fixture(scope="session")
def batch_files(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    folder = tmp_path_factory.mktemp("batches")
    files = {k: folder / f"{k}.safetensors" for k in range(1, STEPS + 1)}
    for k, path in files.items():
        # Iteration 7 has nothing to learn from; from 3 on every batch is one version late.
        path.write_bytes(random_batch(k, version=max(0, k - 2), zero=16 if k == 7 else 2).to_bytes())
    return files


def drive_rl(child: LearnerProcess, batch_files: dict[int, Path], steps: range) -> list[dict[str, Any]]:
    """Train on these batches, while the checkpoints of the steps before are written."""
    events = []
    for k in steps:
        child.send(op="step", iteration=k, batch=str(batch_files[k]))
        events.append(child.recv())
        assert events[-1].get("event") == "step", events[-1]
    return events


def assert_same_state(one: str, other: str) -> None:
    weights = "adapter_model.safetensors" if (Path(one) / "adapter_config.json").exists() else "model.safetensors"
    for name in (weights, *STATE_FILES):
        assert (Path(one) / name).read_bytes() == (Path(other) / name).read_bytes(), name


# A run with a reference model, which a resume loads from the job's source and not from the checkpoint.
KL = {"loss": "dppo", "clip_low": 0.2, "clip_high": 0.2, "reference": "dedicated", "kl_beta": 0.1}


@pytest.mark.parametrize(
    ("mode", "more"), [pytest.param("full", KL, id="full"), pytest.param("lora", {}, id="lora", marks=pytest.mark.long)]
)
def test_rl_killed_and_resumed_is_rl_straight_through_to_the_byte(
    model_dir: Path, batch_files: dict[int, Path], tmp_path: Path, mode: str, more: dict[str, Any]
) -> None:
    job = rl_job(mode=mode, packing="padded", minibatches=2, **more, **OPEN_GATES)
    with LearnerProcess() as child:
        child.send(**start_message(tmp_path / "straight", model_dir, job))
        ready = child.recv()
        assert (ready["event"], ready["step"], ready["total"]) == ("ready", 0, STEPS)
        straight = drive_rl(child, batch_files, range(1, STEPS + 1))
        child.send(op="finish")
        done = child.recv()
        saved = child.checkpoints
        assert (done["event"], done["kind"], done["step"]) == ("done", mode, STEPS)
        assert child.process.wait(30) == 0
    with LearnerProcess() as child:
        child.send(**start_message(tmp_path / "first", model_dir, job))
        child.recv()
        half = drive_rl(child, batch_files, range(1, CUT + 1))
        resume_dir = child.checkpoint(CUT)
        child.send(op="step", iteration=CUT + 1, batch=str(batch_files[CUT + 1]))
        child.kill()
    with LearnerProcess() as child:
        child.send(**start_message(tmp_path / "second", model_dir, job, resume_dir=resume_dir))
        ready = child.recv()
        assert ready["step"] == CUT
        assert ready["loss_then"] == ready["loss_now"] is not None
        assert ready["same_fingerprint"]
        assert ready["reports"] == {str(CUT): half[-1]["values"]}
        rest = drive_rl(child, batch_files, range(CUT + 1, STEPS + 1))
        child.send(op="finish")
        assert child.recv()["event"] == "done"
        saved_again = child.checkpoints
    assert list(saved) == list(range(1, STEPS + 1))
    assert_same_state(saved[CUT], resume_dir)
    assert_same_state(saved[STEPS], saved_again[STEPS])
    assert Path(straight[-1]["weights"]).read_bytes() == Path(rest[-1]["weights"]).read_bytes()
    weights = "model.safetensors" if mode == "full" else "adapter_model.safetensors"
    models = [tmp_path / run / "model" / weights for run in ("straight", "second")]
    assert models[0].read_bytes() == models[1].read_bytes()
    assert straight[6]["values"]["skipped"] == 1
    served = read_policy(Path(rest[-1]["weights"]))
    assert (served.kind, served.version) == (mode, STEPS)
    assert len({e["weights"] for e in straight}) == STEPS


@pytest.mark.long
@pytest.mark.parametrize("mode", ["full", "lora"])
def test_sft_killed_and_resumed_is_sft_straight_through_to_the_byte(model_dir: Path, tmp_path: Path, mode: str) -> None:
    # Dropout is on, so the state of the generators has to be restored too.
    job = sft_job(
        steps=STEPS,
        mode=mode,
        lora=LoraSettings(r=4, dropout=0.1),
        schedule="cosine",
        validation_every=4,
        best_metric="validation_loss",
        checkpoint_every=1,
    )
    files: dict[str, Any] = {
        "dataset": data_file(write_rows(tmp_path / "train.jsonl", addition_rows(100))),
        "validation": data_file(write_rows(tmp_path / "validation.jsonl", addition_rows(16))),
    }

    def run(
        name: str, *, resume_dir: str | None = None, upto: int = STEPS
    ) -> tuple[list[dict[str, Any]], dict[int, str]]:
        with LearnerProcess() as child:
            child.send(**start_message(tmp_path / name, model_dir, job, resume_dir=resume_dir, **files))
            events = [child.recv()]
            while events[-1].get("event") in ("ready", "step") and events[-1]["step"] < upto:
                events.append(child.recv())
            if upto == STEPS:
                events.append(child.recv())
            child.checkpoint(upto)
            return events, child.checkpoints

    straight, saved = run("straight")
    _, half = run("first", upto=CUT)  # killed with a step after it under way
    rest, saved_again = run("second", resume_dir=half[CUT])
    assert [e["event"] for e in straight] == ["ready", *["step"] * STEPS, "done"]
    assert rest[0]["step"] == CUT
    assert rest[0]["loss_then"] == rest[0]["loss_now"]
    assert_same_state(saved[STEPS], saved_again[STEPS])
    assert straight[STEPS]["values"]["loss"] == rest[-2]["values"]["loss"]
    assert straight[-1]["best_step"] == rest[-1]["best_step"]
    weights = "model.safetensors" if mode == "full" else "adapter_model.safetensors"
    models = [tmp_path / name / "model" / weights for name in ("straight", "second")]
    assert models[0].read_bytes() == models[1].read_bytes()


def test_a_step_out_of_order_is_an_error_and_the_end(
    model_dir: Path, batch_files: dict[int, Path], tmp_path: Path
) -> None:
    with LearnerProcess() as child:
        child.send(**start_message(tmp_path / "w", model_dir, rl_job()))
        child.recv()
        child.send(op="step", iteration=2, batch=str(batch_files[2]))
        assert child.recv() == {
            "event": "error",
            "code": "out_of_order",
            "detail": "the batch is for step 2; 0 steps are done",
        }
        assert child.recv() == {}
        assert child.process.wait(10) == 1


def test_a_nan_is_reported_and_nothing_is_written(model_dir: Path, tmp_path: Path) -> None:
    batch = random_batch(1)
    batch.logprobs[batch.loss_mask] = float("nan")
    path = tmp_path / "batch"
    path.write_bytes(batch.to_bytes())
    with LearnerProcess() as child:
        child.send(**start_message(tmp_path / "w", model_dir, rl_job()))
        child.recv()
        child.send(op="step", iteration=1, batch=str(path))
        assert child.recv()["code"] == "nan_loss"
        assert child.process.wait(10) == 1
    assert list((tmp_path / "w").iterdir()) == []


def test_a_checkpoint_with_a_flipped_bit_is_not_resumed(
    model_dir: Path, batch_files: dict[int, Path], tmp_path: Path
) -> None:
    with LearnerProcess() as child:
        child.send(**start_message(tmp_path / "w", model_dir, rl_job(**OPEN_GATES)))
        child.recv()
        drive_rl(child, batch_files, range(1, 2))
        folder = Path(child.checkpoint(1))
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (folder / "model.safetensors").write_bytes(weights)
    with LearnerProcess() as child:
        again = start_message(tmp_path / "w2", model_dir, rl_job(**OPEN_GATES), resume_dir=str(folder))
        child.send(**again)
        error = child.recv()
        assert error["code"] == "bad_checkpoint"
        assert "model.safetensors" in error["detail"]


def test_it_shows_life_while_it_loads_and_dies_with_its_parent(model_dir: Path, tmp_path: Path) -> None:
    with LearnerProcess() as child:
        child.send(**start_message(tmp_path / "w", model_dir, rl_job()))
        assert child.recv(progress=True) == {"event": "progress", "stage": "load", "done": 0, "of": 1}
        assert child.recv()["event"] == "ready"
        assert child.close_stdin() == 3


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ({"op": "finish"}, "bad_message"),
        ({"op": "start", "job": {"kind": "rl"}}, "bad_message"),
        (
            {"op": "start", "job": {"kind": "rl"}, "machine": {}, "model_dir": "nowhere", "work_dir": "nowhere"},
            "bad_recipe",
        ),
    ],
)
def test_a_message_that_is_wrong_is_named(line: dict[str, Any], code: str) -> None:
    with LearnerProcess() as child:
        child.send(**line)
        assert child.recv()["code"] == code


@pytest.mark.parametrize("mode", ["full", pytest.param("lora", marks=pytest.mark.long)])
def test_sft_that_is_paused_saves_where_it_stands_and_goes_on_to_the_byte(
    model_dir: Path, tmp_path: Path, mode: str
) -> None:
    # So many that the end is far when a busy machine brings the word to pause late.
    steps = 4 * STEPS
    job = sft_job(steps=steps, mode=mode, lora=LoraSettings(r=4, dropout=0.1), checkpoint_every=1000)
    dataset = data_file(write_rows(tmp_path / "train.jsonl", addition_rows(100)))

    def start(name: str, child: LearnerProcess, resume_dir: str | None = None) -> dict[str, Any]:
        child.send(**start_message(tmp_path / name, model_dir, job, resume_dir=resume_dir, dataset=dataset))
        return child.recv()

    def to_the_end(child: LearnerProcess) -> list[dict[str, Any]]:
        events = [child.recv()]
        while events[-1]["event"] == "step":
            events.append(child.recv())
        return events

    with LearnerProcess() as child:
        start("straight", child)
        to_the_end(child)
        straight = child.checkpoints
    with LearnerProcess() as child:
        start("paused", child)
        child.recv()
        child.send(op="pause")
        paused = to_the_end(child)[-1]
        assert paused["event"] == "paused"
        assert 1 <= paused["step"] < steps
        assert child.process.wait(30) == 0
        saved = child.checkpoints[paused["step"]]
    with LearnerProcess() as child:
        ready = start("resumed", child, saved)
        assert ready["step"] == paused["step"]
        assert ready["loss_then"] == ready["loss_now"] is not None
        # The steps that were not announced, as no checkpoint covered them.
        assert list(ready["reports"]) == [str(k) for k in range(1, paused["step"] + 1)]
        to_the_end(child)
        rest = child.checkpoints
    assert_same_state(straight[steps], rest[steps])


def test_rl_that_is_paused_saves_the_steps_that_no_checkpoint_covers(
    model_dir: Path, batch_files: dict[int, Path], tmp_path: Path
) -> None:
    job = rl_job(checkpoint_every=2, **OPEN_GATES)
    with LearnerProcess() as child:
        child.send(**start_message(tmp_path / "w", model_dir, job))
        child.recv()
        drive_rl(child, batch_files, range(1, 4))
        child.send(op="pause")
        assert child.recv() == {"event": "paused", "step": 3}
        assert list(child.checkpoints) == [2, 3]
        covered = child.checkpoints[2]
    with LearnerProcess() as child:
        child.send(**start_message(tmp_path / "again", model_dir, job, resume_dir=covered))
        assert child.recv()["step"] == 2
        child.send(op="pause")
        assert child.recv() == {"event": "paused", "step": 2}
        assert child.checkpoints == {}
        assert child.process.wait(30) == 0


@pytest.mark.parametrize("mode", ["full", "lora"])
def test_a_checkpoint_is_a_model_and_the_last_one_is_the_model_that_is_published(
    model_dir: Path, batch_files: dict[int, Path], tmp_path: Path, mode: str
) -> None:
    with LearnerProcess() as child:
        child.send(**start_message(tmp_path / "w", model_dir, rl_job(mode=mode, **OPEN_GATES)))
        child.recv()
        drive_rl(child, batch_files, range(1, 2))
        checkpoint = Path(child.checkpoint(1))
        child.send(op="finish")
        model = Path(child.recv()["model"])
    published = {file.name: file.read_bytes() for file in model.iterdir()}
    assert {file.name: file.read_bytes() for file in checkpoint.iterdir() if file.is_file()} == published
    assert any(name.endswith("model.safetensors") for name in published)


def test_a_model_that_sees_is_trained_on_the_images_of_its_work_folder(vision_dir: Path, tmp_path: Path) -> None:
    work = tmp_path / "sft"
    dataset = write_rows(tmp_path / "d.jsonl", square_rows(work / IMAGES_FOLDER, 4))
    job = sft_job(steps=1, batch_size=4)
    with LearnerProcess() as child:
        child.send(**start_message(work, vision_dir, job, dataset=data_file(dataset)))
        assert child.recv()["event"] == "ready"
        stepped = child.recv()
        assert stepped["event"] == "step"
        assert stepped["values"]["images_trimmed"] == 0
        done = child.recv()
    assert (Path(done["model"]) / "preprocessor_config.json").exists()
    loader = ImageLoader.load(Path(done["model"]), tmp_path / "rl" / IMAGES_FOLDER)
    batch = tmp_path / "batch"
    batch.write_bytes(vision_batch(loader, 1).to_bytes())
    with LearnerProcess() as child:
        child.send(**start_message(tmp_path / "rl", Path(done["model"]), rl_job(**OPEN_GATES)))
        assert child.recv()["event"] == "ready"
        child.send(op="step", iteration=1, batch=str(batch))
        stepped = child.recv()
        assert stepped["event"] == "step", stepped
        assert stepped["values"]["trained_tokens"] > 0
        for file in loader.folder.iterdir():
            if file.is_file():
                file.unlink()
        batch.write_bytes(vision_batch(ImageLoader.load(vision_dir, tmp_path / "elsewhere"), 2).to_bytes())
        child.send(op="step", iteration=2, batch=str(batch))
        failed = child.recv()
    assert (failed["event"], failed["code"]) == ("error", "bad_image")
    assert "is not in" in failed["detail"]


@pytest.mark.long
def test_five_kills_while_a_checkpoint_is_written_cost_the_steps_that_none_covers_and_no_byte(
    model_dir: Path, batch_files: dict[int, Path], tmp_path: Path
) -> None:
    job = rl_job(minibatches=2, **OPEN_GATES)
    with LearnerProcess() as child:
        child.send(**start_message(tmp_path / "straight", model_dir, job))
        child.recv()
        drive_rl(child, batch_files, range(1, CUT + 1))
        straight = child.checkpoint(CUT)
    resume_dir: str | None = None
    for kill in range(1, 6):
        work = tmp_path / f"kill-{kill}"
        # A pipe is a file that is never whole: the write of this step's checkpoint is in the middle for as long as
        # nobody reads it.
        stuck = work / f".checkpoint-{2 * kill:06d}.partial" / "resume"
        stuck.mkdir(parents=True)
        os.mkfifo(stuck / ".optimizer.safetensors.partial")
        with LearnerProcess() as child:
            child.send(**start_message(work, model_dir, job, resume_dir=resume_dir))
            done = child.recv()["step"]
            assert done == max(0, 2 * kill - 3)
            # The next step is trained all the same, and its weights are there.
            drive_rl(child, batch_files, range(done + 1, 2 * kill + 1))
            assert (work / f"policy-{2 * kill:06d}.safetensors").exists()
            resume_dir = child.checkpoint(2 * kill - 1)
            child.kill()
        assert not (work / f"checkpoint-{2 * kill:06d}").exists()
    with LearnerProcess() as child:
        child.send(**start_message(tmp_path / "last", model_dir, job, resume_dir=resume_dir))
        assert child.recv()["step"] == CUT - 1
        drive_rl(child, batch_files, range(CUT, CUT + 1))
        assert_same_state(straight, child.checkpoint(CUT))


def test_a_checkpoint_that_cannot_be_written_ends_the_process_with_the_reason(
    model_dir: Path, batch_files: dict[int, Path], tmp_path: Path
) -> None:
    work = tmp_path / "w"
    (work / ".checkpoint-000001.partial").mkdir(parents=True)
    (work / ".checkpoint-000001.partial" / "resume").write_text("in the way")
    with LearnerProcess() as child:
        child.send(**start_message(work, model_dir, rl_job(**OPEN_GATES)))
        child.recv()
        child.send(op="step", iteration=1, batch=str(batch_files[1]))
        assert child.recv()["event"] == "step"
        failed = child.recv()
        assert failed["code"] == "checkpoint_failed"
        assert "FileExistsError" in failed["detail"]
        assert child.process.wait(10) == 1
