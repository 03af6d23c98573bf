"""The state of a file, read from the log: its current upload, the verdict of the check, and whether it was deleted.

Invariant. A file's id follows from its bytes, so a deleted file can come back under its id. A verdict on an earlier
upload does not hold for a later one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from synth.bus.connection import Connection
from synth.bus.recorded import Recorded
from synth.bus.replay import replay
from synth.events import FileDeleted, FileReady, FileRejected, FileUploaded


@dataclass(frozen=True)
class FileHistory:
    """upload: the current one, at sequence `uploaded_seq`; None when there never was one, or it was deleted.

    verdict: on that upload. deleted: the last upload has been deleted. last_seq: the sequence of the last event read.
    """

    upload: FileUploaded | None = None
    uploaded_seq: int = 0
    verdict: FileReady | FileRejected | None = None
    deleted: bool = False
    last_seq: int = 0


async def read_file(bus: Connection, org: str, file_id: str) -> FileHistory:
    """Read a file's history from the log."""
    return history_of(await replay(bus, [f"file.*.{org}.{file_id}"]))


def history_of(events: Iterable[Recorded], after: FileHistory | None = None) -> FileHistory:
    """Return the history after these events, in order. after: the history before them."""
    known = after or FileHistory()
    for recorded in events:
        known = _next(known, recorded)
    return known


def _next(known: FileHistory, recorded: Recorded) -> FileHistory:
    seq = recorded.seq
    match recorded.event:
        case FileUploaded() as upload if known.upload is None:
            return FileHistory(upload=upload, uploaded_seq=seq, last_seq=seq)
        case FileReady() | FileRejected() as verdict if known.upload is not None:
            return FileHistory(known.upload, known.uploaded_seq, verdict, last_seq=seq)
        case FileDeleted(uploaded_seq=ended) if known.upload is not None and ended == known.uploaded_seq:
            return FileHistory(deleted=True, last_seq=seq)
        case _:
            return FileHistory(known.upload, known.uploaded_seq, known.verdict, known.deleted, seq)
