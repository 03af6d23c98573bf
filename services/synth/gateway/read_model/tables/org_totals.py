"""The totals of an organisation's stored items, updated at each change, because each upload is checked against a limit.

Invariant. The bytes of events are the bytes in the log: deleted items count until they are erased there.
"""

from __future__ import annotations

import sqlite3

SCHEMA = """
CREATE TABLE org_totals (
    org TEXT PRIMARY KEY, file_bytes INTEGER NOT NULL, files_pending INTEGER NOT NULL, log_bytes INTEGER NOT NULL,
    event_bytes INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE unerased (
    id TEXT PRIMARY KEY, org TEXT NOT NULL, bytes INTEGER NOT NULL, deleted INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX unerased_of_org ON unerased (org);
"""
_ADD = """
INSERT INTO org_totals VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET file_bytes = file_bytes + excluded.file_bytes,
    files_pending = files_pending + excluded.files_pending, log_bytes = log_bytes + excluded.log_bytes,
    event_bytes = event_bytes + excluded.event_bytes
"""

_DELETE_EMPTY = """
DELETE FROM org_totals
WHERE org = ? AND file_bytes = 0 AND files_pending = 0 AND log_bytes = 0 AND event_bytes = 0
"""
_ADD_UNERASED = """
INSERT INTO unerased VALUES (?, ?, ?, 0) ON CONFLICT DO UPDATE SET bytes = bytes + excluded.bytes
"""


def add(
    db: sqlite3.Connection,
    org: str,
    *,
    file_bytes: int = 0,
    files_pending: int = 0,
    log_bytes: int = 0,
    event_bytes: int = 0,
) -> None:
    """Add to an organisation's totals; a negative number subtracts."""
    if file_bytes or files_pending or log_bytes or event_bytes:
        db.execute(_ADD, (org, file_bytes, files_pending, log_bytes, event_bytes))
        # Delete empty rows, so that the file does not depend on how the log is split into batches.
        db.execute(_DELETE_EMPTY, (org,))


def stored_bytes(db: sqlite3.Connection, org: str) -> int:
    """Return the bytes of an organisation's files, as they were uploaded, and of the stored logs of its jobs."""
    row = db.execute("SELECT file_bytes + log_bytes FROM org_totals WHERE org = ?", (org,)).fetchone()
    return row[0] if row else 0


def pending_files(db: sqlite3.Connection, org: str) -> int:
    """Return how many of an organisation's files are uploaded and not checked yet."""
    row = db.execute("SELECT files_pending FROM org_totals WHERE org = ?", (org,)).fetchone()
    return row[0] if row else 0


def event_bytes(db: sqlite3.Connection, org: str) -> int:
    """Return the bytes of an organisation's events in the log, with deleted items that are not erased yet."""
    kept = db.execute("SELECT event_bytes FROM org_totals WHERE org = ?", (org,)).fetchone()
    deleted = db.execute("SELECT COALESCE(SUM(bytes), 0) FROM unerased WHERE org = ?", (org,)).fetchone()
    return (kept[0] if kept else 0) + deleted[0]


def add_unerased(db: sqlite3.Connection, org: str, id: str, *, size: int) -> None:
    """Count bytes in the log of a job or a file that does not exist."""
    if size:
        db.execute(_ADD_UNERASED, (id, org, size))


def note_deleted(db: sqlite3.Connection, id: str, seq: int) -> None:
    """Note the sequence of a deletion, before which all events of the job or file will be erased."""
    db.execute("UPDATE unerased SET deleted = ? WHERE id = ?", (seq, id))


def unerased(db: sqlite3.Connection, *, limit: int) -> list[tuple[str, str, int]]:
    """Return some deleted jobs and files with bytes in the log: organisation, id, sequence of the deletion."""
    # Choose them at random, because the first ones may have to wait for long.
    query = "SELECT org, id, deleted FROM unerased WHERE deleted > 0 ORDER BY random() LIMIT ?"
    return db.execute(query, (limit,)).fetchall()


def note_erased(db: sqlite3.Connection, id: str, *, deleted: int) -> None:
    """Stop counting a deleted job or file, unless it was deleted again since."""
    db.execute("DELETE FROM unerased WHERE id = ? AND deleted = ?", (id, deleted))
