"""A page of a job's metrics: whole steps, and a bounded number of values."""

from __future__ import annotations

import sqlite3

import pytest

from synth.api.limits import MAX_POINTS
from synth.gateway.read_model.tables.job_metrics import SCHEMA, measured_points


@pytest.fixture
def db() -> sqlite3.Connection:
    db = sqlite3.connect(":memory:")
    db.executescript(SCHEMA)
    return db


def fill(db: sqlite3.Connection, *, steps: int, names: int) -> None:
    time = "2026-01-01T00:00:00+00:00"
    rows = [("job_1", step, f"m{i:05}", 1.0, time, step) for step in range(1, steps + 1) for i in range(names)]
    db.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", rows)


def steps_of(db: sqlite3.Connection, *, after_step: int, steps: int, name: str | None = None) -> tuple[list[int], bool]:
    points, more = measured_points(db, "job_1", after_step=after_step, name=name, steps=steps)
    return sorted({point.step for point in points}), more


def test_a_page_ends_behind_its_steps(db: sqlite3.Connection):
    fill(db, steps=5, names=3)
    assert steps_of(db, after_step=-1, steps=2) == ([1, 2], True)
    assert steps_of(db, after_step=3, steps=2) == ([4, 5], False)
    assert steps_of(db, after_step=5, steps=2) == ([], False)
    assert steps_of(db, after_step=0, steps=9, name="m00001") == ([1, 2, 3, 4, 5], False)


def test_a_page_has_whole_steps_and_no_more_points_than_it_may(db: sqlite3.Connection):
    fill(db, steps=5, names=MAX_POINTS // 3)
    assert steps_of(db, after_step=-1, steps=10) == ([1, 2, 3], True)
    assert steps_of(db, after_step=3, steps=10) == ([4, 5], False)


def test_a_page_has_at_least_one_step(db: sqlite3.Connection):
    fill(db, steps=2, names=MAX_POINTS + 1)
    assert steps_of(db, after_step=-1, steps=10) == ([1], True)
