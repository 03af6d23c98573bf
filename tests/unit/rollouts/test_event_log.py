"""What an event says of failed tries: each reason once in a row, and never more than an event has room for."""

from __future__ import annotations

import msgspec

from synth.errors import Problem
from synth.events.catalogue import MAX_EVENT_BODY_BYTES
from synth.rollouts.event_log import _failed_tries


def test_equal_reasons_in_a_row_are_counted():
    found = _failed_tries([Problem(what=what) for what in ("a", "a", "b", "a")])
    assert [(tries.problem.what, tries.times) for tries in found] == [("a", 2), ("b", 1), ("a", 1)]


def test_of_very_many_the_last_ones_are_kept_and_the_others_counted():
    problems = [Problem(what=f"{n} " + "x" * 300) for n in range(5000)]
    found = _failed_tries(problems)
    assert len(msgspec.json.encode(found)) < MAX_EVENT_BODY_BYTES * 0.6
    assert sum(tries.times for tries in found) == 5000
    assert "left out" in found[0].problem.what
    assert found[-1].problem.what.startswith("4999 ")
