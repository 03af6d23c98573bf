"""One more event, and the next view of a job."""

from __future__ import annotations

from datetime import UTC, datetime

from synth.bus.recorded import Recorded, encode, from_parts
from synth.events import JobCreated, TrainStep
from synth.events.catalogue import Event
from synth.gateway.read_model.projection import apply_to_job


def recorded(type_: str, event: Event, *, seq: int) -> Recorded:
    """The event as it is read back from the log."""
    return from_parts(f"{type_}.org.job_1", encode(event), None, seq=seq, time=datetime(2026, 1, 1, tzinfo=UTC))


def test_a_value_that_is_no_number_never_reaches_the_job():
    created = JobCreated(config="", config_name="a.toml", body_sha256="0")
    row = apply_to_job(None, recorded("job.created", created, seq=1))
    good = TrainStep(step=1, of=3, attempt=1, values={"loss": 0.5})
    row = apply_to_job(row, recorded("train.step", good, seq=2))
    bad = TrainStep(step=2, of=3, attempt=1, values={"loss": float("nan")})
    row = apply_to_job(row, recorded("train.step", bad, seq=3))
    assert row is not None
    assert (row.job.step, row.job.values, row.job.last_seq) == (1, {"loss": 0.5}, 3)
