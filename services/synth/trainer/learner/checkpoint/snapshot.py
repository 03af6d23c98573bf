"""The content of a checkpoint, before it is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec
from torch import Tensor

from synth.events import RESUME_FOLDER
from synth.trainer.learner.checkpoint.fingerprint import Fingerprint

PROBE, RNG, BEST, REFERENCE, MANIFEST, IMAGES = (
    f"{RESUME_FOLDER}/{name}"
    for name in (
        "probe.safetensors",
        "rng.json",
        "best.safetensors",
        "reference.safetensors",
        "manifest.json",
        "images",
    )
)
OPTIMIZER = f"{RESUME_FOLDER}/optimizer.safetensors"


class CheckpointState(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a checkpoint, in its manifest.

    step: steps done, which is also the policy version and, for RL, the last batch's iteration; the data cursor of
    SFT follows from it. config: stored as `recipe`. reports: the metrics of each step since the checkpoint before,
    which may not have been announced. probe_loss: of the probe under these weights, stored as `loss`; None before
    anything was trained. probe_temperature: at which the probe is scored, stored as `temperature`. best: the lowest
    validation loss so far, and its step. canary: the tokens of the job's canary, once there are any.
    """

    kind: str
    step: int
    config: dict[str, Any] = msgspec.field(name="recipe")
    fingerprint: Fingerprint
    reports: dict[int, dict[str, float]]
    probe_loss: float | None = msgspec.field(name="loss")
    probe_temperature: float = msgspec.field(default=1.0, name="temperature")
    best: tuple[float, int] | None = None
    canary: list[int] | None = None


@dataclass(frozen=True)
class Snapshot:
    """The part of a checkpoint that one rank writes.

    state; weights, optimizer: the files of the float32 masters and of the optimizer's state, all ranks' together.
    tensors, bodies, copies: the files that this rank writes, by name in the folder; tensors are copies in host memory,
    and copies are open files, which stay as they are when another file takes their name.
    """

    state: CheckpointState
    rank: int
    ranks: int
    weights: list[str]
    optimizer: list[str]
    tensors: dict[str, Mapping[str, Tensor]]
    bodies: dict[str, bytes]
    copies: dict[str, IO[bytes]]

    @property
    def size(self) -> int:
        """Bytes of the tensors that this rank writes."""
        return sum(t.numel() * t.element_size() for tensors in self.tensors.values() for t in tensors.values())


def shard_name(name: str, rank: int, ranks: int) -> str:
    """Return the name of a rank's part of a file, as Hugging Face numbers them; the file's own name for one rank."""
    path = Path(name)
    numbered = f"{path.stem}-{rank + 1:05d}-of-{ranks:05d}{path.suffix}"
    return name if ranks == 1 else str(path.with_name(numbered))
