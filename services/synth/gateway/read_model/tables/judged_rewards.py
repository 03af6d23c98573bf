"""The reward of each rollout after judging, a row each, because the log has it in a separate event."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from synth.bus.recorded import Recorded
from synth.events import RolloutCompleted, RolloutFailed, RolloutJudged

SCHEMA = """
CREATE TABLE judged (
    job TEXT NOT NULL, mode TEXT NOT NULL, iteration INTEGER NOT NULL, place INTEGER NOT NULL, reward REAL,
    PRIMARY KEY (job, mode, iteration, place)
) WITHOUT ROWID;
"""


def record_scores(db: sqlite3.Connection, recorded: Recorded) -> None:
    """Record the judges' reward of a rollout; of two records of one rollout, the first stays."""
    event = recorded.event
    if isinstance(event, RolloutJudged):
        values = (recorded.key, event.mode, event.iteration, event.index, event.reward)
        db.execute("INSERT OR IGNORE INTO judged VALUES (?, ?, ?, ?, ?)", values)


@dataclass(frozen=True)
class JudgedRewards:
    """The rewards of one job. is_judged: whether judges have a part in them."""

    db: sqlite3.Connection
    job: str
    is_judged: bool

    @classmethod
    def of(cls, db: sqlite3.Connection, job: str) -> JudgedRewards:
        """Return the rewards of the job with this id."""
        query = "SELECT json_extract(CAST(validated AS TEXT), '$.job.rewards.scores') FROM texts WHERE id = ?"
        result = db.execute(query, (job,)).fetchone()
        return cls(db, job, result is not None and result[0] in ("judges", "grader"))

    def reward(self, event: RolloutCompleted | RolloutFailed) -> float | None:
        """Return the reward that is trained and reported: None if the rollout failed, or has no scores (yet)."""
        if isinstance(event, RolloutFailed):
            return None
        if not self.is_judged:
            return event.reward
        query = "SELECT reward FROM judged WHERE job = ? AND mode = ? AND iteration = ? AND place = ?"
        result = self.db.execute(query, (self.job, event.mode, event.iteration, event.index)).fetchone()
        return result[0] if result else None
