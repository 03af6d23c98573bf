"""The checkpoint from which a job would go on if its trainer died now, and one damaged byte of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from synth.bus.recorded import Recorded
from synth.bus.replay import replay
from synth.errors import SynthError
from synth.events import BlobExpired, CheckpointSaved, JobStarted
from synth.jobs.lifecycle import TERMINAL_FACTS
from tests.soak.cluster import SoakCluster

#: Of a number of 32 bits, the byte whose change is neither noise nor infinite.
_BYTE = 2
_MASK = 0x40


@dataclass(frozen=True)
class Newest:
    """A job's newest checkpoint, if another one is before it. file: its largest; worker: who trains the job."""

    job: str
    worker: str
    file: Path

    def flip(self) -> None:
        """Damage a byte in the middle of the file, or take that back; a file that has expired stays as it is."""
        try:
            with self.file.open("r+b") as file:
                at = self.file.stat().st_size // 2 // 4 * 4 + _BYTE
                file.seek(at)
                (byte,) = file.read(1)
                file.seek(at)
                file.write(bytes([byte ^ _MASK]))
        except FileNotFoundError:
            return


async def find_newest(cluster: SoakCluster) -> Newest | None:
    """Return the newest checkpoint of the job that began last; None if no job that trains has two."""
    facts = await replay(cluster.bus, ["job.>", "checkpoint.saved.>", "blob.expired.>"])
    by_job: dict[str, list[Recorded]] = {}
    for fact in facts:
        by_job.setdefault(fact.key, []).append(fact)
    for job, its in reversed(by_job.items()):
        if any(fact.type in TERMINAL_FACTS for fact in its):
            continue
        expired = {uri for fact in its if isinstance(fact.event, BlobExpired) for uri in fact.event.uris}
        saved = [fact.event for fact in its if isinstance(fact.event, CheckpointSaved)]
        kept = [event.tree for event in saved if event.tree.uri not in expired]
        workers = [fact.event.worker for fact in its if isinstance(fact.event, JobStarted)]
        if len(kept) < 2 or not workers:
            continue
        try:
            files = (await cluster.blobs.manifest(kept[-1])).files.values()
        except SynthError:
            continue
        largest = max(files, key=lambda ref: ref.size)
        assert cluster.blobs.root is not None
        return Newest(job, workers[-1], cluster.blobs.root / largest.uri.removeprefix("blob://"))
    return None
