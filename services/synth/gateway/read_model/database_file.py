"""The SQLite file of the read model: how it is opened, and what becomes of a damaged one."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from synth.runtime import logs

log = logs.get("read model")


def connect(path: Path) -> sqlite3.Connection:
    """Open the file, or make it."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    # Enough against a killed process; after a power cut the tail is projected again.
    db.execute("PRAGMA synchronous = NORMAL")
    return db


def replace_damaged(path: Path, error: sqlite3.DatabaseError) -> sqlite3.Connection:
    """A new file in place of a damaged one; raises `error` again when it is of another kind (locked, no space)."""
    if isinstance(error, sqlite3.OperationalError):
        raise error
    log.warning("read model is damaged, projecting again", path=str(path), error=str(error))
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    return connect(path)
