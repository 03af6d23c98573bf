"""The rows that rules have kept, on disk: ranked, cleared of copies, shuffled and split there, at constant memory."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from synth.jobs.schema.filter import FilterSplitSection

_SCHEMA = """
CREATE TABLE traces (n INTEGER PRIMARY KEY, id TEXT, ranked TEXT, reward REAL, stratum TEXT, draw INTEGER);
CREATE TABLE rows (id INTEGER PRIMARY KEY, trace INTEGER, draw INTEGER, digest BLOB, line BLOB);
CREATE INDEX rows_of_trace ON rows (trace);
CREATE TABLE chosen (place INTEGER PRIMARY KEY, row INTEGER, trace INTEGER, validation INTEGER DEFAULT 0);
"""


class Spool:
    """One SQLite file that nobody else reads. It need not outlive the process."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = OFF")
        self._db.execute("PRAGMA synchronous = OFF")
        self._db.executescript(_SCHEMA)
        self._db.execute("BEGIN")
        self.traces = 0
        self.rows = 0

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def add(
        self,
        id: str,
        rows: list[tuple[dict[str, Any], bytes]],
        *,
        ranked: str,
        reward: float | None,
        stratum: str,
        shuffle_seed: int,
        split_seed: int,
    ) -> None:
        """Add a trace and its rows: their messages, and their lines. ranked: the group in which traces are compared."""
        self.traces += 1
        n = self.traces
        self._db.execute(
            "INSERT INTO traces VALUES (?, ?, ?, ?, ?, ?)", (n, id, ranked, reward, stratum, _draw(split_seed, id))
        )
        for ordinal, (said, line) in enumerate(rows):
            self.rows += 1
            digest = hashlib.blake2b(msgspec.json.encode(said, order="deterministic"), digest_size=16).digest()
            draw = _draw(shuffle_seed, f"{id}:{ordinal}")
            self._db.execute("INSERT INTO rows VALUES (?, ?, ?, ?, ?)", (self.rows, n, draw, digest, line))

    def drop_copies(self) -> int:
        """Of rows that say the same, keep the one with the highest reward, and then the first. Returns how many go."""
        ranked = (
            "SELECT rows.id AS id,"
            " ROW_NUMBER() OVER (PARTITION BY digest ORDER BY reward DESC NULLS LAST, rows.id) AS k"
            " FROM rows JOIN traces ON n = trace"
        )
        dropped = self._db.execute(f"DELETE FROM rows WHERE id IN (SELECT id FROM ({ranked}) WHERE k > 1)").rowcount
        self._db.execute("DELETE FROM traces WHERE n NOT IN (SELECT trace FROM rows)")
        return dropped

    def keep_best(self, k: int) -> int:
        """Of each ranked group, keep the `k` traces with the highest rewards. Returns how many traces go."""
        order = "ROW_NUMBER() OVER (PARTITION BY ranked ORDER BY reward DESC NULLS LAST, n) AS k"
        ranked = f"SELECT n, {order} FROM traces"
        count = self._db.execute(f"DELETE FROM traces WHERE n IN (SELECT n FROM ({ranked}) WHERE k > ?)", (k,)).rowcount
        self._db.execute("DELETE FROM rows WHERE trace NOT IN (SELECT n FROM traces)")
        return count

    def choose(self, *, shuffle: bool, offset: int, limit: int | None) -> int:
        """Put the rows in their order and cut it; returns how many there are."""
        order = "draw, id" if shuffle else "id"
        self._db.execute(
            f"INSERT INTO chosen (row, trace) SELECT id, trace FROM rows ORDER BY {order} LIMIT ? OFFSET ?",
            (-1 if limit is None else limit, offset),
        )
        return self._count("SELECT COUNT(*) FROM chosen")

    def split(self, rules: FilterSplitSection) -> int:
        """Put some of the chosen traces aside for validation; returns how many rows that are."""
        ranked = (
            "SELECT n, ROW_NUMBER() OVER (PARTITION BY stratum ORDER BY draw, n) AS k,"
            " COUNT(*) OVER (PARTITION BY stratum) AS size FROM traces WHERE n IN (SELECT trace FROM chosen)"
        )
        aside = f"SELECT n FROM ({ranked}) WHERE k <= ROUND(? * size)"
        self._db.execute(f"UPDATE chosen SET validation = 1 WHERE trace IN ({aside})", (rules.val_fraction,))
        return self._count("SELECT COUNT(*) FROM chosen WHERE validation")

    def lines(self, *, validation: bool = False) -> Iterator[bytes]:
        """Yield the chosen rows in their order."""
        query = "SELECT row FROM chosen WHERE validation = ? ORDER BY place"
        for (row,) in self._db.execute(query, (validation,)):
            yield self._db.execute("SELECT line FROM rows WHERE id = ?", (row,)).fetchone()[0]

    def kept_ids(self) -> Iterator[str]:
        """Return the traces that have chosen rows, in the order in which they came."""
        query = "SELECT id FROM traces WHERE n IN (SELECT trace FROM chosen) ORDER BY n"
        return (id for (id,) in self._db.execute(query))

    def kept_traces(self) -> int:
        """Return the number of traces that have chosen rows."""
        return self._count("SELECT COUNT(DISTINCT trace) FROM chosen")

    def _count(self, query: str) -> int:
        return self._db.execute(query).fetchone()[0]


def _draw(seed: int, name: str) -> int:
    """Return a number that looks random and is the same each time."""
    return int.from_bytes(hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest(), "big", signed=True)
