"""The SQLite file of the read model: opening it, deleting it, and checking its content.

Invariant. `totals` holds for each table the number of its rows and the sum of their digests; triggers update it in the
transactions that change the rows. SQLite itself detects a broken tree, but not a changed value, nor a page of an older
file or of another cluster's: the sums detect these.
"""

from __future__ import annotations

import sqlite3
import time
import zlib
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from functools import cache
from pathlib import Path

#: Primary codes of SQLite that are no sign of damage: the file cannot be opened, is locked, or has no room.
_NO_DAMAGE = frozenset({3, 5, 6, 7, 8, 9, 10, 13, 14, 23})
#: Extended codes of these kinds that are a sign of damage: the file is too short, or is not at its path any more.
_DAMAGE = frozenset({522, 1032})
_FULL, _CANNOT_WRITE = 13, 778

#: The exceptions of reading a damaged file, in which text may be invalid too.
ReadError = (sqlite3.Error, UnicodeError)

TOTALS = "totals"
_BUSY_MS = 5000
#: Instructions of SQLite's machine between two checks of the clock: about a millisecond.
_INSTRUCTIONS = 10_000


def connect(path: Path, *, stream: str = "") -> sqlite3.Connection:
    """Open or create the file. stream: the log that it belongs to; its digests are valid only for that log."""
    db = sqlite3.connect(path, isolation_level=None, timeout=_BUSY_MS / 1e3)
    db.execute("PRAGMA journal_mode = WAL")
    # This protects against a killed process; after a power cut the tail is projected again.
    db.execute("PRAGMA synchronous = NORMAL")
    # Deleted content is overwritten, so that it can be erased.
    db.execute("PRAGMA secure_delete = ON")
    # The triggers must count a row that `INSERT OR REPLACE` removes.
    db.execute("PRAGMA recursive_triggers = ON")
    set_stream(db, stream)
    return db


@contextmanager
def reading(path: Path, seconds: float) -> Generator[sqlite3.Connection]:
    """Open the file to read it, also from another thread than the writer's.

    Raises `TimeoutError` if a query takes longer than `seconds`.
    """
    ends = time.monotonic() + seconds
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None, timeout=_BUSY_MS / 1e3)
    db.set_progress_handler(lambda: time.monotonic() > ends, _INSTRUCTIONS)
    try:
        yield db
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
            raise TimeoutError(f"a query of the read model took more than {seconds:g} s") from error
        raise
    finally:
        db.close()


def empty_log(db: sqlite3.Connection) -> bool:
    """Move all writes into the file itself, and empty its log; return False while the file is read."""
    # Do not wait for the reader, which is a check of the file.
    db.execute("PRAGMA busy_timeout = 0")
    try:
        busy, _, _ = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.OperationalError:
        return False
    finally:
        db.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
    return not busy


def set_stream(db: sqlite3.Connection, stream: str) -> None:
    """Set the log that the file belongs to."""
    salt = zlib.crc32(stream.encode())

    def row_digest(*values: object) -> int:
        digest = salt
        for value in values:
            digest = zlib.crc32(value if isinstance(value, bytes) else repr(value).encode(), digest)
        return digest

    db.create_function("row_digest", -1, row_digest, deterministic=True)


def delete(path: Path) -> None:
    """Delete the file, with SQLite's files beside it."""
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def copy(path: Path, to: Path) -> int:
    """Copy the file's state at one moment, also during writes; return the last sequence of the copy.

    Raises `sqlite3.Error` if the copy fails.
    """
    delete(to)
    source, target = sqlite3.connect(path), sqlite3.connect(to, isolation_level=None)
    try:
        source.backup(target)
        # Keep one file, without further files beside it.
        target.execute("PRAGMA journal_mode = DELETE")
        return target.execute("SELECT applied FROM cursor").fetchone()[0]
    finally:
        source.close()
        target.close()


def create(db: sqlite3.Connection, schema: str, tables: Iterable[str]) -> None:
    """Create the tables of a new file, `totals`, and the triggers that update it."""
    for statement in schema.split(";"):
        db.execute(statement)
    db.execute(f"CREATE TABLE {TOTALS} (name TEXT PRIMARY KEY, rows INTEGER, digests INTEGER) WITHOUT ROWID")
    count_rows(db, tables)


def count_rows(db: sqlite3.Connection, tables: Iterable[str]) -> None:
    """Begin the totals of new tables, and create the triggers that update them."""
    for table in tables:
        db.execute(f"INSERT INTO {TOTALS} VALUES (?, 0, 0)", (table,))
        new, old = _digest(db, table, "NEW."), _digest(db, table, "OLD.")
        for when, rows, digests in (("INSERT", 1, new), ("DELETE", -1, f"-{old}"), ("UPDATE", 0, f"{new} - {old}")):
            db.execute(
                f"CREATE TRIGGER {table}_{when.lower()} AFTER {when} ON {table} BEGIN"
                f" UPDATE {TOTALS} SET rows = rows + ({rows}), digests = digests + ({digests})"
                f" WHERE name = '{table}'; END"
            )


def find_damage(path: Path, *, stream: str, schema: str, tables: Iterable[str]) -> str | None:
    """Return the damage of the file; None if its content is as written, and for this log. Reads the whole file.

    Raises `sqlite3.Error` if the check cannot run now: the file is locked, or there is no memory.
    """
    try:
        # The read-only mode does not create a missing file.
        db = sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)
    except sqlite3.Error as error:
        return str(error)
    try:
        set_stream(db, stream)
        # Read one state of the file, also during writes.
        db.execute("BEGIN")
        result = db.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if result != "ok":
            return str(result)
        if _definitions(db) != _expected(schema, tuple(tables)):
            return "its tables are not those that were made"
        totals = {name: (rows, digests) for name, rows, digests in db.execute(f"SELECT * FROM {TOTALS}")}
        for table in tables:
            is_there = db.execute(f"SELECT count(*), coalesce(sum({_digest(db, table)}), 0) FROM {table}").fetchone()
            if is_there != totals.get(table):
                return f"the rows of {table} are not those that were written"
    except ReadError as error:
        if not is_damage(error):
            raise
        return str(error)
    finally:
        db.close()
    return None


def is_damage(error: BaseException) -> bool:
    """Return whether an error may come from the content of the file."""
    code = _code(error)
    return isinstance(error, ReadError) and (code in _DAMAGE or (code & 0xFF) not in _NO_DAMAGE)


def is_no_space(error: BaseException) -> bool:
    """Return whether the disk had no room for a write."""
    return _code(error) in (_FULL, _CANNOT_WRITE)


def _code(error: BaseException) -> int:
    return getattr(error, "sqlite_errorcode", None) or 0


def _definitions(db: sqlite3.Connection) -> list[tuple[object, ...]]:
    return db.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name").fetchall()


@cache
def _expected(schema: str, tables: tuple[str, ...]) -> list[tuple[object, ...]]:
    db = sqlite3.connect(":memory:")
    try:
        create(db, schema, tables)
        return _definitions(db)
    finally:
        db.close()


def _digest(db: sqlite3.Connection, table: str, prefix: str = "") -> str:
    columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
    return f"row_digest('{table}', {', '.join(prefix + column for column in columns)})"
