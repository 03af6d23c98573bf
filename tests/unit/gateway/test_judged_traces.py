"""The trace of a request to judge, as a transcript."""

from __future__ import annotations

from typing import Any

import pytest

from synth.errors import Problem
from synth.gateway.api.synth.judging.requests import JudgeTrace, transcript_of
from synth.transcripts.transcript import Transcript


def transcript(*events: dict[str, Any]) -> Transcript:
    result = transcript_of(JudgeTrace(event_history=list(events)))
    assert isinstance(result, Transcript)
    return result


@pytest.mark.parametrize(("reward", "shown"), [(1, 1.0), (0.5, 0.5), (None, None), ("1", None), (10**400, None)])
def test_the_reward_of_a_step_is_a_number_or_none(reward: Any, shown: float | None):
    for event in ({"observation": "a", "reward": reward}, {"system_state_after": {}, "reward": reward}):
        answer = transcript(event).answer
        assert answer is not None
        assert [step.reward for step in answer.steps or ()] == [shown]


def test_a_trace_without_events_is_a_problem():
    assert isinstance(transcript_of(JudgeTrace()), Problem)
