"""A log of a released version, as a file: what was appended, line by line, and what it comes to."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from synth.bus.recorded import Recorded, from_parts
from synth.gateway.read_model.store import ReadModel
from synth.jobs.lifecycle import JobStatus

FOLDER = Path(__file__).parent


class Line(msgspec.Struct, frozen=True):
    """One message of the stream `EVENTS`."""

    seq: int
    time: datetime
    subject: str
    headers: dict[str, str]
    data: Any


def versions() -> list[str]:
    """Every version that has a golden log."""
    return sorted(path.parent.name for path in FOLDER.glob("*/events.jsonl"))


def read_lines(version: str) -> list[Line]:
    text = (FOLDER / version / "events.jsonl").read_text()
    return [msgspec.json.decode(line, type=Line) for line in text.splitlines()]


def recorded(lines: Iterable[Line]) -> list[Recorded]:
    """The events, as this version reads them."""
    return [
        from_parts(line.subject, msgspec.json.encode(line.data), line.headers, seq=line.seq, time=line.time)
        for line in lines
    ]


def read_result(version: str) -> dict[str, Any]:
    return json.loads((FOLDER / version / "result.json").read_text())


def result_of(events: list[Recorded], database: Path) -> dict[str, Any]:
    """What the log comes to: each job by its lifecycle and as the API shows it, and the files and models.

    database: a new file for the read model.
    """
    model = ReadModel(database)
    try:
        model.prepare(stream="golden", last_seq=10**9)
        model.apply(events)
        status: dict[str, JobStatus] = {}
        for event in events:
            if event.type.startswith("job.") and event.type != "job.deleted":
                status.setdefault(event.key, JobStatus()).add(event.type)
        files: dict[str, Any] = {}
        jobs: dict[str, Any] = {}
        for id, folded in status.items():
            [org] = {event.org for event in events if event.key == id}
            row = model.job(org, id)
            points, _ = model.points(id, after_step=-1, name=None, steps=1000)
            jobs[id] = {
                "state": folded.state,
                "term": folded.term,
                "shown": None if row is None else row.job,
                "checkpoints": model.checkpoints(id),
                "points": len(points),
            }
        for event in events:
            if event.type == "file.uploaded":
                row = model.file(event.org, event.key)
                files[event.key] = None if row is None else row.file
        orgs = sorted({event.org for event in events})
        models = {row.model.id: row.model.base for org in orgs for row in model.models(org, limit=1000)}
        return json.loads(msgspec.json.encode({"jobs": jobs, "files": files, "models": models}))
    finally:
        model.close()
