"""The metrics of jobs in the read model, by the step of their measurement and by the step of their publication.

A client that follows a job requests the points after the last step that it has seen. So a late measurement (an
evaluation of version 5 that ends during step 7) is held, and published with the next step, or after the last step at
the job's end: no point ever appears at a step that was already published.
"""

from __future__ import annotations

import itertools
import operator
import sqlite3
from datetime import datetime
from typing import Any

import msgspec

from synth.api.limits import MAX_POINTS
from synth.api.schemas import Point
from synth.bus.recorded import Recorded
from synth.events import TrainStep
from synth.gateway.presentation.vocabulary import HEADLINE_METRICS
from synth.gateway.read_model.artifacts import project_points

SCHEMA = """
CREATE TABLE metrics (
    job TEXT NOT NULL, step INTEGER NOT NULL, name TEXT NOT NULL, value REAL NOT NULL, time TEXT NOT NULL,
    published INTEGER, PRIMARY KEY (job, step, name)
) WITHOUT ROWID;
CREATE INDEX published_metrics ON metrics (job, published);
CREATE INDEX held_metrics ON metrics (job, step) WHERE published IS NULL;
"""
_RECORD = (
    "INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)"
    " ON CONFLICT DO UPDATE SET value = excluded.value, time = excluded.time"
)


class PublishedPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A point as a follower sees it. step: the step of its publication; measured: the step of its measurement."""

    name: str
    step: int
    measured: int
    value: float
    time: datetime


def record_event(db: sqlite3.Connection, recorded: Recorded, *, ended: bool) -> None:
    """Record the metrics of an event, and publish due metrics. ended: the job ended with this event or before."""
    job, event = recorded.key, recorded.event
    if isinstance(event, TrainStep) and event.step > _last_published(db, job):
        _release(db, job, at=event.step)
    step = event.step if isinstance(event, TrainStep) else None
    points = [(job, p.step, p.name, p.value, p.time.isoformat(), step) for p in project_points(recorded)]
    db.executemany(_RECORD, points)
    if ended:
        last = _last_published(db, job)
        while _release(db, job, at=last + 1):
            last += 1


def measured_points(
    db: sqlite3.Connection, job: str, *, after_step: int, name: str | None, steps: int
) -> tuple[list[Point], bool]:
    """Return a job's points of the first steps after `after_step`, ascending; and whether there are more.

    They are the points of at most `steps` steps, and at most `MAX_POINTS` points, but all of the first step.
    """
    rows = db.execute(
        "SELECT name, step, value, time FROM metrics WHERE job = ?1 AND step > ?2 AND name = coalesce(?3, name)"
        " ORDER BY step, name",
        (job, after_step, name),
    )
    points: list[Point] = []
    for _, of_step in itertools.groupby(rows, key=operator.itemgetter(1)):
        more = [Point(name=n, step=s, value=v, time=datetime.fromisoformat(t)) for n, s, v, t in of_step]
        if steps == 0 or (points and len(points) + len(more) > MAX_POINTS):
            return points, True
        points += more
        steps -= 1
    return points, False


def metric_names(db: sqlite3.Connection, job: str) -> list[str]:
    """Return the names of a job's metrics, sorted."""
    return [name for (name,) in db.execute("SELECT DISTINCT name FROM metrics WHERE job = ? ORDER BY name", (job,))]


def published_points(
    db: sqlite3.Connection,
    job: str,
    *,
    after_step: int | None,
    name: str | None,
    steps: int,
    since: datetime | None = None,
    until: datetime | None = None,
) -> list[PublishedPoint]:
    """Return the points of the first `steps` published steps after `after_step`, or of the latest ones; ascending.

    name: None for the headline metrics. since, until: only points measured from `since` on and before `until`.
    """
    names = [name] if name is not None else list(HEADLINE_METRICS)
    among = ", ".join("?" for _ in names)
    wanted, values = f"job = ? AND name IN ({among})", list[Any]([job, *names])
    for comparison, moment in ((">=", since), ("<", until)):
        if moment is not None:
            wanted, values = f"{wanted} AND time {comparison} ?", [*values, moment.isoformat()]
    order = "DESC" if after_step is None else "ASC"
    result = db.execute(
        f"SELECT DISTINCT published FROM metrics WHERE {wanted} AND published > ? ORDER BY published {order} LIMIT ?",
        (*values, -1 if after_step is None else after_step, steps),
    ).fetchall()
    if not result:
        return []
    ends = sorted((result[0][0], result[-1][0]))
    rows = db.execute(
        f"SELECT name, published, step, value, time FROM metrics WHERE {wanted} AND published BETWEEN ? AND ?"
        " ORDER BY published, name",
        (*values, *ends),
    )
    return [
        PublishedPoint(name=n, step=p, measured=s, value=v, time=datetime.fromisoformat(t)) for n, p, s, v, t in rows
    ]


def _last_published(db: sqlite3.Connection, job: str) -> int:
    return db.execute("SELECT max(published) FROM metrics WHERE job = ?", (job,)).fetchone()[0] or 0


def _release(db: sqlite3.Connection, job: str, *, at: int) -> bool:
    """Publish the oldest held evaluation; return False if there is none.

    Only one is published at a step, because a name has one value for each step.
    """
    oldest = db.execute("SELECT min(step) FROM metrics WHERE job = ? AND published IS NULL", (job,)).fetchone()[0]
    if oldest is None:
        return False
    db.execute("UPDATE metrics SET published = ? WHERE job = ? AND step = ? AND published IS NULL", (at, job, oldest))
    return True
