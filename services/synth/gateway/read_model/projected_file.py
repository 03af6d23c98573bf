"""A file that is projected from the log: whether it can be continued, and its position.

Invariants. A file of another log (the stream was created at another time, is shorter, or has another event in the place
of the file's last one), of another version of the schema, or with changed content is deleted; its snapshot replaces it
if the snapshot is sound (`synth.gateway.read_model.snapshot`). A commit checks its start position and sets its end
position, so two processes cannot write one file.
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
    """The newest event in the model that stays in the log for ever; a log with this event is the model's own.

    sign: distinguishes it from another event of the same sequence.
    """

    seq: int
    sign: str


class ProjectedFile:
    """One SQLite file, and its position in the log."""

    def __init__(self, path: Path, *, version: int, schema: str, tables: Sequence[str]) -> None:
        self._path = path
        self._version = version
        self._schema = _CURSOR + schema
        self._tables = ("cursor", *tables)
        self._stream = ""
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._db = database_file.connect(path)
            # A file that is no database raises at its first read.
            self._db.execute("PRAGMA user_version")
        except database_file.ReadError as error:
            if not database_file.is_damage(error):
                raise
            log.warning("read model is damaged, projecting again", path=str(path), error=str(error))
            database_file.delete(path)
            self._db = database_file.connect(path)
        # A killed process may have left this file.
        database_file.delete(self.unfinished_snapshot)
        self.applied = 0
        """The sequence up to which the log is in the model."""
        self.emptied = 0
        """How often the file was started again."""
        self._leftovers = True
        self.deletions = 0
        """How many items were deleted that no copy of the file may contain."""
        self.snapshot_applied: int | None = None
        """The last sequence of this process's snapshot; None if there is no such snapshot."""

    @property
    def path(self) -> Path:
        """Return the path of the file."""
        return self._path

    @property
    def snapshot_path(self) -> Path:
        """Return the path of the file's snapshot, even if there is none."""
        return Path(f"{self._path}.snapshot")

    @property
    def unfinished_snapshot(self) -> Path:
        """Return the path of the next snapshot during its creation."""
        return Path(f"{self.snapshot_path}.new")

    def mark(self) -> Mark | None:
        """Return the model's mark in its log; None for a new file, and for a damaged file."""
        try:
            known = self._known(self._db)
        except database_file.ReadError as error:
            if not database_file.is_damage(error):
                raise
            return None
        return Mark(known[2], known[3]) if known is not None and known[2] else None

    def snapshot_mark(self) -> Mark | None:
        """Return the snapshot's mark in its log; None without a snapshot, and for a damaged one."""
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
        """Continue with the file if it is sound and of this log, else with its snapshot, else empty it.

        stream: identifies the log; last_seq: the log's last sequence now; mark_holds: whether the log has the event of
        `mark`; snapshot_mark_holds: whether it has the event of `snapshot_mark`. Projection continues after that event:
        later events expire, so they may be another log's.
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
        """Return the identity of this model's log."""
        return self._stream

    def find_damage(self, path: Path | None = None) -> str | None:
        """Return the damage of the file, or of a copy at `path`; None if there is none.

        Reads the whole file; may be called on another thread.
        """
        return database_file.find_damage(
            path or self._path, stream=self._stream, schema=self._schema, tables=self._tables
        )

    def empty(self, *, from_snapshot: bool = False) -> None:
        """Begin a new file, which needs the whole log, or continue from the snapshot, which needs the later events."""
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
        """Return the connection to the file, for the modules of this package."""
        return self._db

    def remove_leftovers(self) -> None:
        """Remove deleted content from the log beside the file; if the file is read now, the next call removes it."""
        if self._leftovers:
            self._leftovers = not database_file.empty_log(self._db)

    def note_deletion(self) -> None:
        """Note a deletion, and remove the snapshot, which contains the deleted content."""
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
        """Return whether this version has projected every event of the file that it can read."""
        return True

    def _move(self, reached: int, newest: Recorded | None) -> None:
        """Note the position up to which the log is applied. newest: the last new event that the log keeps for ever.

        Raises `Permanent` if another process writes this file.
        """
        moved = self._db.execute("UPDATE cursor SET applied = ? WHERE applied = ?", (reached, self.applied))
        if moved.rowcount != 1:
            raise Permanent(f"another gateway writes {self._path}; give each its own file with SYNTH_READ_MODEL_PATH")
        if newest is not None:
            self._db.execute("UPDATE cursor SET mark_seq = ?, mark = ?", (newest.seq, newest.sign))

    def _known(self, db: sqlite3.Connection) -> tuple[int, str, int, str] | None:
        """Return (applied, stream, mark) of a file of this version; None for a new file."""
        if db.execute("PRAGMA user_version").fetchone()[0] != self._version:
            return None
        return db.execute("SELECT applied, stream, mark_seq, mark FROM cursor").fetchone()

    def _why_not(self, stream: str, last_seq: int, mark_holds: bool) -> str | None:
        """Return why the file cannot be continued; "" for a new file, None if it can."""
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
