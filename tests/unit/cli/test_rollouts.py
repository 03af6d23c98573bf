"""Rollouts on a terminal of any width: a line each, one in full, and nothing lost or let through."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.console import Console

from synth.api.rollouts import GroupMember, RolloutDetail, RolloutSummary, RolloutTraining
from synth.api.schemas import EventView
from synth.cli.tui.progress import describe
from synth.cli.tui.rollout.listing import print_rollouts
from synth.cli.tui.rollout.transcript import lines, print_rollout
from synth.console.plain_text import printable
from synth.errors import Problem
from synth.events import FailedTries
from synth.transcripts.transcript import TaskAppAnswer, Transcript, TranscriptStep, TranscriptTurn

NOW = datetime.now(UTC)
JOB = "job_5fb1cd4b26a0c3e9"


def summary(**changes: Any) -> dict[str, Any]:
    return {
        "id": f"{JOB}_t1000_511",
        "job_id": JOB,
        "mode": "train",
        "iteration": 1000,
        "index": 511,
        "group": 63,
        "seed": 987654321,
        "outcome": "policy_failure",
        "reward": -0.12345,
        "completion_tokens": 123456,
        "calls": 64,
        "versions": (997, 999),
        "seconds": 599.9,
        "tries": 4,
        "ended_at": NOW,
        "seq": 7,
    } | changes


def turn(n: int, **changes: Any) -> TranscriptTurn:
    fields: dict[str, Any] = {
        "continues": n - 2 if n > 1 else None,
        "messages": [{"role": "user", "content": f"question {n}"}],
        "reply": {"role": "assistant", "content": f"answer {n}"},
        "finish_reason": "stop",
        "sampled_tokens": 5,
        "versions": (3, 3),
    }
    return TranscriptTurn(**fields | changes)


def detail(transcript: Transcript | None, **changes: Any) -> RolloutDetail:
    return RolloutDetail(**summary(outcome="ok", reward=0.0), transcript=transcript, **changes)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch):
    """What a terminal of this width would show."""

    def show(width: int, draw: Any, *arguments: Any) -> str:
        screen = io.StringIO()
        console = Console(file=screen, width=width, force_terminal=True, color_system=None, highlight=False)
        monkeypatch.setattr("synth.cli.tui.output.out", lambda: console)
        monkeypatch.setattr("synth.cli.tui.output.is_terminal", lambda: True)
        draw(*arguments)
        return screen.getvalue()

    return show


def test_the_longest_line_of_a_rollout_has_room_in_100_columns(terminal: Any):
    shown = terminal(100, print_rollouts, [RolloutSummary(**summary())])
    [head, line] = [line for line in shown.split("\n") if line.strip()]
    assert len(line.rstrip()) <= 100
    assert "ROLLOUT" in head
    for figure in ("t1000_511", "987654321", "-0.1235", "policy failed", "123456", "64", "997-999", "10m00s"):
        assert figure in line


@pytest.mark.parametrize("width", [80, 44])
def test_on_a_narrow_terminal_nothing_of_it_is_lost(terminal: Any, width: int):
    shown = terminal(width, print_rollouts, [RolloutSummary(**summary())])
    assert max(map(len, shown.split("\n"))) <= width
    joined = shown
    for figure in ("t1000_511", "seed 987654321", "reward -0.1235", "outcome policy failed", "tokens 123456"):
        assert figure in joined
    for figure in ("calls 64", "policy 997-999", "tries 4", "took 10m00s"):
        assert figure in joined


@pytest.mark.parametrize("width", [120, 80, 44])
def test_a_rollout_is_wrapped_and_not_cut(terminal: Any, width: int):
    words = " ".join(f"word{n}" for n in range(60))
    made = Transcript(turns=[turn(1, messages=[{"role": "user", "content": words}])], answer=TaskAppAnswer(status=200))
    shown = terminal(width, print_rollout, detail(made))
    assert max(map(len, shown.split("\n"))) <= width
    joined = "".join(shown.split())
    assert words.replace(" ", "") in joined


def test_turns_and_steps_stand_in_the_order_in_which_they_happened():
    steps = [TranscriptStep(obs={"n": n}, reward=float(n), after_call=n) for n in (1, 2)]
    made = Transcript(turns=[turn(1), turn(2)], answer=TaskAppAnswer(status=200, steps=steps))
    said = [text or label for label, text in lines(detail(made))]
    places = [
        next(i for i, text in enumerate(said) if wanted in text)
        for wanted in ("turn 1", "question 1", "answer 1", '{"n": 1}', "turn 2", "question 2", '{"n": 2}')
    ]
    assert places == sorted(places)


def test_an_app_that_does_not_say_where_its_steps_belong_has_one_for_each_call_or_all_at_the_end():
    steps = [TranscriptStep(obs=f"seen {n}") for n in (1, 2)]
    each = Transcript(turns=[turn(1), turn(2)], answer=TaskAppAnswer(status=200, steps=steps))
    said = [text or label for label, text in lines(detail(each))]
    assert said.index("seen 1") < next(i for i, text in enumerate(said) if "turn 2" in text) < said.index("seen 2")
    fewer = Transcript(turns=[turn(1), turn(2), turn(3)], answer=TaskAppAnswer(status=200, steps=steps))
    said = [text or label for label, text in lines(detail(fewer))]
    assert said.index("seen 1") > said.index("answer 3")


def test_reasoning_tools_calls_and_their_results_are_told_apart():
    call = {"id": "c", "function": {"name": "look", "arguments": '{"place": 2, "deep": true}'}}
    tool = {"type": "function", "function": {"name": "look", "parameters": {"properties": {"place": {}, "deep": {}}}}}
    reply = {"role": "assistant", "reasoning_content": "Two is even.", "tool_calls": [call]}
    bad = {"role": "assistant", "tool_calls": [{"function": {"name": "look", "arguments": "{place"}}]}
    made = Transcript(
        turns=[
            turn(1, tools=[tool], reply=reply),
            turn(
                2,
                messages=[{"role": "tool", "content": "KeyError: 2"}],
                reply=bad,
                finish_reason="length",
                images_dropped=2,
            ),
        ]
    )
    said = [(label, text) for label, text in lines(detail(made)) if text is not None]
    for line in (
        ("tools", "look(place, deep)"),
        ("thinks", "Two is even."),
        ("calls", "look(place=2, deep=true)"),
        ("tool", "KeyError: 2"),
        ("calls", "look({place)"),
        ("note", "the reply was cut off at the token limit"),
        ("note", "2 images of these messages dropped: the model was not shown them"),
    ):
        assert line in said


@pytest.mark.parametrize(
    ("training", "said"),
    [
        (RolloutTraining(state="waiting", note="its iteration is not batched yet"), "not batched yet"),
        (RolloutTraining(state="dropped", reason="no_signal"), "all rewards of its group are equal"),
        (RolloutTraining(state="dropped", reason="sibling_failed"), "another rollout of its group failed"),
        (RolloutTraining(state="dropped", reason="too_old", advantage=0.5), "older than max_staleness"),
        (RolloutTraining(state="trained", advantage=-1.5, trained_tokens=12, sequences=2), "advantage -1.5; 12 tokens"),
        (RolloutTraining(state="trained", note="the batch has expired"), "trained; the batch has expired"),
    ],
)
def test_what_became_of_it_is_said(training: RolloutTraining, said: str):
    members = [GroupMember(id=f"{JOB}_t1000_510", outcome="failed")]
    shown = list(lines(detail(None, training=training, group_members=members, transcript_note="expired")))
    assert any(said in (text or "") for _, text in shown)
    assert ("group", "1 other: t1000_510 -") in shown
    assert shown[-1] == ("note", "expired")


def test_earlier_tries_say_why_they_failed():
    failed = [FailedTries(problem=Problem(what="HTTP 500: no"), times=3)]
    shown = list(lines(detail(Transcript(), failed_tries=failed)))
    assert ("tries", "4") in shown
    assert ("error", "before: 3 times: HTTP 500: no") in shown


def test_what_was_cut_is_said():
    made = Transcript(limit=4096, cut_values=2, turns_left_out=5, turns=[turn(1), turn(2), turn(8, continues=6)])
    shown = list(lines(detail(made)))
    assert ("cut", "5 turns left out") in shown
    assert any(label == "cut" and "2 values shortened" in (text or "") for label, text in shown)
    assert any((label or "").startswith("turn 8") for label, text in shown if text is None)


def test_foreign_text_cannot_move_the_cursor():
    assert printable("a\x1b[2Jb\x07\r\nc\td\x9b\u202e") == "a␛[2Jb␇\nc\td\ufffd\ufffd"


def test_an_event_of_a_rollout_says_its_seed_its_reward_and_its_outcome():
    def said(type: str, **data: Any) -> str | None:
        fields = {"rollout_id": f"{JOB}_t3_17", "seed": 9, "tries": 1} | data
        return describe(EventView(seq=1, time=NOW, type=type, data=fields))

    assert said("rollout.completed", reward=0.25) == "rollout t3_17 seed 9: reward 0.25 ok"
    assert said("rollout.completed", reward=0.0, outcome="policy_failure", tries=2) == (
        "rollout t3_17 seed 9: reward 0 policy failed after 2 tries"
    )
    assert said("rollout.failed", problem={"what": "HTTP 500"}) == "rollout t3_17 seed 9: failed: HTTP 500"
    assert said("rollout.failed", problem={"what": "slow"}, late=True) == "rollout t3_17 seed 9: was late: slow"
