"""Graders that ask a model: what is read of them, and what they ask."""

from __future__ import annotations

from typing import Any

import pytest

from synth.errors import UserError
from synth.graders.grade import GraderFailed, grade, total_of
from synth.graders.schema import models_of, parse_grader, templates_of
from synth.graders.template import Sample
from synth.judging.grading import PromptMessage, PromptPiece

SCORE: dict[str, Any] = {
    "type": "score_model",
    "name": "s",
    "model": "a-judge",
    "input": [
        {"role": "developer", "content": "The answer is {{item.answer}}."},
        {"role": "user", "content": [{"type": "input_text", "text": "Said: {{ sample.output_text }}"}, " (end)"]},
    ],
    "range": [1, 5],
    "sampling_params": {"temperature": 0.5, "seed": 7, "top_p": None},
}
LABEL: dict[str, Any] = {
    "type": "label_model",
    "name": "l",
    "model": "b-judge",
    "input": [{"type": "message", "role": "user", "content": "{{sample.output_json.x}}"}],
    "labels": ["good", "bad", "fair"],
    "passing_labels": ["good", "fair"],
}
EXACT = {"type": "string_check", "name": "e", "input": "{{sample.output_text}}", "reference": "4", "operation": "eq"}
MULTI: dict[str, Any] = {
    "type": "multi",
    "name": "m",
    "graders": {"s": SCORE, "l": LABEL, "e": EXACT},
    "calculate_output": "s + l + 10*e",
}


def test_a_score_models_messages_are_filled_in_and_say_what_the_model_said():
    found = grade(parse_grader(SCORE), {"answer": 4}, Sample("four", []), max_characters=100)
    assert found.score is None
    [prompt] = found.asked
    assert (prompt.key, prompt.model, prompt.range) == ("s", "a-judge", (1.0, 5.0))
    assert prompt.sampling == {"temperature": 0.5, "seed": 7}
    developer = PromptMessage(
        role="developer", pieces=[PromptPiece(text="The answer is "), PromptPiece(text="4"), PromptPiece(text=".")]
    )
    said = [PromptPiece(text="Said: "), PromptPiece(text="four", sampled=True), PromptPiece(text=" (end)")]
    assert prompt.messages == [developer, PromptMessage(role="user", pieces=said)]


def test_a_range_that_is_left_out_is_0_to_1():
    grader = {name: value for name, value in SCORE.items() if name not in ("range", "sampling_params")}
    [prompt] = grade(parse_grader(grader), {"answer": 4}, Sample("", []), max_characters=100).asked
    assert (prompt.range, prompt.sampling) == ((0.0, 1.0), {})


def test_what_the_sample_lacks_is_0_and_is_not_asked():
    found = grade(parse_grader(MULTI), {"answer": 4}, Sample("4", []), max_characters=100)
    # "4" is JSON without fields.
    assert ([prompt.key for prompt in found.asked], found.parts, list(found.lacking)) == (
        ["s"],
        {"l": 0.0, "e": 1.0},
        ["l"],
    )
    assert total_of(parse_grader(MULTI), found.parts | {"s": 3.0}) == 13.0
    long = grade(parse_grader(SCORE), {"answer": 4}, Sample("4" * 200, []), max_characters=100)
    assert (long.score, long.asked) == (0.0, [])


def test_a_formula_without_a_value_is_the_graders_fault():
    with pytest.raises(GraderFailed, match="has no value"):
        total_of(parse_grader({**MULTI, "calculate_output": "1 / s"}), {"s": 0.0, "l": 1.0, "e": 0.0})


def test_the_models_and_the_templates_of_a_multi_are_those_of_its_parts():
    grader = parse_grader(MULTI)
    assert models_of(grader) == ["a-judge", "b-judge"]
    assert list(templates_of(grader)) == [
        "grader.graders.s.input[0].content",
        "grader.graders.s.input[1].content[0]",
        "grader.graders.s.input[1].content[1]",
        "grader.graders.l.input[0].content",
        "grader.graders.e.input",
        "grader.graders.e.reference",
    ]


def test_as_json_it_is_the_same_grader():
    grader = parse_grader(MULTI)
    assert parse_grader(grader.model_dump(mode="json", exclude_none=True)) == grader


@pytest.mark.parametrize(
    ("grader", "where", "what"),
    [
        ({**SCORE, "range": [1, 1]}, "grader.range", "from 1 to 1"),
        ({**SCORE, "range": [0, 1, 2]}, "grader.range", "at most 2"),
        ({**SCORE, "range": [0, float("inf")]}, "grader.range.1", "finite"),
        ({**SCORE, "input": []}, "grader.input", "at least 1"),
        ({**SCORE, "sampling_params": {"n": 2}}, "grader.sampling_params.n", "not known"),
        ({**SCORE, "input": [{"role": "user", "content": "{{x}}"}]}, "grader.input[0].content", "no reference"),
        (
            {**SCORE, "input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "grader.input[0].content",
            "text alone",
        ),
        ({**LABEL, "labels": ["good", "bad", "good"]}, "grader.labels", "twice"),
        ({**LABEL, "passing_labels": ["great"]}, "grader.passing_labels", "'great' passes"),
        ({**LABEL, "passing_labels": []}, "grader.passing_labels", "at least 1"),
        ({**LABEL, "model": ""}, "grader.model", "at least 1"),
        ({"type": "python", "name": "p", "source": "def grade(a): return 1"}, "grader.source", "(sample, item)"),
        ({"type": "python", "name": "p", "source": "x = 1"}, "grader.source", "defines no grade"),
        ({"type": "python", "name": "p", "source": "def"}, "grader.source", "not Python"),
        (
            {"type": "python", "name": "p", "source": "", "image_tag": "2025"},
            "grader.image_tag",
            "names an image",
        ),
    ],
)
def test_a_wrong_grader_is_refused_at_its_field(grader: dict[str, Any], where: str, what: str):
    with pytest.raises(UserError) as refused:
        parse_grader(grader)
    assert any(p.where == where and what in p.what for p in refused.value.problems), refused.value.problems
