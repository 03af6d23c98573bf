"""The device time of each organisation's jobs, by UTC day.

A trainer's devices are held from `job.started` until its attempt ends, an engine's from the first policy of a job that
it has loaded until the job is over or paused. A holder is *seen* with each event that it causes: a trainer with its own
events, an engine with the events of the job's policies and rollouts. An attempt that died held its devices until it was
last seen, and an engine that is not seen for `UNSEEN_S` is not counted after that time. The device time of a deleted
job stays counted.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from synth.bus.recorded import Recorded
from synth.events import (
    EvalCompleted,
    JobCancelled,
    JobFailed,
    JobParked,
    JobPaused,
    JobStarted,
    JobSucceeded,
    JobWithdrawn,
    PolicyLoaded,
    RolloutBatched,
    RolloutCompleted,
    TrainHandedBack,
)
from synth.events.catalogue import CATALOGUE, Role
from synth.jobs.lifecycle import TERMINAL, State

SCHEMA = """
CREATE TABLE device_time (
    job TEXT NOT NULL, holder TEXT NOT NULL, org TEXT NOT NULL, devices INTEGER NOT NULL, since REAL NOT NULL,
    seen REAL NOT NULL,
    PRIMARY KEY (job, holder)
) WITHOUT ROWID;
CREATE INDEX device_time_of_org ON device_time (org);
CREATE TABLE device_days (
    org TEXT NOT NULL, day INTEGER NOT NULL, seconds REAL NOT NULL, PRIMARY KEY (org, day)
) WITHOUT ROWID;
"""
DAY_S = 86_400
#: Longer than the longest silence of a running job: one long rollout, or one long step.
UNSEEN_S = 3600.0
_TRAINER = "trainer"
_ENGINE = "engine "
_OVER = JobPaused | JobParked | JobSucceeded | JobFailed | JobCancelled | JobWithdrawn
_CHANGES = JobStarted | TrainHandedBack | PolicyLoaded | _OVER
#: In these states no engine holds a device for the job, even if it reported that late.
_LET_GO = TERMINAL | {State.PAUSED}
#: Facts that need an engine.
_OF_ENGINES = RolloutCompleted | RolloutBatched | EvalCompleted
_ADD = "INSERT INTO device_days VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET seconds = seconds + excluded.seconds"


class Sightings:
    """The sightings of holders in a batch of events, written together because most events are sightings."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._spans: dict[tuple[str, bool], tuple[float, float]] = {}

    def note(self, job: str, at: float, *, engines: bool) -> None:
        """Note that the trainer of a job was seen, or its engines."""
        key = (job, engines)
        first, last = self._spans.get(key, (at, at))
        if at - last > UNSEEN_S:
            self._enter(key)
            first = at
        self._spans[key] = (first, at)

    def enter(self, job: str | None = None) -> None:
        """Write the sightings of this job, or of all jobs."""
        for key in [key for key in self._spans if job in (None, key[0])]:
            self._enter(key)

    def _enter(self, key: tuple[str, bool]) -> None:
        first, last = self._spans.pop(key)
        for at in {first: None, last: None}:
            _see(self._db, key[0], at, engines=key[1])


def record_holding(db: sqlite3.Connection, recorded: Recorded, sightings: Sightings, *, state: State) -> None:
    """Record the holders of devices for a job, and their device time. state: the job's state after this event."""
    event, job, at = recorded.event, recorded.key, recorded.time.timestamp()
    if isinstance(event, _OF_ENGINES):
        sightings.note(job, at, engines=True)
        return
    spec = CATALOGUE.get(recorded.type)
    if spec is not None and spec.by is Role.TRAINER and not isinstance(event, TrainHandedBack):
        sightings.note(job, at, engines=False)
        return
    if not isinstance(event, _CHANGES):
        return
    sightings.enter(job)
    if isinstance(event, JobStarted):
        # The previous attempt has ended, with or without a report.
        _let_go(db, job, at, _TRAINER, died=True)
        _hold(db, recorded, _TRAINER, event.devices)
    elif isinstance(event, TrainHandedBack):
        _let_go(db, job, at, _TRAINER)
    elif isinstance(event, _OVER):
        _see(db, job, at, engines=True)
        _let_go(db, job, at)
    elif state not in _LET_GO:
        _see(db, job, at, engines=True)
        # An engine uses one device, and an engine that takes over the task replaces it.
        _hold(db, recorded, f"{_ENGINE}{event.index}", 1)


