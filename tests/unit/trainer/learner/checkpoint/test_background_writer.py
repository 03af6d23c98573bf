"""A checkpoint is written while training goes on, and holds the step that it is of."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from synth.trainer.learner.checkpoint.background_writer import BackgroundWriter
from synth.trainer.learner.checkpoint.checkpoint import load_checkpoint, write_checkpoint
from synth.trainer.learner.checkpoint.host_copies import assign_to_ranks
from synth.trainer.learner.checkpoint.interval import checkpoint_interval
from synth.trainer.learner.checkpoint.snapshot import Snapshot, shard_name
from synth.trainer.learner.model.policy import load_policy
from synth.trainer.learner.rl import RlTrainer
from synth.trainer.machine import ONE_CPU, Machine
from synth.weights.tensor_file import FileDigest, hash_file
from tests.unit.trainer.batches import random_batch
from tests.unit.trainer.jobs import OPEN_GATES, rl_job, sft_job

GIB = 1 << 30


class Writer(BackgroundWriter):
    """With what it says: the steps that were saved with their files, and errors."""

    def __init__(self) -> None:
        self.saved: list[tuple[int, Path, dict[str, FileDigest]]] = []
        self.errors: list[Exception] = []
        self.progress: list[tuple[int, int]] = []
        super().__init__(
            saved=lambda step, folder, files: self.saved.append((step, folder, files)),
            failed=self.errors.append,
            progress=lambda stage, done, of: self.progress.append((done, of)),
        )


@pytest.fixture
def trainer(model_dir: Path) -> RlTrainer:
    job = rl_job(**OPEN_GATES)
    return RlTrainer(load_policy(model_dir, job, dropout=False), job)


def test_what_is_written_is_the_policy_of_its_step_whatever_is_trained_meanwhile(
    trainer: RlTrainer, tmp_path: Path
) -> None:
    trainer.step(random_batch(1))
    write_checkpoint(tmp_path / "at-once", trainer.state.snapshot())
    snapshot = trainer.state.snapshot()
    trainer.step(random_batch(2))
    write_checkpoint(tmp_path / "later", snapshot)
    for name in ("model.safetensors", "resume/optimizer.safetensors", "resume/probe.safetensors"):
        assert (tmp_path / "at-once" / name).read_bytes() == (tmp_path / "later" / name).read_bytes(), name
    assert load_checkpoint(tmp_path / "later").state.step == 1


def test_a_write_says_what_it_wrote_and_the_next_one_waits_for_it(trainer: RlTrainer, tmp_path: Path) -> None:
    writer = Writer()
    for k in (1, 2):
        trainer.step(random_batch(k))
        writer.save(tmp_path / f"{k}", trainer.state.snapshot)
    writer.wait()
    assert [step for step, _, _ in writer.saved] == [1, 2]
    assert writer.progress
    for _, folder, files in writer.saved:
        assert files == {f.relative_to(folder).as_posix(): hash_file(f) for f in folder.rglob("*") if f.is_file()}
    assert writer.metrics()["seconds_checkpoint"] > 0
    assert writer.metrics()["seconds_checkpoint"] == 0


def test_a_write_that_fails_is_told(trainer: RlTrainer, tmp_path: Path) -> None:
    (tmp_path / ".1.partial").write_text("in the way")
    writer = Writer()
    trainer.step(random_batch(1))
    writer.save(tmp_path / "1", trainer.state.snapshot)
    writer.wait()
    assert [type(error) for error in writer.errors] == [NotADirectoryError]
    assert writer.saved == []


def test_the_ranks_write_one_checkpoint_together(trainer: RlTrainer, tmp_path: Path) -> None:
    trainer.step(random_batch(1))
    whole = trainer.state.snapshot()
    write_checkpoint(tmp_path / "alone", whole)
    threads = [
        threading.Thread(target=write_checkpoint, args=(tmp_path / "together", _part(whole, rank))) for rank in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    alone, together = load_checkpoint(tmp_path / "alone"), load_checkpoint(tmp_path / "together")
    assert not list((tmp_path / "together").glob(".rank*"))
    for one, other in ((alone.weights, together.weights), (alone.optimizer, together.optimizer)):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


def _part(whole: Snapshot, rank: int) -> Snapshot:
    """What one of two ranks would write of it."""
    tensors = dict(whole.tensors)
    shards: dict[str, list[str]] = {}
    for name in (*whole.weights, *whole.optimizer):
        rank_of = assign_to_ranks({n: t.nbytes for n, t in tensors[name].items()}, 2)
        shards[name] = [shard_name(name, r, 2) for r in range(2)]
        tensors[shards[name][rank]] = {n: t for n, t in tensors.pop(name).items() if rank_of[n] == rank}
    return replace(
        whole,
        rank=rank,
        ranks=2,
        weights=shards[whole.weights[0]],
        optimizer=shards[whole.optimizer[0]],
        tensors=tensors if rank == 0 else {shards[n][1]: tensors[shards[n][1]] for n in shards},
        bodies=whole.bodies if rank == 0 else {},
        copies={},
    )


def test_ranks_write_about_as_much_each() -> None:
    sizes = {f"t{n}": 256 * (n % 7 + 1) for n in range(40)}
    rank_of = assign_to_ranks(sizes, 3)
    bytes_of = [sum(size for n, size in sizes.items() if rank_of[n] == rank) for rank in range(3)]
    assert max(bytes_of) <= 1.1 * min(bytes_of)


@pytest.mark.parametrize(
    ("state_gib", "evaluated_every", "steps"),
    [(0.1, 0, 1), (8, 0, 1), (48, 0, 6), (48, 2, 6), (48, 10, 10), (48, 50, 10), (48, 4, 8), (96, 5, 15)],
)
def test_a_large_state_is_saved_more_rarely_and_in_step_with_evaluations(
    state_gib: float, evaluated_every: int, steps: int
) -> None:
    job = rl_job(evaluated_every=evaluated_every)
    assert checkpoint_interval(job, ONE_CPU, int(state_gib * GIB)) == steps


def test_the_interval_that_a_job_says_is_its_own() -> None:
    assert checkpoint_interval(rl_job(checkpoint_every=3), ONE_CPU, 96 * GIB) == 3
    assert checkpoint_interval(sft_job(), ONE_CPU, 96 * GIB) == 1200
    assert checkpoint_interval(sft_job(), Machine(checkpoint_bytes=GIB), 2 * GIB) == 200


def test_nothing_more_is_saved_than_there_is_room_for(trainer: RlTrainer, tmp_path: Path) -> None:
    asked = threading.Event()
    writer = BackgroundWriter(
        saved=lambda step, folder, files: None,
        failed=lambda error: None,
        progress=lambda stage, done, of: None,
        wait_for_room=asked.set,
    )
    trainer.step(random_batch(1))
    writer.save(tmp_path / "1", trainer.state.snapshot)
    writer.wait()
    assert asked.is_set()
