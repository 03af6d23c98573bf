"""The rows that a batch of events changes, held until the whole batch is applied."""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from typing import Protocol, TypeVar

import msgspec

from synth.bus.recorded import Recorded
from synth.events import FileDeleted, JobDeleted
from synth.gateway.read_model.artifacts import ModelRow
from synth.gateway.read_model.projection import FileRow, JobRow
from synth.gateway.read_model.tables import device_time, org_totals
from synth.jobs.lifecycle import TERMINAL

Row = TypeVar("Row", JobRow, FileRow, ModelRow)


_Sized = TypeVar("_Sized", JobRow, FileRow)


class _Find(Protocol):
    def __call__(self, table: str, kind: type[Row], id: str) -> Row | None: ...


class Batch:
    """The jobs and files that a batch of events changes. find: reads a row of the read model."""

    def __init__(self, db: sqlite3.Connection, find: _Find) -> None:
        self._db, self._find = db, find
        self.sightings = device_time.Sightings(db)
        self.jobs: dict[str, JobRow | None] = {}
        self.files: dict[str, FileRow | None] = {}
        self._stored: list[JobRow | FileRow | None] = []

    def job(self, id: str) -> JobRow | None:
        if id not in self.jobs:
            self.jobs[id] = row = self._find("jobs", JobRow, id)
            self._stored.append(row)
        return self.jobs[id]

    def file(self, id: str) -> FileRow | None:
        if id not in self.files:
            self.files[id] = row = self._find("files", FileRow, id)
            self._stored.append(row)
        return self.files[id]

    def count_file(self, before: FileRow | None, event: Recorded) -> None:
        """Count the bytes of an event of a file. before: the file before the event."""
        row = self.files[event.key]
        if row is None:
            self.count_absent(before, event)
        else:
            self.files[event.key] = add_size(row, event)

    def count_absent(self, before: JobRow | FileRow | None, event: Recorded) -> None:
        """Count the bytes of an event after which its job or file does not exist. before: the row before the event."""
        if not isinstance(event.event, JobDeleted | FileDeleted):
            size = 0 if event.expires else event.size
            org_totals.add_unerased(self._db, event.org, event.key, size=size)
            return
        # This event is never erased.
        org_totals.add(self._db, event.org, event_bytes=event.size)
        size = 0 if before is None else before.event_bytes
        org_totals.add_unerased(self._db, event.org, event.key, size=size)
        org_totals.note_deleted(self._db, event.key, event.seq)

    def write(self) -> None:
        """Write the rows, and their changes to the totals of their organisations."""
        self.sightings.enter()
        totals: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for row in filter(None, self._stored):
            totals[row.org].subtract(row.kept)
        for row in filter(None, (*self.jobs.values(), *self.files.values())):
            totals[row.org].update(row.kept)
        for org, change in totals.items():
            org_totals.add(self._db, org, **change)
        for id, job in self.jobs.items():
            if job is None:
                self._db.execute("DELETE FROM jobs WHERE id = ?", (id,))
            else:
                live = job.job.state not in TERMINAL
                view, created_at = job.job, job.job.created_at.timestamp()
                row = msgspec.json.encode(job)
                values = (id, job.org, job.created_seq, view.state, view.kind, live, created_at, row)
                self._db.execute("INSERT OR REPLACE INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)
        for id, file in self.files.items():
            if file is None:
                self._db.execute("DELETE FROM files WHERE id = ?", (id,))
            else:
                values = (id, file.org, file.created_seq, file.file.purpose, msgspec.json.encode(file))
                self._db.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?)", values)


def add_size(row: _Sized, event: Recorded) -> _Sized:
    """Count an event's bytes; an event that expires in the log does not count."""
    if event.expires:
        return row
    return msgspec.structs.replace(row, event_bytes=row.event_bytes + event.size)
