"""The traces of all organisations in the read model: a row each, so that a page of them needs no scan of the log.

An evaluation may have half a million traces. So a page reads a bounded stretch of them by an index, and returns the
start of the next page.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, cast

import msgspec

from synth.api.rollouts import RolloutMode, RolloutOutcome
from synth.api.schemas import Job
from synth.api.traces import TraceSort, TraceSummary
from synth.bus.recorded import Recorded
from synth.events import BlobRef, RolloutCompleted, RolloutJudged

SCHEMA = """
CREATE TABLE traces (
    seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, org TEXT NOT NULL, job TEXT NOT NULL, mode TEXT NOT NULL,
    model TEXT, env TEXT, seed INTEGER, reward REAL, time REAL NOT NULL, expired INTEGER NOT NULL, row BLOB NOT NULL
);
CREATE INDEX traces_of_org ON traces (org, expired, seq);
CREATE INDEX traces_of_job ON traces (job, expired, seq);
CREATE INDEX traces_by_time ON traces (expired, time);
"""
#: Traces that one page reads, which takes some milliseconds.
_STRETCH = 5_000
#: The Unix epoch in the days of `julianday`.
_UNIX_EPOCH = 2440587.5
#: The range of SQLite's integers.
_INTEGERS = range(-(1 << 63), 1 << 63)


class TraceRow(msgspec.Struct, frozen=True, kw_only=True):
    """A trace and its blobs. review: of the judges, None if there is none."""

    trace: TraceSummary
    transcript: BlobRef
    review: BlobRef | None = None


@dataclass(frozen=True, kw_only=True)
class TraceFilter:
    """The conditions that a trace must pass, all of them; None is no condition. Bounds are inclusive."""

    jobs: Collection[str] | None = None
    mode: RolloutMode | None = None
    model: str | None = None
    env_name: str | None = None
    seed: int | None = None
    min_reward: float | None = None
    max_reward: float | None = None
    since: datetime | None = None
    until: datetime | None = None

    def sql_condition(self) -> tuple[str, list[Any]]:
        """Return the condition as SQL over the columns of `traces`, and its parameters."""
        parts, values = ["TRUE"], list[Any]()
        for comparison, value in (
            ("mode =", self.mode),
            ("model =", self.model),
            ("env =", self.env_name),
            ("seed =", self.seed),
            ("reward >=", self.min_reward),
            ("reward <=", self.max_reward),
            ("time >=", self.since and self.since.timestamp()),
            ("time <=", self.until and self.until.timestamp()),
        ):
            if value is not None:
                parts.append(f"{comparison} ?")
                values.append(value)
        if self.jobs is not None:
            parts.append(f"job IN ({', '.join('?' for _ in self.jobs)})")
            values += self.jobs
        return " AND ".join(parts), values


@dataclass(frozen=True)
class TraceRows:
    """A page of traces. next: the sequence after which there may be more; None at the end."""

    rows: list[TraceRow]
    next: int | None


def record_trace(db: sqlite3.Connection, recorded: Recorded, job: Job) -> None:
    """Record a rollout that was kept whole, or its judges' scores. Of two records of a rollout, the first stays."""
    event = recorded.event
    if isinstance(event, RolloutJudged):
        _record_scores(db, event)
    elif isinstance(event, RolloutCompleted) and event.traced and event.transcript is not None:
        row = _row_of(db, recorded, event, event.transcript, job)
        trace = row.trace
        seed = trace.seed if trace.seed in _INTEGERS else None
        facts = (recorded.seq, trace.id, recorded.org, trace.job_id, trace.mode, trace.model, trace.env_name, seed)
        rest = (trace.reward, recorded.time.timestamp(), False, msgspec.json.encode(row))
        db.execute("INSERT OR IGNORE INTO traces VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (*facts, *rest))


def find_trace(db: sqlite3.Connection, org: str, id: str) -> TraceRow | None:
    """Find a trace of this organisation with its `env_config`, even if it has expired."""
    result = db.execute("SELECT row, expired FROM traces WHERE id = ? AND org = ?", (id, org)).fetchone()
    if result is None:
        return None
    row = msgspec.json.decode(result[0], type=TraceRow)
    config = _env_config(db, row.trace)
    return msgspec.structs.replace(
        row, trace=msgspec.structs.replace(row.trace, expired=bool(result[1]), env_config=config)
    )


def page_of_traces(
    db: sqlite3.Connection, org: str, wanted: TraceFilter, *, sort: TraceSort, limit: int, after: int | None
) -> TraceRows:
    """Return stored traces of this organisation. after: continue after this sequence."""
    order, comparison = ("DESC", "<") if sort == "newest" else ("ASC", ">")
    scope, values = "org = ?", list[Any]([org])
    if wanted.jobs is not None and len(wanted.jobs) == 1:
        # The unary plus keeps SQLite from the organisation's index, because the job's index is faster.
        scope, values = "job = ? AND +org = ?", list[Any]([*wanted.jobs, org])
    if after is not None:
        scope = f"{scope} AND seq {comparison} ?"
        values.append(after)
    # Leave out the rows, which are large: only the page's rows are read.
    columns = "seq, job, mode, model, env, seed, reward, time"
    stretch = f"SELECT {columns} FROM traces WHERE {scope} AND expired = 0 ORDER BY seq {order} LIMIT {_STRETCH}"
    condition, more = wanted.sql_condition()
    query = f"SELECT seq FROM ({stretch}) WHERE {condition} ORDER BY seq {order} LIMIT ?"
    seqs = [seq for (seq,) in db.execute(query, [*values, *more, limit + 1])]
    result = db.execute(
        f"SELECT row FROM traces WHERE seq IN ({', '.join('?' for _ in seqs[:limit])}) ORDER BY seq {order}",
        seqs[:limit],
    )
    rows = [msgspec.json.decode(row, type=TraceRow) for (row,) in result]
    if len(seqs) > limit:
        return TraceRows(rows, seqs[limit - 1])
    last = "MIN" if sort == "newest" else "MAX"
    seen, end = db.execute(f"SELECT COUNT(*), {last}(seq) FROM ({stretch})", values).fetchone()
    return TraceRows(rows, end if seen == _STRETCH else None)


def traces_to_expire(
    db: sqlite3.Connection, *, before: float | None, per_job: int | None, per_org: int | None, limit: int
) -> list[tuple[int, TraceRow]]:
    """Return the oldest traces that are too old or too many, of jobs that have ended; with their sequences.

    before: unix seconds; traces of jobs that ended earlier are too old. per_job, per_org: how many of the newest traces
    are kept. None is no limit.
    """
    ended = "expired = 0 AND job NOT IN (SELECT id FROM jobs WHERE live)"
    results: dict[int, bytes] = {}
    if before is not None:
        # A trace is older than the end of its job.
        over = (
            "SELECT id FROM jobs WHERE (julianday(json_extract(CAST(row AS TEXT), '$.job.ended_at')) - ?) * 86400 < ?"
        )
        query = f"SELECT seq, row FROM traces WHERE {ended} AND time < ? AND job IN ({over}) ORDER BY time LIMIT ?"
        results |= dict(db.execute(query, (before, _UNIX_EPOCH, before, limit)))
    for column, most in (("job", per_job), ("org", per_org)):
        if most is None:
            continue
        many = f"SELECT {column}, COUNT(*) FROM traces WHERE +expired = 0 GROUP BY {column} HAVING COUNT(*) > ?"
        for owner, count in db.execute(many, (most,)).fetchall():
            query = f"SELECT seq, row FROM traces WHERE {ended} AND {column} = ? ORDER BY seq LIMIT ?"
            results |= dict(db.execute(query, (owner, min(limit, count - most))))
    return [(seq, msgspec.json.decode(row, type=TraceRow)) for seq, row in sorted(results.items())[:limit]]


def mark_expired(db: sqlite3.Connection, seqs: Collection[int]) -> None:
    """Note that these traces are not kept any more."""
    db.executemany("UPDATE traces SET expired = 1 WHERE seq = ?", [(seq,) for seq in seqs])


def _row_of(
    db: sqlite3.Connection, recorded: Recorded, event: RolloutCompleted, transcript: BlobRef, job: Job
) -> TraceRow:
    env, policy, scores = _of_job(db, recorded.key, "rollout.env_name", "rollout.policy_name", "rewards.scores")
    trace = TraceSummary(
        id=event.rollout_id,
        job_id=recorded.key,
        kind=job.kind,
        model=job.source_model,
        env_name=env,
        policy_name=policy,
        mode=cast(RolloutMode, event.mode),
        iteration=event.iteration,
        index=event.index,
        group=event.group,
        seed=event.seed,
        outcome=cast(RolloutOutcome, event.outcome),
        # In a judged job the reward lacks the judges' scores yet.
        reward=None if scores in ("judges", "grader") else event.reward,
        environment=event.reward,
        completion_tokens=event.completion_tokens,
        calls=event.calls,
        versions=event.versions if event.versions[0] >= 0 else None,
        seconds=event.seconds,
        tries=event.tries,
        started_at=recorded.time - timedelta(seconds=event.seconds),
        created_at=recorded.time,
        seq=recorded.seq,
    )
    return TraceRow(trace=trace, transcript=transcript)


def _of_job(db: sqlite3.Connection, job: str, *paths: str) -> list[Any]:
    """Return the values of a job's resolved settings at these paths; None for a missing value."""
    places = ", ".join(f"'$.job.{path}'" for path in paths)
    query = f"SELECT json_extract(CAST(validated AS TEXT), {places}) FROM texts WHERE id = ?"
    result = db.execute(query, (job,)).fetchone()
    return cast(list[Any], msgspec.json.decode(result[0])) if result and result[0] else [None] * len(paths)


def _env_config(db: sqlite3.Connection, trace: TraceSummary) -> dict[str, Any]:
    """Return the environment's config. A user may make it large, so it is read from the job and is in no row."""
    config, of_evaluation = _of_job(db, trace.job_id, "rollout.env_config", "rollout.evaluation_env_config")
    return (config or {}) | ((of_evaluation or {}) if trace.mode == "eval" else {})


def _record_scores(db: sqlite3.Connection, event: RolloutJudged) -> None:
    result = db.execute("SELECT row FROM traces WHERE id = ?", (event.rollout_id,)).fetchone()
    if result is None:
        return
    row = msgspec.json.decode(result[0], type=TraceRow)
    trace = msgspec.structs.replace(
        row.trace,
        reward=event.reward,
        environment=event.environment,
        judged_events=event.events,
        judged_outcome=event.outcome,
    )
    row = msgspec.structs.replace(row, trace=trace, review=event.review)
    values = (event.reward, msgspec.json.encode(row), event.rollout_id)
    db.execute("UPDATE traces SET reward = ?, row = ? WHERE id = ?", values)
