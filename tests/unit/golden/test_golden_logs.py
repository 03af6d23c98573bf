"""The logs of released versions: this version reads every event of them, and they come to what they came to then."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import msgspec
import pytest

from synth.bus.recorded import UnknownEvent
from synth.events.catalogue import CATALOGUE
from tests.golden.log import read_lines, read_result, recorded, result_of, versions

#: What a golden log has to have: a job of each kind, and each way in which one may end.
FACTS = {
    *("job.created", "job.validated", "job.rejected", "job.verified", "job.started", "job.paused", "job.resumed"),
    *("job.cancel_requested", "job.cancelled", "job.pause_requested", "job.succeeded", "job.failed", "job.deleted"),
    *("file.uploaded", "file.ready", "rollout.requested", "rollout.completed", "rollout.batch", "rollout.blocked"),
    *("policy.published", "policy.loaded", "train.step", "checkpoint.saved", "model.published", "eval.completed"),
}


def within(then: Any, now: Any, where: str = "$") -> list[str]:
    """Where `now` lacks something of `then`, or says otherwise; it may say more."""
    if isinstance(then, dict) and isinstance(now, dict):
        return [
            place
            for key, value in then.items()
            for place in ([f"{where}.{key}"] if key not in now else within(value, now[key], f"{where}.{key}"))
        ]
    if isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        pairs = enumerate(zip(then, now, strict=True))
        return [place for n, (a, b) in pairs for place in within(a, b, f"{where}[{n}]")]
    return [] if then == now else [f"{where}: {then!r} is now {now!r}"]


def test_this_version_has_a_golden_log():
    assert version("synthctl") in versions(), "python -m tests.golden.make"


@pytest.mark.parametrize("release", versions())
def test_every_event_is_read_and_nothing_that_it_says_is_lost(release: str):
    lines = read_lines(release)
    lost: list[str] = []
    for line, event in zip(lines, recorded(lines), strict=True):
        assert not isinstance(event.event, UnknownEvent), (line.seq, line.subject)
        assert line.subject == f"{event.type}.{event.org}.{event.key}"
        assert int(line.headers["Synth-Schema"]) <= CATALOGUE[event.type].version
        lost += within(line.data, msgspec.json.decode(msgspec.json.encode(event.event)), f"{line.seq} {event.type}")
    assert lost == []
    assert {event.type for event in recorded(lines)} >= FACTS


@pytest.mark.parametrize("release", versions())
def test_the_log_comes_to_what_it_came_to_then(release: str, tmp_path):
    now = result_of(recorded(read_lines(release)), tmp_path / "model.db")
    then = read_result(release)
    assert within(then, now) == []
    states = {job["state"] for job in then["jobs"].values()}
    assert states == {"succeeded", "failed", "cancelled", "rejected"}
    assert {(job["shown"] or {}).get("kind") for job in then["jobs"].values()} >= {"sft", "rl", "eval"}


def test_a_field_that_is_lost_is_noticed():
    assert within({"a": {"b": [1, 2]}}, {"a": {"b": [1, 3], "c": 4}}) == ["$.a.b[1]: 2 is now 3"]
    assert within({"a": 1}, {"b": 1}) == ["$.a"]
