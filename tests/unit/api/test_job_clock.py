"""How long a job was queued and how long it ran."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from synth.api.job_clock import JobClock

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def clock_of(*facts: tuple[float, str]) -> JobClock:
    clock = JobClock()
    for seconds, fact in facts:
        clock = clock.add(fact, at(seconds))
    return clock


def times_at(clock: JobClock, seconds: float) -> tuple[float, float]:
    return clock.times.queued(at(seconds)), clock.times.ran(at(seconds))


def test_a_job_that_waits_is_queued_and_has_not_run():
    clock = clock_of((0, "job.created"), (1, "job.validated"), (5, "job.verified"))
    assert times_at(clock, 30) == (30, 0)


def test_a_wait_before_the_start_is_no_part_of_the_run():
    clock = clock_of((0, "job.created"), (40, "job.started"), (50, "checkpoint.saved"), (60, "job.succeeded"))
    assert times_at(clock, 999) == (40, 20)


def test_a_pause_is_neither_queued_nor_run_and_the_wait_after_it_is_queued():
    paused = clock_of((0, "job.created"), (10, "job.started"), (30, "job.paused"))
    assert times_at(paused, 500) == (10, 20)
    resumed = paused.add("job.resumed", at(500)).add("job.verified", at(501))
    assert times_at(resumed, 507) == (17, 20)
    ended = resumed.add("job.started", at(510)).add("job.failed", at(515))
    assert times_at(ended, 999) == (20, 25)
    assert [(run.started_at, run.ended_at) for run in ended.runs] == [(at(10), at(30)), (at(510), at(515))]


def test_an_attempt_that_died_ran_until_it_was_seen_last():
    clock = clock_of((0, "job.created"), (10, "job.started"), (25, "rollout.completed"), (100, "job.started"))
    assert times_at(clock, 110) == (10 + 75, 15 + 10)


def test_an_attempt_that_hands_its_job_back_leaves_it_queued():
    clock = clock_of((0, "job.created"), (10, "job.started"), (20, "train.handed_back"), (50, "job.started"))
    assert times_at(clock, 55) == (10 + 30, 10 + 5)


def test_a_wait_for_the_turn_at_a_shared_device_is_queued():
    clock = clock_of((0, "job.created"), (10, "job.started")).add_step(1, at(40), turn_wait_s=12.0)
    assert times_at(clock, 50) == (10 + 12, 40 - 12)


def test_the_time_that_is_left_is_that_of_the_steps_alone():
    clock = clock_of((0, "job.created"), (1000, "job.started")).add_step(1, at(1010), turn_wait_s=0)
    assert clock.seconds_left(at(1010), steps=4) == pytest.approx(30)
    assert clock.seconds_left(at(1015), steps=4) == pytest.approx(25)
    paused = clock.add("job.paused", at(1020))
    assert paused.seconds_left(at(1030), steps=4) is None
    resumed = paused.add("job.resumed", at(5000)).add("job.started", at(6000))
    assert resumed.seconds_left(at(6000), steps=4) == pytest.approx(20)


def test_a_job_that_begins_at_a_later_step_has_the_pace_of_its_own_steps():
    clock = clock_of((0, "job.created"), (0, "job.started")).add_step(41, at(10), turn_wait_s=0)
    assert clock.seconds_left(at(10), steps=43) == pytest.approx(20)
