"""The ledger: a record of the bus's acknowledged messages, in a file outside the bus's own store.

It has a digest for each event of the log, in blocks of sequences, the revision and a digest for each key of a bucket,
and a digest, the time and the subject of each dead letter and audit record. A digest of 0 stands for a message that may
be missing: it expires, was erased, or never existed. The file is checked against its own digests like the read model's;
a damaged one is replaced by a new ledger of the bus's content.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from synth.bus.server.topology import EVENTS
from synth.gateway.read_model import database_file
from synth.runtime import logs

log = logs.get("ledger")

#: The number of sequences in a block.
BLOCK = 1024
#: The numbers of a dead letter or an audit record: its digest, its time in seconds, and a digest of its subject.
WIDTH = 3
#: The ledger of versions that recorded neither dead letters nor audit records.
_EARLIER_SCHEMA = """
CREATE TABLE streams (
    name TEXT PRIMARY KEY, restored TEXT NOT NULL, reached INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE blocks (first INTEGER PRIMARY KEY, digests BLOB NOT NULL);
CREATE TABLE keys (
    stream TEXT NOT NULL, subject TEXT NOT NULL, revision INTEGER NOT NULL, digest INTEGER NOT NULL,
    PRIMARY KEY (stream, subject)
) WITHOUT ROWID"""
_EARLIER_TABLES = ("streams", "blocks", "keys")
_RECORDS = """
CREATE TABLE records (
    stream TEXT NOT NULL, first INTEGER NOT NULL, numbers BLOB NOT NULL, PRIMARY KEY (stream, first)
) WITHOUT ROWID"""
_SCHEMA = f"{_EARLIER_SCHEMA};{_RECORDS}"
_TABLES = (*_EARLIER_TABLES, "records")


class KnownStream(NamedTuple):
    """A stream that the ledger records. restored: the id of the restore that made it, or "".

    reached: the sequence up to which the ledger has it.
    """

    restored: str
    reached: int = 0


class Revision(NamedTuple):
    """The last message of a key."""

    seq: int
    digest: int


class LedgerFile:
    """The SQLite file of one gateway's ledger."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        is_earlier = path.exists() and _find_damage(path, _EARLIER_SCHEMA, _EARLIER_TABLES) is None
        if path.exists() and not is_earlier and (damage := _find_damage(path, _SCHEMA, _TABLES)):
            log.error("the ledger is damaged, and begun again", path=str(path), damage=damage)
            database_file.delete(path)
        is_new = not path.exists()
        self._db = database_file.connect(path)
        if is_new:
            self._db.execute("BEGIN IMMEDIATE")
            database_file.create(self._db, _SCHEMA, _TABLES)
            self._db.execute("COMMIT")
        elif is_earlier:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute(_RECORDS)
            database_file.count_rows(self._db, ("records",))
            self._db.execute("COMMIT")

    @property
    def path(self) -> Path:
        """Return the path of the file."""
        return self._path

    def stream(self, name: str) -> KnownStream | None:
        """Return the record of a stream; None for a new stream."""
        row = self._db.execute("SELECT restored, reached FROM streams WHERE name = ?", (name,)).fetchone()
        return KnownStream(*row) if row else None

    def begin(self, name: str, known: KnownStream) -> None:
        """Begin the record of a stream, and forget an earlier stream of its name."""
        self._db.execute("BEGIN IMMEDIATE")
        self._db.execute("INSERT OR REPLACE INTO streams VALUES (?, ?, ?)", (name, *known))
        self._db.execute("DELETE FROM keys WHERE stream = ?", (name,))
        self._db.execute("DELETE FROM records WHERE stream = ?", (name,))
        if name == EVENTS:
            self._db.execute("DELETE FROM blocks")
        self._db.execute("COMMIT")

    def block(self, first: int) -> array[int]:
        """Return the digests of a block of the log."""
        row = self._db.execute("SELECT digests FROM blocks WHERE first = ?", (first,)).fetchone()
        return array("I", row[0] if row else bytes(4 * BLOCK))

    def put_block(self, first: int, digests: array[int], *, reached: int) -> None:
        """Store the digests of a block. reached: the sequence up to which the ledger then has the log."""
        self._db.execute("BEGIN IMMEDIATE")
        self._db.execute("INSERT OR REPLACE INTO blocks VALUES (?, ?)", (first, digests.tobytes()))
        self._db.execute("UPDATE streams SET reached = max(reached, ?) WHERE name = ?", (reached, EVENTS))
        self._db.execute("COMMIT")

    def records(self, stream: str, first: int) -> array[int]:
        """Return the numbers of a block of dead letters or audit records."""
        row = self._db.execute("SELECT numbers FROM records WHERE stream = ? AND first = ?", (stream, first)).fetchone()
        return array("I", row[0] if row else bytes(4 * WIDTH * BLOCK))

    def put_records(self, stream: str, first: int, numbers: array[int], *, reached: int) -> None:
        """Store the numbers of a block. reached: the sequence up to which the ledger then has the stream."""
        self._db.execute("BEGIN IMMEDIATE")
        self._db.execute("INSERT OR REPLACE INTO records VALUES (?, ?, ?)", (stream, first, numbers.tobytes()))
        self._db.execute("UPDATE streams SET reached = max(reached, ?) WHERE name = ?", (reached, stream))
        self._db.execute("COMMIT")

    def keys(self, stream: str) -> dict[str, Revision]:
        """Return the last message of each key of a bucket, by its subject."""
        rows = self._db.execute("SELECT subject, revision, digest FROM keys WHERE stream = ?", (stream,)).fetchall()
        return {subject: Revision(seq, digest) for subject, seq, digest in rows}

    def put_keys(self, stream: str, changed: Mapping[str, Revision], *, gone: Iterable[str] = (), reached: int) -> None:
        """Store the last messages of keys. gone: subjects that were erased."""
        self._db.execute("BEGIN IMMEDIATE")
        self._db.executemany("DELETE FROM keys WHERE stream = ? AND subject = ?", [(stream, s) for s in gone])
        rows = [(stream, subject, *revision) for subject, revision in changed.items()]
        self._db.executemany("INSERT OR REPLACE INTO keys VALUES (?, ?, ?, ?)", rows)
        self._db.execute("UPDATE streams SET reached = max(reached, ?) WHERE name = ?", (reached, stream))
        self._db.execute("COMMIT")

    def close(self) -> None:
        """Close the file."""
        self._db.close()


def _find_damage(path: Path, schema: str, tables: tuple[str, ...]) -> str | None:
    return database_file.find_damage(path, stream="", schema=schema, tables=tables)