def device_seconds(db: sqlite3.Connection, org: str, *, now: float, days: int) -> float:
    """Return the device time of an organisation's jobs in the last `days` UTC days, including today's and open spans.

    now: Unix time. The result is in devices × seconds.
    """
    first = int(now // DAY_S) - days + 1
    stored = db.execute("SELECT COALESCE(SUM(seconds), 0) FROM device_days WHERE org = ? AND day >= ?", (org, first))
    holding = db.execute("SELECT devices, since, seen FROM device_time WHERE org = ?", (org,))
    # The clocks of the bus and of this process may differ.
    open_s = sum(
        devices * max(0.0, min(now, seen + UNSEEN_S) - max(since, first * DAY_S)) for devices, since, seen in holding
    )
    return stored.fetchone()[0] + open_s


def holding_orgs(db: sqlite3.Connection) -> list[str]:
    """Return the organisations whose jobs hold devices now."""
    return [org for (org,) in db.execute("SELECT DISTINCT org FROM device_time WHERE devices")]


def _hold(db: sqlite3.Connection, recorded: Recorded, holder: str, devices: int) -> None:
    at = recorded.time.timestamp()
    values = (recorded.key, holder, recorded.org, devices, at, at)
    db.execute("INSERT OR IGNORE INTO device_time VALUES (?, ?, ?, ?, ?, ?)", values)


def _see(db: sqlite3.Connection, job: str, at: float, *, engines: bool) -> None:
    """Set the time at which a job's trainer, or its engines, were last seen."""
    if engines:
        gone = "SELECT holder FROM device_time WHERE job = ? AND holder <> ? AND seen < ?"
        for (holder,) in db.execute(gone, (job, _TRAINER, at - UNSEEN_S)).fetchall():
            _book(db, job, holder, until=None)
            db.execute("UPDATE device_time SET since = ? WHERE job = ? AND holder = ?", (at, job, holder))
    whose = "<>" if engines else "="
    db.execute(f"UPDATE device_time SET seen = ? WHERE job = ? AND holder {whose} ?", (at, job, _TRAINER))


def _let_go(db: sqlite3.Connection, job: str, at: float, holder: str | None = None, *, died: bool = False) -> None:
    """End the holdings of a job. died: the time after the holder was last seen is unknown, and does not count."""
    which = "job = ? AND holder = coalesce(?, holder)"
    for (name,) in db.execute(f"SELECT holder FROM device_time WHERE {which}", (job, holder)).fetchall():
        _book(db, job, name, until=None if died else at)
    db.execute(f"DELETE FROM device_time WHERE {which}", (job, holder))


def _book(db: sqlite3.Connection, job: str, holder: str, *, until: float | None) -> None:
    """Add a holder's device time to the days. until: None for the time at which it was last seen."""
    result = "SELECT org, devices, since, seen FROM device_time WHERE job = ? AND holder = ?"
    for org, devices, since, seen in db.execute(result, (job, holder)).fetchall():
        spans = _by_day(since, seen if until is None else until)
        db.executemany(_ADD, [(org, day, devices * seconds) for day, seconds in spans])


def _by_day(since: float, until: float) -> Iterator[tuple[int, float]]:
    """Yield the UTC days between two times, and the seconds of each day between them."""
    while since < until:
        day = int(since // DAY_S)
        end = min(until, (day + 1) * DAY_S)
        yield day, end - since
        since = end
