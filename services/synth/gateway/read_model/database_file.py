"""The SQLite file of the read model: how it is opened, thrown away, and compared with what was written into it.

Invariant. `totals` holds for each table how many rows it has and the sum of their digests; triggers keep it in the
transactions that change the rows. SQLite itself notices a tree that is torn, but not a value that another one stands
for, nor a page of an older file or of another cluster's: the sums differ then.
"""

from __future__ import annotations

import sqlite3
import time
import zlib
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from functools import cache
from pathlib import Path

#: Primary codes of SQLite that say nothing of the bytes in the file: it may not be opened, is locked, or has no room.
_NO_DAMAGE = frozenset({3, 5, 6, 7, 8, 9, 10, 13, 14, 23})
#: Codes of these kinds that do: it is shorter than it says, it is not where it was.
_DAMAGE = frozenset({522, 1032})
_FULL, _CANNOT_WRITE = 13, 778

#: What reading a file may raise whose bytes are not those that were written: text, too, may be none.
ReadError = (sqlite3.Error, UnicodeError)

TOTALS = "totals"
_BUSY_MS = 5000
#: Of SQLite's machine between two looks at the clock: about a millisecond.
_INSTRUCTIONS = 10_000


def connect(path: Path, *, stream: str = "") -> sqlite3.Connection:
    """Open the file, or make it. stream: of which log it is; a digest counts for that log alone."""
    db = sqlite3.connect(path, isolation_level=None, timeout=_BUSY_MS / 1e3)
    db.execute("PRAGMA journal_mode = WAL")
    # Enough against a killed process; after a power cut the tail is projected again.
    db.execute("PRAGMA synchronous = NORMAL")
    # What is deleted is overwritten, so that it can be erased.
    db.execute("PRAGMA secure_delete = ON")
    # What `INSERT OR REPLACE` removes is a row less.
    db.execute("PRAGMA recursive_triggers = ON")
    set_stream(db, stream)
    return db


@contextmanager
def reading(path: Path, seconds: float) -> Generator[sqlite3.Connection]:
    """Open the file to read it, also from another thread than the writer's.

    Raises `TimeoutError` where a query goes on after `seconds`.
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
    """Bring all that was written into the file itself, and leave nothing of it beside it; False while it is read."""
    # The reader is a check of the file: it is not waited for.
    db.execute("PRAGMA busy_timeout = 0")
    try:
        busy, _, _ = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.OperationalError:
        return False
    finally:
        db.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
    return not busy


def set_stream(db: sqlite3.Connection, stream: str) -> None:
    """Say which log the file is of."""
    salt = zlib.crc32(stream.encode())

    def row_digest(*values: object) -> int:
        digest = salt
        for value in values:
            digest = zlib.crc32(value if isinstance(value, bytes) else repr(value).encode(), digest)
        return digest

    db.create_function("row_digest", -1, row_digest, deterministic=True)


def delete(path: Path) -> None:
    """Throw the file away, with what SQLite keeps beside it."""
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def copy(path: Path, to: Path) -> int:
    """Copy the file as it is at one moment, while it is written; returns the sequence up to which the copy goes.

    Raises `sqlite3.Error` where that cannot be done.
    """
    delete(to)
    source, target = sqlite3.connect(path), sqlite3.connect(to, isolation_level=None)
    try:
        source.backup(target)
        # One file, with nothing beside it.
        target.execute("PRAGMA journal_mode = DELETE")
        return target.execute("SELECT applied FROM cursor").fetchone()[0]
    finally:
        source.close()
        target.close()


def create(db: sqlite3.Connection, schema: str, tables: Iterable[str]) -> None:
    """Make the tables of a new file, `totals`, and the triggers that keep it."""
    for statement in schema.split(";"):
        db.execute(statement)
    db.execute(f"CREATE TABLE {TOTALS} (name TEXT PRIMARY KEY, rows INTEGER, digests INTEGER) WITHOUT ROWID")
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
    """What is wrong with the file; None when it holds what was written into it for this log. Reads all of it.

    Raises `sqlite3.Error` when that cannot be said now: the file is locked, or there is no memory.
    """
    try:
        # Where it is not, it is not made.
        db = sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)
    except sqlite3.Error as error:
        return str(error)
    try:
        set_stream(db, stream)
        # One moment of the file, whatever is written meanwhile.
        db.execute("BEGIN")
        found = db.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if found != "ok":
            return str(found)
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
    """Whether an error may come from what is in the file."""
    code = _code(error)
    return isinstance(error, ReadError) and (code in _DAMAGE or (code & 0xFF) not in _NO_DAMAGE)


def is_no_space(error: BaseException) -> bool:
    """Whether the disk could not take what was written, for now."""
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
