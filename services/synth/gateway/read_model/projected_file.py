"""A file that is projected from the log: whether it can be gone on with, and where it stands.

Invariants. A file of another log (its stream was made at another time, is shorter, or has another event where the
file's last one was), of another version of the schema, or that does not hold what was written into it, is thrown away;
its snapshot takes its place where that is sound (`synth.gateway.read_model.snapshot`).
A commit says from where to where it goes, so two processes cannot write one file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from synth.bus.recorded import Recorded
from synth.errors import Permanent
from synth.gateway.read_model import database_file
from synth.runtime import logs

log = logs.get("read model")

_CURSOR = """
CREATE TABLE cursor (
    applied INTEGER NOT NULL, stream TEXT NOT NULL, mark_seq INTEGER NOT NULL, mark TEXT NOT NULL
);
"""


class Mark(NamedTuple):
    """The newest event in the model that stays in the log for ever; the log that has it is the model's own.

    sign: what tells it from another event of the same sequence.
    """

    seq: int
    sign: str


class ProjectedFile:
    """One SQLite file, and where in the log it stands."""

    def __init__(self, path: Path, *, version: int, schema: str, tables: Sequence[str]) -> None:
        self._path = path
        self._version = version
        self._schema = _CURSOR + schema
        self._tables = ("cursor", *tables)
        self._stream = ""
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._db = database_file.connect(path)
            # What is no database says so at the first read.
            self._db.execute("PRAGMA user_version")
        except database_file.ReadError as error:
            if not database_file.is_damage(error):
                raise
            log.warning("read model is damaged, projecting again", path=str(path), error=str(error))
            database_file.delete(path)
            self._db = database_file.connect(path)
        # Of a process that was killed.
        database_file.delete(self.unfinished_snapshot)
        self.applied = 0
        """The sequence up to which the log is in the model."""
        self.emptied = 0
        """How often the file was begun anew."""
        self._leftovers = True
        self.deletions = 0
        """How often something was deleted that no copy of the file may hold."""
        self.snapshot_applied: int | None = None
        """The sequence up to which the snapshot goes that this process made; None where it made none that is left."""

    @property
    def path(self) -> Path:
        """Of the file."""
        return self._path

    @property
    def snapshot_path(self) -> Path:
        """Where a copy of the file is, or would be."""
        return Path(f"{self._path}.snapshot")

    @property
    def unfinished_snapshot(self) -> Path:
        """Where the next snapshot is while it is made."""
        return Path(f"{self.snapshot_path}.new")

    def mark(self) -> Mark | None:
        """Where the model stands in its log; None in a new file, and in one that cannot say it."""
        try:
            known = self._known(self._db)
        except database_file.ReadError as error:
            if not database_file.is_damage(error):
                raise
            return None
        return Mark(known[2], known[3]) if known is not None and known[2] else None

    def snapshot_mark(self) -> Mark | None:
        """Where the snapshot stands in its log; None where there is none, or none that can say it."""
        if not self.snapshot_path.exists():
            return None
        db = sqlite3.connect(self.snapshot_path)
        try:
            known = self._known(db)
        except database_file.ReadError:
            return None
        finally:
            db.close()
        return Mark(known[2], known[3]) if known is not None and known[2] else None

    def prepare(
        self, *, stream: str, last_seq: int, mark_holds: bool = True, snapshot_mark_holds: bool = False
    ) -> None:
        """Go on with the file when it is sound and of this log, else with its snapshot, else empty it.

        stream: what tells one log from another; last_seq: the log's last sequence now; mark_holds: whether the log has
        the event of `mark`; snapshot_mark_holds: that of `snapshot_mark`. Goes on behind that event: what came after it
        expires, so it may be another log's.
        """
        self._stream = stream
        database_file.set_stream(self._db, stream)
        reason = self._why_not(stream, last_seq, mark_holds)
        if reason is not None:
            if reason:
                log.warning("projecting the log again", path=str(self._path), reason=reason)
            sound = snapshot_mark_holds and self.find_damage(self.snapshot_path) is None
            self.empty(from_snapshot=sound)
            return
        self._go_on()

    @property
    def stream(self) -> str:
        """What tells this model's log from another one."""
        return self._stream

    def find_damage(self, path: Path | None = None) -> str | None:
        """What is wrong with the file, or with a copy at `path`; None when nothing is.

        Reads all of it; may be called on another thread.
        """
        return database_file.find_damage(
            path or self._path, stream=self._stream, schema=self._schema, tables=self._tables
        )

    def empty(self, *, from_snapshot: bool = False) -> None:
        """Begin with a new file: the whole log is to be projected; from the snapshot, what came after it."""
        self._db.close()
        database_file.delete(self._path)
        self.emptied += 1
        self.snapshot_applied = None
        if from_snapshot:
            self.snapshot_path.replace(self._path)
            self._db = database_file.connect(self._path, stream=self._stream)
            if self._sees_all():
                self._go_on()
                log.info("the read model goes on from its snapshot", path=str(self._path), applied=self.applied)
                return
            self._db.close()
            database_file.delete(self._path)
        database_file.delete(self.snapshot_path)
        self._db = database_file.connect(self._path, stream=self._stream)
        self._db.execute("BEGIN IMMEDIATE")
        database_file.create(self._db, self._schema, self._tables)
        self._db.execute(f"PRAGMA user_version = {self._version}")
        self._db.execute("INSERT INTO cursor VALUES (0, ?, 0, '')", (self._stream,))
        self._db.execute("COMMIT")
        self.applied = 0

    @property
    def db(self) -> sqlite3.Connection:
        """The file, for the modules beside this one."""
        return self._db

    def remove_leftovers(self) -> None:
        """Have nothing of what was deleted lie beside the file; while it is read, the next call does it."""
        if self._leftovers:
            self._leftovers = not database_file.empty_log(self._db)

    def note_deletion(self) -> None:
        """Have no copy hold what is being deleted."""
        self._leftovers = True
        self.deletions += 1
        self.snapshot_applied = None
        database_file.delete(self.snapshot_path)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _go_on(self) -> None:
        self._db.execute("UPDATE cursor SET applied = mark_seq WHERE mark_seq > 0")
        self.applied = self._db.execute("SELECT applied FROM cursor").fetchone()[0]

    def _sees_all(self) -> bool:
        """Whether this version has projected all of the file's events that it can read."""
        return True

    def _move(self, reached: int, newest: Recorded | None) -> None:
        """Note how far the log is applied. newest: the last event of these that the log keeps for ever.

        Raises `Permanent` when another process writes this file.
        """
        moved = self._db.execute("UPDATE cursor SET applied = ? WHERE applied = ?", (reached, self.applied))
        if moved.rowcount != 1:
            raise Permanent(f"another gateway writes {self._path}; give each its own file with SYNTH_READ_MODEL_PATH")
        if newest is not None:
            self._db.execute("UPDATE cursor SET mark_seq = ?, mark = ?", (newest.seq, newest.sign))

    def _known(self, db: sqlite3.Connection) -> tuple[int, str, int, str] | None:
        """(applied, stream, mark) of a file of this version; None for a new file."""
        if db.execute("PRAGMA user_version").fetchone()[0] != self._version:
            return None
        return db.execute("SELECT applied, stream, mark_seq, mark FROM cursor").fetchone()

    def _why_not(self, stream: str, last_seq: int, mark_holds: bool) -> str | None:
        """Why the file cannot be gone on with; "" for a new one, None when it can."""
        try:
            known = self._known(self._db)
        except database_file.ReadError as error:
            if not database_file.is_damage(error):
                raise
            return str(error)
        if known is None:
            return ""
        if known[1] != stream or known[0] > last_seq or not mark_holds:
            return f"the log is another one than the read model's, which ended at {known[0]}"
        return self.find_damage() or (None if self._sees_all() else "events of a newer version can be read now")
