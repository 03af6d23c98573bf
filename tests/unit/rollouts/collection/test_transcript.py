"""The transcript of a try: what is in it, and that it is bounded whatever a task app answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from synth.rollouts.collection.transcript import transcript_to_bytes
from synth.rollouts.rewards.scoring import TaskAppReply
from synth.trajectories import CompletionRecord
from synth.transcripts.transcript import RecordedChat, Transcript

LIMIT = 1 << 16


def record(text: str = "dig 2", *, version: int = 3) -> CompletionRecord:
    ids = np.arange(4, dtype=np.int32)
    chat = RecordedChat(messages=[{"role": "user", "content": text}], reply={"role": "assistant", "content": "2"})
    sampled = np.array([True, True, False, True])
    versions = np.array([version, version, version, version + 1], np.int32)
    return CompletionRecord(ids, ids, ids.astype(np.float32), versions, sampled, "length", chat=chat)


def answer(**changes: Any) -> dict[str, Any]:
    step = {"obs": {"error": "KeyError: 2"}, "reward": 0.5, "done": True, "info": {"meta": {"inference_url": "http"}}}
    return {
        "trajectories": [{"steps": [step], "final": {"gold": 0}}],
        "metrics": {"outcome_score": 0.5, "details": {"digs": 1}},
    } | changes


def transcript(body: Any, records: list[CompletionRecord], *, status: int = 200, limit: int = LIMIT) -> Transcript:
    made = transcript_to_bytes(records, TaskAppReply(status, body), rewards=[], limit=limit)
    assert len(made) <= limit * 1.25
    return msgspec.json.decode(made, type=Transcript)


def test_it_has_the_calls_and_the_answer():
    made = transcript(answer(), [record()])
    [turn] = made.turns
    assert (turn.prompt_tokens, turn.sampled_tokens, turn.versions, turn.finish_reason) == (4, 3, (3, 4), "length")
    assert made.answer is not None
    [step] = made.answer.steps
    assert (step.obs, step.reward, step.done) == ({"error": "KeyError: 2"}, 0.5, True)
    assert step.info is None, "the address of the model is a credential, and ours"
    assert made.answer.final == {"gold": 0}
    assert made.answer.metrics == {"outcome_score": 0.5, "details": {"digs": 1}}
    assert (made.answer.body, made.cut_values) == (None, 0)


def test_a_turn_says_how_many_images_the_model_was_not_shown():
    turns = transcript(answer(), [record(), replace(record(), images_dropped=2)]).turns
    assert [turn.images_dropped for turn in turns] == [0, 2]


def test_an_error_is_kept_with_the_steps_that_came_with_it():
    body = {"detail": {"error": {"message": "KeyError: 2"}}, "trajectories": [{"steps": [{"obs": "sand"}]}]}
    made = transcript(body, [record()], status=500)
    assert made.answer is not None
    assert made.answer.body == {"detail": {"error": {"message": "KeyError: 2"}}}
    assert [step.obs for step in made.answer.steps] == ["sand"]
    text = transcript("Traceback (most recent call last): …", [], status=500)
    assert text.answer is not None
    assert text.answer.body == "Traceback (most recent call last): …"


def test_a_try_that_was_cut_off_keeps_what_was_said():
    made = msgspec.json.decode(transcript_to_bytes([record()], None, rewards=[], limit=LIMIT), type=Transcript)
    assert (len(made.turns), made.answer) == (1, None)


def test_large_values_are_cut_and_small_ones_are_not():
    body = answer(metrics={"outcome_score": 1.0, "details": {"log": "y" * 1_000_000}})
    made = transcript(body, [record("x" * 1_000_000), record("short")], limit=LIMIT)
    assert made.cut_values == 2
    assert "characters cut" in made.turns[0].messages[0]["content"]
    assert made.turns[1].messages[0]["content"] == "short"
    assert made.answer is not None
    assert made.answer.steps[0].obs == {"error": "KeyError: 2"}


def test_of_too_many_steps_the_first_and_the_last_are_kept():
    steps = [{"obs": n, "reward": 0.0} for n in range(100_000)]
    made = transcript(answer(trajectories=[{"steps": steps}]), [record()])
    assert made.answer is not None
    kept = [step.obs for step in made.answer.steps]
    assert (kept[0], kept[-1]) == (0, 99_999)
    assert made.steps_left_out == 100_000 - len(kept)


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        "text",
        7,
        {"metrics": {"outcome_score": 1}, "trajectories": "none"},
        {"metrics": {"outcome_score": 1}, "trajectories": [7, {"steps": [None, "step", {"reward": "much"}]}]},
        {"metrics": {"outcome_score": 1}, "trajectories": [{"steps": [{"after_call": 1 << 99, "reward": 1 << 4000}]}]},
        {"metrics": {"outcome_score": 1}, "trajectories": [{"steps": [{"info": [], "tool_calls": {"a": 1}}]}]},
    ],
)
def test_an_answer_of_any_shape_is_taken(body: Any):
    transcript(body, [record()])
