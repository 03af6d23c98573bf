"""The index of jobs by their metadata, tags and names, each of which has a row."""

from __future__ import annotations

import sqlite3
from typing import Any

import msgspec

from synth.api.schemas import Job
from synth.events import JobCreated, JobValidated
from synth.events.catalogue import Event

SCHEMA = """
CREATE TABLE pairs (
    org TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, job TEXT NOT NULL,
    PRIMARY KEY (org, kind, name, value, job)
) WITHOUT ROWID;
CREATE INDEX pairs_of_job ON pairs (job);
"""
#: The condition of SQL that a row of `jobs` has a pair: its organisation, kind (metadata, tag, name), name and value.
HAS_PAIR = (
    "EXISTS (SELECT 1 FROM pairs AS p WHERE p.org = ? AND p.kind = ? AND p.name = ? AND p.value = ? AND p.job = id)"
)


def record_pairs(db: sqlite3.Connection, org: str, job: Job, event: Event) -> None:
    """Record a job's metadata, tags and names after its creation, and again after its validation."""
    if not isinstance(event, JobCreated | JobValidated):
        return
    db.execute("DELETE FROM pairs WHERE job = ?", (job.id,))
    pairs = [("name", "", name) for name in _names(job)]
    pairs += [("metadata", name, value) for name, value in job.metadata.items() if isinstance(value, str)]
    pairs += [("tag", name, _text(value)) for name, value in job.tags.items() if value is not None]
    rows = [(org, kind, name, value, job.id) for kind, name, value in pairs]
    db.executemany("INSERT OR IGNORE INTO pairs VALUES (?, ?, ?, ?, ?)", rows)


def _names(job: Job) -> list[str]:
    """Return the job's name and label; for a path, also each of its ends after a slash."""
    name = job.name or ""
    ends = [name[i + 1 :] for i, character in enumerate(name) if character == "/"]
    return [each for each in (name, *ends, job.label) if each]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
