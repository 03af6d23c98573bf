"""One more event, and the next view of a job."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from synth.bus.recorded import Recorded, encode, from_parts
from synth.errors import Problem
from synth.events import (
    JobCreated,
    JobFailed,
    JobPaused,
    JobPauseRequested,
    JobResumed,
    JobStarted,
    JobValidated,
    JobVerified,
    ModelRef,
    TrainStep,
)
from synth.events.catalogue import Event
from synth.gateway.api.openai.views import job_object
from synth.gateway.api.synth.views import job_view, runs_view, status_view
from synth.gateway.read_model.projection import JobRow, apply_to_job

START = datetime(2026, 1, 1, tzinfo=UTC)
CREATED = JobCreated(config="", config_name="a.toml", body_sha256="0")
VERIFIED = (
    (0, "job.created", CREATED),
    (1, "job.validated", JobValidated(job={"kind": "sft"}, origins={}, warnings=[])),
    (2, "job.verified", JobVerified(source=ModelRef(id="tiny"))),
)


def recorded(type_: str, event: Event, *, seq: int, seconds: float = 0) -> Recorded:
    """The event as it is read back from the log. seconds: after the start."""
    time = START + timedelta(seconds=seconds)
    return from_parts(f"{type_}.org.job_1", encode(event), None, seq=seq, time=time)


def projected(*facts: tuple[float, str, Event]) -> JobRow:
    row: JobRow | None = None
    for seq, (seconds, type_, event) in enumerate(facts, 1):
        row = apply_to_job(row, recorded(type_, event, seq=seq, seconds=seconds))
    assert row is not None
    return row


def test_a_job_that_was_paused_and_failed_has_the_same_true_times_in_every_view():
    row = projected(
        *VERIFIED,
        (100, "job.started", JobStarted(attempt=1, worker="w")),
        (110, "job.pause_requested", JobPauseRequested()),
        (120, "job.paused", JobPaused(step=1)),
        (900, "job.resumed", JobResumed()),
        (930, "job.started", JobStarted(attempt=2, worker="w")),
        (940, "train.step", TrainStep(step=1, of=3, attempt=2, values={"seconds_turn": 4.0})),
        (950, "job.failed", JobFailed(code="x", problem=Problem(what="x"))),
    )
    queued, ran = 100 + 30 + 4, 20 + 20 - 4
    assert (row.job.times.queued_s, row.job.times.ran_s) == (queued, ran)
    for view in (job_object(row, None), job_view(row), status_view(row)):
        assert (view.queued_seconds, view.execution_time) == (queued, ran)
    runs = [(run.status, run.duration_seconds) for run in runs_view(row)]
    assert runs == [("interrupted", 20.0), ("failed", 20.0)]


def test_a_queued_job_has_waited_since_its_submission_and_has_no_end_in_sight():
    row = projected(*VERIFIED)
    assert row.job.times.queued_since == START
    assert job_view(row).execution_time == 0.0
    assert job_view(row).queued_seconds > 1e6, "until now"
    assert job_object(row, None).estimated_finish is None


def test_a_value_that_is_no_number_never_reaches_the_job():
    created = JobCreated(config="", config_name="a.toml", body_sha256="0")
    row = apply_to_job(None, recorded("job.created", created, seq=1))
    good = TrainStep(step=1, of=3, attempt=1, values={"loss": 0.5})
    row = apply_to_job(row, recorded("train.step", good, seq=2))
    bad = TrainStep(step=2, of=3, attempt=1, values={"loss": float("nan")})
    row = apply_to_job(row, recorded("train.step", bad, seq=3))
    assert row is not None
    assert (row.job.step, row.job.values, row.job.last_seq) == (1, {"loss": 0.5}, 3)


def test_the_trained_tokens_of_a_job_are_those_of_all_its_steps():
    row = projected(
        *VERIFIED,
        (100, "job.started", JobStarted(attempt=1, worker="w")),
        (110, "train.step", TrainStep(step=1, of=2, attempt=1, values={"trained_tokens": 30})),
        (120, "train.step", TrainStep(step=2, of=2, attempt=1, values={"trained_tokens": 12})),
    )
    assert (row.job.step, row.job.trained_tokens) == (2, 42)
