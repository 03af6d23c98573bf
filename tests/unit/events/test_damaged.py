"""What somebody with a stolen credential writes in the place of an event can be shown, and written again."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from synth.bus.recorded import Recorded, UnknownEvent, from_parts, require_readable
from synth.chat.json_text import MAX_NESTING
from synth.errors import Permanent


def recorded(subject: str, body: bytes, schema: int = 1) -> Recorded:
    headers = {"Synth-Schema": str(schema)}
    return from_parts(subject, body, headers, seq=7, time=datetime.now(UTC))


def nested(levels: int) -> bytes:
    return b'{"job":' + b'{"a":' * (levels - 1) + b"1" + b"}" * (levels - 1) + b',"origins":{},"warnings":[]}'


@pytest.mark.parametrize("subject", ["job.validated.org_a.job_1", "job.teleported.org_a.job_1"])
@pytest.mark.parametrize("levels", [MAX_NESTING + 1, 900, 100_000])
def test_a_body_that_is_too_deep_to_be_written_again_is_its_text(subject: str, levels: int):
    event = recorded(subject, nested(levels)).event
    assert isinstance(event, UnknownEvent)
    assert event.body == nested(levels).decode()
    assert event.newer == (subject.split(".")[1] == "teleported")


@pytest.mark.parametrize("subject", ["job.validated.org_a.job_1", "job.teleported.org_a.job_1"])
def test_one_that_is_not_is_read(subject: str):
    event = recorded(subject, nested(MAX_NESTING)).event
    value = event.body if isinstance(event, UnknownEvent) else event
    assert msgspec.to_builtins(value)["job"]["a"]["a"]


def test_what_is_wrong_with_a_damaged_event_is_said():
    with pytest.raises(Permanent, match=r"job\.created at 7 .* its body is not a job\.created that can be read"):
        require_readable(recorded("job.created.org_a.job_1", b"{}"))
    forged = recorded("job.created.org_a.job_1", b"{}", schema=9)
    assert isinstance(forged.event, UnknownEvent)
    judged = msgspec.structs.replace(forged.event, newer=False)
    with pytest.raises(Permanent, match=r"it says schema 9 of job\.created, which no version had declared"):
        require_readable(Recorded(**{**vars(forged), "event": judged}))
