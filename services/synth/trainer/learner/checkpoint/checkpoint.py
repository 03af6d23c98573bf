"""The resume checkpoint: everything that a new process needs to continue a run as if nothing had happened.

It is a model folder, which can be served, evaluated and trained from like any other, with a sub-folder for the rest of
the training state. Each rank writes whole tensors, a share of them each: any number of ranks can read them.

Invariants: the manifest, with a digest of every file, is written last; the folder appears under its final name
complete or not at all; a checkpoint that does not verify, or does not reproduce its own loss, is never trained on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import msgspec
from torch import Tensor

from synth.events import RESUME_FOLDER
from synth.trainer.errors import TrainingFailed
from synth.trainer.learner.checkpoint.snapshot import (
    BEST,
    IMAGES,
    MANIFEST,
    PROBE,
    REFERENCE,
    RNG,
    CheckpointState,
    Snapshot,
)
from synth.weights.durable import sync_path
from synth.weights.tensor_file import FileDigest, TensorFiles, hash_file, load_tensors, save_tensors, write_hashed

_PIECE = 8 << 20
_POLL_SECONDS = 0.02
Progress = Callable[[int], None]


class CheckpointManifest(msgspec.Struct, frozen=True):
    """What a checkpoint is, and the digest of each of its files."""

    state: CheckpointState
    weights: list[str]
    optimizer: list[str]
    files: dict[str, FileDigest]


class LoadedCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint that was read and verified.

    weights: by the names of the model's files; optimizer: of `Optimizer.gathered`. Each tensor is read when it is used.
    images: the files of the probe's images, each named by its sha256. rng: from `rng.capture`. reference: of
    `TrainingState`.
    """

    state: CheckpointState
    weights: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    probe: dict[str, Tensor]
    rng: dict[str, Any]
    best_file: Path | None
    images: list[Path]
    reference: dict[str, Tensor]


def write_checkpoint(folder: Path, snapshot: Snapshot, *, progress: Progress | None = None) -> dict[str, FileDigest]:
    """Write a checkpoint folder; it appears under its name only when all of it is durable.

    Every rank calls this with its own snapshot, and rank 0 returns when all have written theirs. Returns the digest of
    each file, on rank 0. progress: called with the number of bytes of each piece of a tensor file that is written.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    (partial / RESUME_FOLDER).mkdir(parents=True, exist_ok=True)
    files: dict[str, FileDigest] = {}
    for name, tensors in snapshot.tensors.items():
        files[name] = save_tensors(partial / name, tensors, header={"format": "pt"}, progress=progress)
    for name, body in snapshot.bodies.items():
        files[name] = _write(partial / name, body)
    for name, source in snapshot.copies.items():
        files[name] = _copy(partial / name, source)
    if snapshot.rank:
        # This file signals rank 0, which may rename the folder at once: nothing may be written after the rename.
        written = partial / f".rank-{snapshot.rank}.partial"
        written.write_bytes(msgspec.json.encode(files))
        written.replace(_rank_file(partial, snapshot.rank))
        return {}
    for rank in range(1, snapshot.ranks):
        files |= _take_rank_file(_rank_file(partial, rank))
    files = dict(sorted(files.items()))
    manifest = CheckpointManifest(
        state=snapshot.state, weights=snapshot.weights, optimizer=snapshot.optimizer, files=files
    )
    of_manifest = _write(partial / MANIFEST, msgspec.json.encode(manifest))
    os.rename(partial, folder)
    sync_path(folder.parent)
    return files | {MANIFEST: of_manifest}


def load_checkpoint(folder: Path) -> LoadedCheckpoint:
    """Read a checkpoint and verify every file. Raises `TrainingFailed` (bad_checkpoint) with the file and the fault."""
    try:
        manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=CheckpointManifest)
    except (OSError, msgspec.DecodeError) as error:
        raise TrainingFailed("bad_checkpoint", f"{folder.name}/{MANIFEST}: {error}") from error
    for name, entry in manifest.files.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != entry.size or hash_file(path) != entry:
            raise TrainingFailed(
                "bad_checkpoint",
                f"{folder.name}/{name} does not match its manifest ({entry.size} bytes, sha256 "
                f"{entry.sha256[:12]}…); fetch the checkpoint again, or resume from the one before",
            )
    return LoadedCheckpoint(
        state=manifest.state,
        weights=TensorFiles([folder / name for name in manifest.weights]),
        optimizer=TensorFiles([folder / name for name in manifest.optimizer]),
        probe=load_tensors(folder / PROBE)[0],
        rng=msgspec.json.decode((folder / RNG).read_bytes()),
        best_file=folder / BEST if BEST in manifest.files else None,
        reference=load_tensors(folder / REFERENCE)[0] if REFERENCE in manifest.files else {},
        images=[folder / name for name in manifest.files if name.startswith(f"{IMAGES}/")],
    )


def _write(path: Path, body: bytes) -> FileDigest:
    path.parent.mkdir(exist_ok=True)
    return write_hashed(path, [body])


def _copy(path: Path, source: IO[bytes]) -> FileDigest:
    with source:
        return write_hashed(path, iter(lambda: source.read(_PIECE), b""))


def _rank_file(partial: Path, rank: int) -> Path:
    return partial / f".rank-{rank}.json"


def _take_rank_file(path: Path) -> dict[str, FileDigest]:
    # This wait has no deadline of its own: if a rank dies, this process ends too, and a process that waits for this
    # write sends no message, until the service considers it hung.
    while not path.exists():
        time.sleep(_POLL_SECONDS)
    files = msgspec.json.decode(path.read_bytes(), type=dict[str, FileDigest])
    path.unlink()
    return files
