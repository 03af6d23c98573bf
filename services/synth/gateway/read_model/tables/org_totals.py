"""What an organisation keeps, added up as it changes, because a limit is compared before each upload."""

from __future__ import annotations

import sqlite3

SCHEMA = """
CREATE TABLE org_totals (
    org TEXT PRIMARY KEY, file_bytes INTEGER NOT NULL, files_pending INTEGER NOT NULL, log_bytes INTEGER NOT NULL
) WITHOUT ROWID;
"""
_ADD = """
INSERT INTO org_totals VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET file_bytes = file_bytes + excluded.file_bytes,
    files_pending = files_pending + excluded.files_pending, log_bytes = log_bytes + excluded.log_bytes
"""

_DELETE_EMPTY = "DELETE FROM org_totals WHERE org = ? AND file_bytes = 0 AND files_pending = 0 AND log_bytes = 0"


def add(db: sqlite3.Connection, org: str, *, file_bytes: int = 0, files_pending: int = 0, log_bytes: int = 0) -> None:
    """Add to an organisation's totals; a negative number takes away."""
    if file_bytes or files_pending or log_bytes:
        db.execute(_ADD, (org, file_bytes, files_pending, log_bytes))
        # The file is the same, however the log is cut into batches.
        db.execute(_DELETE_EMPTY, (org,))


def stored_bytes(db: sqlite3.Connection, org: str) -> int:
    """Return the bytes of an organisation's files, as they were uploaded, and of the stored logs of its jobs."""
    row = db.execute("SELECT file_bytes + log_bytes FROM org_totals WHERE org = ?", (org,)).fetchone()
    return row[0] if row else 0


def pending_files(db: sqlite3.Connection, org: str) -> int:
    """Return how many of an organisation's files are uploaded and not checked yet."""
    row = db.execute("SELECT files_pending FROM org_totals WHERE org = ?", (org,)).fetchone()
    return row[0] if row else 0
