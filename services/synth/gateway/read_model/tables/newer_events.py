"""The events that the read model could not read, because a newer version wrote them.

The model continues without their content, since an API that stands still would be worse, and the gateway reports them.
The first version that opens the file and can read one of them projects the log again. So does a version that finds that
the log no longer has such an event: it has expired, or `synthd bus newer --drop` removed it.
"""

from __future__ import annotations

import sqlite3

from synth.bus.recorded import Recorded, UnknownEvent
from synth.events.catalogue import CATALOGUE
from synth.gateway import metrics
from synth.runtime import logs

log = logs.get("read model")

#: Kinds of events that `/healthz` names; `synthd bus newer` lists every event.
_SHOWN = 10

SCHEMA = """
CREATE TABLE newer (
    type TEXT NOT NULL, version INTEGER NOT NULL, first INTEGER NOT NULL, PRIMARY KEY (type, version)
) WITHOUT ROWID;
"""


def note(db: sqlite3.Connection, recorded: Recorded) -> None:
    """Record an event that a newer version wrote, and ignore any other event."""
    event: object = recorded.event
    if not (isinstance(event, UnknownEvent) and event.newer):
        return
    metrics.NEWER_EVENTS.inc()
    values = (recorded.type, recorded.schema, recorded.seq)
    if db.execute("INSERT OR IGNORE INTO newer VALUES (?, ?, ?)", values).rowcount:
        log.error("an event of a newer version is not shown", type=recorded.type, schema=recorded.schema)


def can_read_more(db: sqlite3.Connection) -> bool:
    """Return whether this version can read an event that an earlier version left out."""
    result = db.execute("SELECT type, version FROM newer").fetchall()
    return any(type in CATALOGUE and version <= CATALOGUE[type].version for type, version in result)


def first_left_out(db: sqlite3.Connection) -> int | None:
    """Return the sequence of the first event that was left out; None if the model has the whole log."""
    (first,) = db.execute("SELECT MIN(first) FROM newer").fetchone()
    return first


def problem(db: sqlite3.Connection) -> str | None:
    """Return the events that are left out, for `/healthz`; None if the model has the whole log."""
    (kinds,) = db.execute("SELECT COUNT(*) FROM newer").fetchone()
    if not kinds:
        return None
    rows = db.execute("SELECT type, version, first FROM newer ORDER BY first LIMIT ?", (_SHOWN,)).fetchall()
    # Show only some kinds, because a release may have many new ones.
    shown = ", ".join(f"{type} (schema {version}, since {first})" for type, version, first in rows)
    more = f" and {kinds - len(rows)} more kinds" if kinds > len(rows) else ""
    return (
        f"events of a newer version are not shown: {shown}{more}; upgrade this gateway, which then reads the log again"
    )
