"""A job on two ranks trains what one rank trains, and ends as one process does."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from synth.trainer.machine import Machine
from synth.weights.tensor_file import load_tensors
from tests.service.trainer.learner_process import LearnerProcess, start_message
from tests.service.trainer.rank_group import (
    JOBS,
    MIDDLE,
    STEPS,
    Models,
    TrainedRun,
    read_trained,
    train,
    train_on_two_ranks,
)
from tests.unit.trainer.batches import random_batch
from tests.unit.trainer.jobs import OPEN_GATES, rl_job

# Two processes import PyTorch, on a machine that may be busy.
pytestmark = pytest.mark.timeout(1200)
DEADLINE_S = 60
RANK_INVARIANT = tuple(name for name in JOBS if name not in ("sft dropout", "sft 8 bits"))
RESUMED = ("rl full", "rl lora", "vision full", "dpo full")
#: Metrics of the clock and of the machine, which differ from run to run.
_WALL_CLOCK_METRICS = ("seconds", "tokens_per_second", "peak_memory")


@pytest.fixture(scope="session")
def models(model_dir: Path, vision_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(model_dir, vision_dir, tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="session")
def alone(models: Models, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, TrainedRun]]:
    """Every config of `RANK_INVARIANT`, trained by one rank."""
    folder = tmp_path_factory.mktemp("alone")
    trained: dict[str, tuple[Path, TrainedRun]] = {}
    for name in RANK_INVARIANT:
        (folder / name).mkdir()
        trained[name] = (folder / name, train(name, models, folder / name))
    return trained


@pytest.fixture(scope="session")
def two_rank_runs(
    models: Models, tmp_path_factory: pytest.TempPathFactory, alone: dict[str, tuple[Path, TrainedRun]]
) -> Path:
    """Every config trained by two ranks, and some resumed from the middle; a folder for each."""
    folder = tmp_path_factory.mktemp("together")
    resumes = {name: alone[name][0] / "checkpoint" for name in RESUMED}
    resumes |= {name: folder / name / "straight" / "checkpoint" for name in ("sft dropout", "sft 8 bits")}
    train_on_two_ranks(models, folder, resumes)
    return folder


def assert_same_metrics(two: TrainedRun, one: TrainedRun, steps: range) -> None:
    assert list(two.values) == list(steps)
    for step in steps:
        assert two.values[step].keys() == one.values[step].keys()
        for name, value in one.values[step].items():
            if not name.startswith(_WALL_CLOCK_METRICS):
                assert two.values[step][name] == pytest.approx(value, abs=1e-5, rel=1e-5), (step, name)


def assert_close_weights(one: Path, other: Path) -> None:
    weights, others = load_tensors(one)[0], load_tensors(other)[0]
    assert weights.keys() == others.keys()
    for name, tensor in weights.items():
        torch.testing.assert_close(tensor, others[name], atol=2e-4, rtol=0)


@pytest.mark.parametrize("name", RANK_INVARIANT)
def test_two_ranks_train_as_one(name: str, alone: dict[str, tuple[Path, TrainedRun]], two_rank_runs: Path) -> None:
    (one, trained), two = alone[name], two_rank_runs / name / "straight"
    assert_same_metrics(read_trained(two), trained, range(1, STEPS + 1))
    assert_close_weights(one / "policy.safetensors", two / "policy.safetensors")
    files = [sorted(f.name for f in (folder / "model").iterdir()) for folder in (one, two)]
    assert files[0] == files[1]


@pytest.mark.parametrize("name", RESUMED)
def test_two_ranks_go_on_from_the_checkpoint_of_one(
    name: str, alone: dict[str, tuple[Path, TrainedRun]], two_rank_runs: Path
) -> None:
    two = read_trained(two_rank_runs / name / "resumed")
    assert two.loss_now == pytest.approx(two.loss_then, abs=1e-5)
    assert_same_metrics(two, alone[name][1], range(MIDDLE + 1, STEPS + 1))


@pytest.mark.parametrize("name", RANK_INVARIANT)
def test_one_rank_goes_on_from_the_checkpoint_of_two(
    name: str, alone: dict[str, tuple[Path, TrainedRun]], two_rank_runs: Path, models: Models, tmp_path: Path
) -> None:
    one = train(name, models, tmp_path, resume=two_rank_runs / name / "straight" / "checkpoint")
    assert one.loss_now == pytest.approx(one.loss_then, abs=1e-5)
    assert_same_metrics(one, alone[name][1], range(MIDDLE + 1, STEPS + 1))


@pytest.mark.parametrize("name", ["sft dropout", "sft 8 bits"])
def test_two_ranks_that_go_on_are_two_ranks_straight_through_to_the_byte(name: str, two_rank_runs: Path) -> None:
    one, other = (two_rank_runs / name / run for run in ("straight", "resumed"))
    assert read_trained(other).loss_now == read_trained(other).loss_then is not None
    assert (one / "policy.safetensors").read_bytes() == (other / "policy.safetensors").read_bytes()


def test_two_ranks_with_moments_in_8_bits_train_as_one(models: Models, two_rank_runs: Path, tmp_path: Path) -> None:
    (tmp_path / "resumed").mkdir()
    one, two = train("sft 8 bits", models, tmp_path), two_rank_runs / "sft 8 bits" / "straight"
    for step, values in read_trained(two).values.items():
        assert values["loss"] == pytest.approx(one.values[step]["loss"], rel=1e-2)
    weights, others = (load_tensors(folder / "policy.safetensors")[0] for folder in (tmp_path, two))
    lr = JOBS["sft 8 bits"].lr
    # Each step moves a weight by about the rate.
    assert all((tensor - others[name]).abs().mean() < 0.1 * lr for name, tensor in weights.items())
    # A rank's codes are those of its rows: one process goes on from what two of them saved.
    resumed = train("sft 8 bits", models, tmp_path / "resumed", resume=two / "checkpoint")
    assert resumed.loss_now == pytest.approx(resumed.loss_then, abs=1e-5)
    assert resumed.values[STEPS]["loss"] == pytest.approx(one.values[STEPS]["loss"], rel=1e-2)


def start_two_ranks(model_dir: Path, work: Path, batch: Path) -> tuple[LearnerProcess, psutil.Process]:
    """A training process after the first step of its job, and the process of rank 1."""
    child = LearnerProcess()
    job = rl_job(minibatches=1, **OPEN_GATES)
    child.send(**start_message(work, model_dir, job, machine=Machine(world_size=2)))
    assert child.recv()["fingerprint"]["world_size"] == 2
    child.send(op="step", iteration=1, batch=str(batch))
    assert child.recv()["event"] == "step"
    (other_rank,) = psutil.Process(child.process.pid).children()
    return child, other_rank


def test_a_rank_that_fails_says_why_and_ends_the_others(model_dir: Path, tmp_path: Path) -> None:
    first, second = random_batch(1), random_batch(2)
    # Rank 0 takes the longest sequence, so that the NaN in the shortest is found by rank 1.
    lengths = np.diff(second.cu_seqlens)
    shortest = int(lengths.argmin())
    second.advantages[:] = 0
    second.advantages[[int(lengths.argmax()), shortest]] = 1
    span = slice(second.cu_seqlens[shortest], second.cu_seqlens[shortest + 1])
    second.logprobs[span] = np.nan
    for k, batch in enumerate((first, second), start=1):
        (tmp_path / f"{k}").write_bytes(batch.to_bytes())
    child, other_rank = start_two_ranks(model_dir, tmp_path / "w", tmp_path / "1")
    with child:
        child.send(op="step", iteration=2, batch=str(tmp_path / "2"))
        failed = child.recv()
        assert (failed["event"], failed["code"]) == ("error", "nan_loss")
        assert failed["detail"].startswith("rank 1: the loss of step 2 is nan")
        assert child.process.wait(DEADLINE_S) == 1
        other_rank.wait(DEADLINE_S)


def test_a_rank_that_is_killed_ends_the_others_without_a_word(model_dir: Path, tmp_path: Path) -> None:
    """Another attempt then resumes, as after the death of a single process."""
    for k in (1, 2):
        (tmp_path / f"{k}").write_bytes(random_batch(k).to_bytes())
    child, other_rank = start_two_ranks(model_dir, tmp_path / "w", tmp_path / "1")
    with child:
        os.kill(other_rank.pid, signal.SIGSTOP)
        child.send(op="step", iteration=2, batch=str(tmp_path / "2"))
        os.kill(other_rank.pid, signal.SIGKILL)
        assert child.recv() == {}
        assert child.process.wait(DEADLINE_S) == 4
