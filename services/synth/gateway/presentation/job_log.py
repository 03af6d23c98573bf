"""The services' log lines about a job, in the API's shape."""

from __future__ import annotations

from datetime import datetime

import msgspec

from synth.api.schemas import LoggedLine
from synth.blobs import BlobStore
from synth.bus.tasks.attempt_logs import LOG_FOLDER, without_digest
from synth.runtime.lines import split_lines

_HEAD = ("timestamp", "service", "level", "event", "exception")


async def read_lines(blobs: BlobStore, job: str, after: datetime | None) -> list[LoggedLine]:
    """Read a job's stored lines, oldest first. after: leave out older lines."""
    # Two tasks of the job in one process have the same lines.
    raw: dict[bytes, None] = {}
    damaged: list[LoggedLine] = []
    async for key, _, written_at in blobs.below(f"jobs/{job}/{LOG_FOLDER}"):
        if after is None or written_at >= after:
            text, is_whole = without_digest(await blobs.find_bytes(key) or b"")
            raw |= dict.fromkeys(split_lines(text))
            damaged += [] if is_whole else [_note_of_damage(key, written_at)]
    lines = [line for text in raw if (line := _line(text)) is not None and (after is None or line.time >= after)]
    return sorted(lines + damaged, key=lambda line: line.time)


def _note_of_damage(key: str, written_at: datetime) -> LoggedLine:
    message = "this log is not what was written (sha256 differs): some of its lines may be wrong or missing"
    return LoggedLine(
        time=written_at, service="gateway", level="error", message=message, trace=None, fields={"blob": key}
    )


def _line(raw: bytes) -> LoggedLine | None:
    """Read a line; None for a line that was cut because it was longer than a whole log may be."""
    try:
        data = msgspec.json.decode(raw, type=dict[str, object])
        time = datetime.fromisoformat(str(data["timestamp"]))
    except (msgspec.DecodeError, KeyError, ValueError):
        return None
    return LoggedLine(
        time=time,
        service=str(data.get("service", "")),
        level=str(data.get("level", "")),
        message=str(data.get("event", "")),
        trace=str(data["exception"]) if data.get("exception") else None,
        fields={name: value for name, value in data.items() if name not in _HEAD},
    )
