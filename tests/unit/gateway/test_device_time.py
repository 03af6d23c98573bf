"""How long the jobs of an organisation have held devices."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from synth.bus.recorded import Recorded, encode, from_parts
from synth.events import (
    JobCancelled,
    JobCreated,
    JobDeleted,
    JobPaused,
    JobPauseRequested,
    JobResumed,
    JobStarted,
    JobValidated,
    JobVerified,
    ModelRef,
    PolicyLoaded,
    TrainHandedBack,
    TrainStep,
)
from synth.events.catalogue import Event, spec_of
from synth.gateway.read_model.store import ReadModel
from synth.gateway.read_model.tables.device_time import UNSEEN_S, device_seconds, holding_orgs

#: A moment ten hours before the end of a UTC day.
NOON = datetime(2026, 1, 1, 14, tzinfo=UTC).timestamp()
DAY_S = 86_400
READY = (
    JobCreated(config="", config_name="a.toml", body_sha256="0"),
    JobValidated(job={"kind": "rl", "model": "tiny"}, origins={}, warnings=[]),
    JobVerified(source=ModelRef(id="tiny", path="tiny")),
)


class Log:
    """A read model, and the events that it has been given."""

    def __init__(self, model: ReadModel, home: Path) -> None:
        self.model = model
        self._home = home
        self._seq = 0
        self._all: list[Recorded] = []

    def add(self, *events: Event, at: float = 0.0, job: str = "job_1", org: str = "org_a") -> None:
        """at: seconds after noon."""
        recorded = [self._recorded(event, at, job, org) for event in events]
        self._all += recorded
        self.model.apply(recorded)

    def used(self, at: float, *, org: str = "org_a", days: int = 30) -> float:
        used = device_seconds(self.model.db, org, now=NOON + at, days=days)
        anew = ReadModel(self._home / f"anew-{len(list(self._home.iterdir()))}.db")
        anew.prepare(stream="log", last_seq=10**9)
        anew.apply(self._all)
        assert device_seconds(anew.db, org, now=NOON + at, days=days) == pytest.approx(used), "in one batch"
        anew.close()
        return used

    def _recorded(self, event: Event, at: float, job: str, org: str) -> Recorded:
        self._seq += 1
        subject, time = f"{spec_of(type(event)).type}.{org}.{job}", datetime.fromtimestamp(NOON + at, UTC)
        return from_parts(subject, encode(event), None, seq=self._seq, time=time)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    model = ReadModel(tmp_path / "model.db")
    model.prepare(stream="log", last_seq=10**9)
    yield Log(model, tmp_path)
    model.close()


def loaded(replica: str, version: int = 0, *, index: int = 0) -> PolicyLoaded:
    return PolicyLoaded(version=version, replica=replica, index=index, seconds=1, proven=1)


def test_trainers_count_by_their_devices_and_engines_one_each_until_the_job_is_paused(log: Log):
    log.add(*READY)
    log.add(loaded("engine-0"), at=5)
    log.add(JobStarted(attempt=1, worker="w", devices=4), at=10)
    log.add(loaded("engine-1", index=1), loaded("engine-0", version=1), at=20)
    assert log.used(30) == 25 + 4 * 20 + 10
    log.add(JobPauseRequested(), at=30)
    log.add(JobPaused(step=1), at=40)
    assert log.used(40) == log.used(4000) == 35 + 4 * 30 + 20
    assert (log.used(4000, org="org_b"), holding_orgs(log.model.db)) == (0, [])


def test_a_paused_job_holds_nothing_until_it_goes_on(log: Log):
    log.add(*READY)
    log.add(JobStarted(attempt=1, worker="w", devices=2), at=0)
    log.add(JobPauseRequested(), JobPaused(step=1), at=10)
    # An engine that was loading when the job was paused.
    log.add(loaded("engine-0"), at=11)
    assert log.used(100) == 20
    log.add(JobResumed(), at=100)
    log.add(JobStarted(attempt=2, worker="w", devices=2), at=110)
    assert log.used(120) == 40


def test_an_engine_that_takes_over_has_the_place_of_the_one_before(log: Log):
    log.add(*READY)
    for n in range(10):
        log.add(loaded(f"engine-{n}"), at=10 * n)
    assert log.used(100) == 100


def test_an_outage_is_nobodys_time(log: Log):
    log.add(*READY)
    log.add(JobStarted(attempt=1, worker="w", devices=8), loaded("engine-0"), at=0)
    log.add(TrainStep(step=1, of=9, attempt=1, values={}), loaded("engine-0", version=1), at=100)
    days = 3 * DAY_S
    # Nobody has said that it is over: what holds devices may be silent for a while, and not for days.
    assert log.used(days) == 9 * (100 + UNSEEN_S)
    # What another service says of the job is no sign of them.
    log.add(JobPauseRequested(reason="limit"), at=days)
    log.add(loaded("engine-1", version=1), at=days + 1)
    log.add(JobStarted(attempt=2, worker="v", devices=8), at=days + 2)
    log.add(JobPaused(step=1, reason="limit"), at=days + 3)
    assert log.used(days + 9) == 9 * 100 + 2 + 8


def test_a_long_silent_step_counts_whole_once_it_is_done(log: Log):
    log.add(*READY)
    log.add(JobStarted(attempt=1, worker="w", devices=2), at=0)
    log.add(TrainStep(step=1, of=9, attempt=1, values={}), at=3 * UNSEEN_S)
    assert log.used(3 * UNSEEN_S) == 6 * UNSEEN_S


def test_an_attempt_that_died_counts_until_it_was_seen_last(log: Log):
    log.add(*READY)
    log.add(JobStarted(attempt=1, worker="w", devices=8), at=0)
    log.add(TrainStep(step=1, of=9, attempt=1, values={}), at=10)
    log.add(JobPauseRequested(), at=400)
    log.add(JobStarted(attempt=2, worker="v", devices=8), at=500)
    assert log.used(501) == 8 * 11
    log.add(TrainHandedBack(attempt=2, reason="drain"), at=502)
    assert log.used(900) == 8 * 12


def test_days_that_are_long_past_do_not_count_and_a_deleted_job_does(log: Log):
    log.add(*READY)
    log.add(JobStarted(attempt=1, worker="w", devices=1), at=0)
    log.add(JobCancelled(step=0), at=36_000 + 100)
    log.add(JobDeleted(requested_by="k"), at=36_000 + 200)
    assert log.used(36_200) == 36_100
    assert log.used(36_200, days=1) == 100
    assert log.used(29 * DAY_S) == 36_100
    assert log.used(36_000 + 29 * DAY_S) == 100
    assert log.used(36_000 + 30 * DAY_S) == 0


def test_what_a_newer_version_wrote_hinders_nothing(log: Log):
    log.add(*READY)
    log.add(JobStarted(attempt=1, worker="w", devices=1), at=0)
    time = datetime.fromtimestamp(NOON + 10, UTC)
    for seq, fact in enumerate(("train.step", "train.rethought"), start=100):
        newer = from_parts(f"{fact}.org_a.job_1", b"{}", {"Synth-Schema": "99"}, seq=seq, time=time)
        log.model.apply([newer])
    assert device_seconds(log.model.db, "org_a", now=NOON + 20, days=30) == 20
