"""Where a byte of a stopped cluster may be damaged, and a draw among these."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from synth.bus.server.topology import AUDIT, DEAD, EVENTS, SECRET_BUCKETS, WORK

#: Of this many damages, so many hit the place.
SHARES = {"log": 6, "buckets": 5, "tasks": 4, "dead letters": 2, "audit": 2, "blobs": 3, "checkpoints": 4}
#: The streams of each place on the bus.
STREAMS = {
    "log": [EVENTS],
    "buckets": [f"KV_{bucket}" for bucket in SECRET_BUCKETS],
    "tasks": [WORK],
    "dead letters": [DEAD],
    "audit": [AUDIT],
}
#: Of what a stream is made of, most damages hit messages.
_OF_MESSAGES = 0.7
#: Of the damages of messages, in a server that was killed.
_KILLED = 0.5
_FOLDER = Path("nats/store/jetstream/streams/streams")


@dataclass(frozen=True)
class Damage:
    """One byte of a file, below the cluster's data folder, that becomes another one. mask: its bits that change.

    killed: the server was killed before it wrote what it knows of its messages, and reads them all at its start.
    """

    place: str
    file: Path
    offset: int
    mask: int
    killed: bool = False

    def strike(self, data: Path) -> None:
        """Damage the file of this data folder."""
        with (data / self.file).open("r+b") as file:
            file.seek(self.offset)
            (byte,) = file.read(1)
            file.seek(self.offset)
            file.write(bytes([byte ^ self.mask]))


def draw(rng: random.Random, data: Path) -> Damage:
    """Draw a place, a file of it, and a byte of that."""
    (place,) = rng.choices([*SHARES], [*SHARES.values()])
    files = files_of(place, data)
    if place in STREAMS:
        blocks = [file for file in files if file.suffix == ".blk"]
        files = blocks if rng.random() < _OF_MESSAGES else [file for file in files if file not in blocks]
    file = rng.choice(files)
    offset, mask = rng.randrange((data / file).stat().st_size), rng.randrange(1, 256)
    return Damage(place, file, offset, mask, killed=file.suffix == ".blk" and rng.random() < _KILLED)


def files_of(place: str, data: Path) -> Sequence[Path]:
    """The files of a place that are not empty, below the data folder."""
    if place in STREAMS:
        # A stream's queues are apart: what a service has taken from them is taken again.
        folders = [data / _FOLDER / name for name in STREAMS[place]]
        found = [path for folder in folders for path in (*folder.glob("meta.*"), *folder.glob("msgs/*"))]
    else:
        is_wanted = place == "checkpoints"
        found = [path for path in (data / "blobs").rglob("*") if (is_checkpoint(path) is is_wanted)]
    return sorted(path.relative_to(data) for path in found if path.is_file() and path.stat().st_size)


def is_checkpoint(path: Path) -> bool:
    """Whether a blob is a file or the manifest of a checkpoint."""
    return any(part.startswith("checkpoint-") for part in path.parts)
