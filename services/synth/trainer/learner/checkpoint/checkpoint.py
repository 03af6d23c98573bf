"""The resume checkpoint: everything that a new process needs to continue a run as if nothing had happened.

It is a model folder, which can be served, evaluated and trained from like any other, with a sub-folder for the rest of
the training state.

Invariants: the manifest, with a digest of every file, is written last; the folder appears under its final name
complete or not at all; a checkpoint that does not verify, or does not reproduce its own loss, is never trained on.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

import msgspec
from torch import Tensor

from synth.events import RESUME_FOLDER
from synth.trainer.errors import TrainingFailed
from synth.trainer.learner import rng
from synth.trainer.learner.checkpoint.fingerprint import Fingerprint
from synth.weights.policy_file import load_tensors, save_tensors, sync_path, write_atomically

OPTIMIZER, PROBE, RNG, BEST, REFERENCE, _MANIFEST, _IMAGES = (
    f"{RESUME_FOLDER}/{name}"
    for name in (
        "optimizer.safetensors",
        "probe.safetensors",
        "rng.json",
        "best.safetensors",
        "reference.safetensors",
        "manifest.json",
        "images",
    )
)


class CheckpointState(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a checkpoint, in its manifest.

    step: steps done, which is also the policy version and, for RL, the last batch's iteration; the data cursor of
    SFT follows from it. config: stored as `recipe`. reports: the metrics of each step since the checkpoint before,
    which may not have been announced. probe_loss: of the probe under these weights, stored as `loss`; None before
    anything was trained. probe_temperature: at which the probe is scored, stored as `temperature`. best: the lowest
    validation loss so far, and its step. canary: the tokens of the job's canary, once there are any.
    """

    kind: Literal["sft", "rl"]
    step: int
    config: dict[str, Any] = msgspec.field(name="recipe")
    fingerprint: Fingerprint
    reports: dict[int, dict[str, float]]
    probe_loss: float | None = msgspec.field(name="loss")
    probe_temperature: float = msgspec.field(default=1.0, name="temperature")
    best: tuple[float, int] | None = None
    canary: list[int] | None = None


class _FileEntry(msgspec.Struct, frozen=True):
    sha256: str
    size: int


class _Manifest(msgspec.Struct, frozen=True):
    state: CheckpointState
    weights: str
    files: dict[str, _FileEntry]


class LoadedCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint that was read and verified.

    weights: by the names of the model's file. images: the files of the probe's images, each named by its sha256. rng:
    from `rng.capture`. reference: of `TrainingState`.
    """

    state: CheckpointState
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    probe: dict[str, Tensor]
    rng: dict[str, Any]
    best_file: Path | None
    images: list[Path]
    reference: dict[str, Tensor]


def save_checkpoint(
    folder: Path,
    state: CheckpointState,
    *,
    write_model: Callable[[Path], None],
    weights_file: str,
    optimizer: dict[str, Tensor],
    probe: dict[str, Tensor],
    images: Iterable[Path] = (),
    reference: dict[str, Tensor],
    best_file: Path | None = None,
) -> None:
    """Write a checkpoint folder; it appears under its name only when all of it is durable.

    write_model: makes the folder, with the model in it. weights_file: the name of its float32 master weights.
    optimizer: from `Optimizer.state_dict`. probe: the arrays of a `Sequences`, empty before anything was trained.
    images: the files of the probe's images, which the job may be without when it resumes. reference: of
    `TrainingState`.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    write_model(partial)
    (partial / RESUME_FOLDER).mkdir()
    save_tensors(partial / OPTIMIZER, optimizer)
    save_tensors(partial / PROBE, probe)
    if reference:
        save_tensors(partial / REFERENCE, reference)
    for image in images:
        write_atomically(_made(partial / _IMAGES) / image.name, image.read_bytes())
    write_atomically(partial / RNG, msgspec.json.encode(rng.capture()))
    if best_file is not None:
        shutil.copyfile(best_file, partial / BEST)
        sync_path(partial / BEST)
    files = {
        f.relative_to(partial).as_posix(): _FileEntry(sha256=_sha256(f), size=f.stat().st_size)
        for f in sorted(partial.rglob("*"))
        if f.is_file()
    }
    manifest = _Manifest(state=state, weights=weights_file, files=files)
    write_atomically(partial / _MANIFEST, msgspec.json.encode(manifest))
    os.rename(partial, folder)
    sync_path(folder.parent)


def load_checkpoint(folder: Path) -> LoadedCheckpoint:
    """Read a checkpoint and verify every file. Raises `TrainingFailed` (bad_checkpoint) naming what is wrong."""
    try:
        manifest = msgspec.json.decode((folder / _MANIFEST).read_bytes(), type=_Manifest)
    except (OSError, msgspec.DecodeError) as error:
        raise TrainingFailed("bad_checkpoint", f"{folder.name}/{_MANIFEST}: {error}") from error
    for name, entry in manifest.files.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != entry.size or _sha256(path) != entry.sha256:
            raise TrainingFailed(
                "bad_checkpoint",
                f"{folder.name}/{name} is not what its manifest says ({entry.size} bytes, sha256 "
                f"{entry.sha256[:12]}…); fetch the checkpoint again, or resume from the one before",
            )
    return LoadedCheckpoint(
        state=manifest.state,
        weights=load_tensors(folder / manifest.weights)[0],
        optimizer=load_tensors(folder / OPTIMIZER)[0],
        probe=load_tensors(folder / PROBE)[0],
        rng=msgspec.json.decode((folder / RNG).read_bytes()),
        best_file=folder / BEST if BEST in manifest.files else None,
        reference=load_tensors(folder / REFERENCE)[0] if REFERENCE in manifest.files else {},
        images=[folder / name for name in manifest.files if name.startswith(f"{_IMAGES}/")],
    )


def _made(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
