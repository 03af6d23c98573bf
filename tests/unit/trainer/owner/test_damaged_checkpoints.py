"""An attempt goes on from the newest checkpoint that is whole, and fails only if none is."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from synth.blobs import BlobStore
from synth.events import CheckpointSaved, Continuation, ModelRef
from synth.trainer.owner.attempt import Attempt
from synth.trainer.owner.errors import JobFailure
from synth.trainer.owner.history import AttemptHistory
from synth.trainer.owner.learner_config import fetch_checkpoint


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore.open(f"file:{tmp_path / 'blobs'}")


async def save(blobs: BlobStore, folder: Path, step: int, job: str = "job_1") -> CheckpointSaved:
    made = folder / f"made-{job}-{step}"
    made.mkdir()
    (made / "weights.safetensors").write_bytes(bytes([step]) * 1000)
    tree, manifest = await blobs.put_tree(f"jobs/{job}/checkpoint-{step}", made)
    return CheckpointSaved(step=step, version=step, attempt=1, tree=tree, size=manifest.size, model=ModelRef(id="m"))


def attempt_of(blobs: BlobStore, folder: Path, announced: AttemptHistory) -> Attempt:
    lease, settings = SimpleNamespace(progress=lambda *_, **__: None), SimpleNamespace(model_io_s=60)
    parts: Any = SimpleNamespace(announced=announced, blobs=blobs, work_dir=folder, lease=lease, settings=settings)
    return cast(Attempt, parts)


def damage(blobs: BlobStore, saved: CheckpointSaved, how: str) -> None:
    assert blobs.root is not None
    file = blobs.root / saved.tree.uri.removeprefix("blob://").removesuffix(".manifest.json") / "weights.safetensors"
    if how == "manifest":
        file = blobs.root / saved.tree.uri.removeprefix("blob://")
    if how == "gone":
        file.unlink()
        return
    body = bytearray(file.read_bytes())
    body[len(body) // 2] ^= 1
    file.write_bytes(body)


@pytest.mark.parametrize("how", ["weights", "manifest", "gone"])
async def test_the_newest_whole_checkpoint_is_taken(blobs: BlobStore, tmp_path: Path, how: str):
    saved = [await save(blobs, tmp_path, step) for step in (1, 2, 3)]
    announced = AttemptHistory(checkpoint=saved[-1], checkpoints=[*saved], last_step=3)
    attempt = attempt_of(blobs, tmp_path, announced)
    for newest, whole in ((3, 3), (3, 2), (2, 1)):
        if whole < newest:
            damage(blobs, saved[newest - 1], how)
        folder = await fetch_checkpoint(attempt)
        assert folder is not None
        assert (folder / "weights.safetensors").read_bytes() == bytes([whole]) * 1000
        assert announced.checkpoint == saved[whole - 1]
        assert announced.checkpoints == saved[:whole]
        # The steps after it are in the log: they are trained again, and not announced again.
        assert announced.last_step == 3


async def test_a_job_that_goes_on_behind_another_begins_there_if_its_own_are_damaged(blobs: BlobStore, tmp_path: Path):
    before, own = await save(blobs, tmp_path, 5, job="job_0"), await save(blobs, tmp_path, 6)
    continues = Continuation(job="job_0", step=5, version=5, tree=before.tree, model="m")
    announced = AttemptHistory(checkpoint=own, checkpoints=[own], last_step=6, continues=continues)
    damage(blobs, own, "weights")
    folder = await fetch_checkpoint(attempt_of(blobs, tmp_path, announced))
    assert folder is not None
    assert (folder / "weights.safetensors").read_bytes() == bytes([5]) * 1000
    assert announced.checkpoint is not None
    assert announced.checkpoint.step == 5


async def test_a_job_without_a_whole_checkpoint_fails_with_each_reason(blobs: BlobStore, tmp_path: Path):
    saved = [await save(blobs, tmp_path, step) for step in (1, 2)]
    damage(blobs, saved[0], "gone")
    damage(blobs, saved[1], "weights")
    attempt = attempt_of(blobs, tmp_path, AttemptHistory(checkpoint=saved[1], checkpoints=[*saved], last_step=2))
    with pytest.raises(JobFailure, match=r"step 2: .* sha256 differs.*; step 1: .*is not in the blob store") as failed:
        await fetch_checkpoint(attempt)
    assert failed.value.code == "bad_checkpoint"


async def test_a_job_without_a_checkpoint_begins_at_its_model(blobs: BlobStore, tmp_path: Path):
    assert await fetch_checkpoint(attempt_of(blobs, tmp_path, AttemptHistory())) is None
