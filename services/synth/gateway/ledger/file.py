"""The ledger: a record of the bus's acknowledged messages, in a file outside the bus's own store.

It has a digest for each event of the log, in blocks of sequences, and the revision and a digest for each key of a
bucket. A digest of 0 stands for a message that may be missing: it expires, was erased, or never existed. The file is
checked against its own digests like the read model's; a damaged one is replaced by a new ledger of the bus's content.
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
_SCHEMA = """
CREATE TABLE streams (
    name TEXT PRIMARY KEY, restored TEXT NOT NULL, reached INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE blocks (first INTEGER PRIMARY KEY, digests BLOB NOT NULL);
CREATE TABLE keys (
    stream TEXT NOT NULL, subject TEXT NOT NULL, revision INTEGER NOT NULL, digest INTEGER NOT NULL,
    PRIMARY KEY (stream, subject)
) WITHOUT ROWID"""
_TABLES = ("streams", "blocks", "keys")


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
        if path.exists() and (damage := database_file.find_damage(path, stream="", schema=_SCHEMA, tables=_TABLES)):
            log.error("the ledger is damaged, and begun again", path=str(path), damage=damage)
            database_file.delete(path)
        is_new = not path.exists()
        self._db = database_file.connect(path)
        if is_new:
            self._db.execute("BEGIN IMMEDIATE")
            database_file.create(self._db, _SCHEMA, _TABLES)
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
