"""Each grader, by vectors that were computed by hand."""

from __future__ import annotations

from typing import Any

import pytest

from synth.errors import UserError
from synth.graders import schema
from synth.graders.grade import Graded, GraderFailed, grade
from synth.graders.schema import parse_grader
from synth.graders.similarity import similarity
from synth.graders.template import Sample

CAT = "the cat sat on the mat"
OTHER = "the cat sat on a mat"


def _graded(grader: dict[str, Any], text: str, item: Any = None, tools: Any = (), limit: int = 10_000) -> Graded:
    return grade(parse_grader(grader), item or {}, Sample(text, list(tools)), max_characters=limit)


def _check(operation: str, reference: str, read: str = "{{sample.output_text}}") -> dict[str, Any]:
    return {"type": "string_check", "name": "c", "input": read, "reference": reference, "operation": operation}


@pytest.mark.parametrize(
    ("operation", "text", "reference", "score"),
    [
        ("eq", "Yes", "Yes", 1),
        ("eq", "yes", "Yes", 0),
        ("eq", "Yes ", "Yes", 0),
        ("ne", "yes", "Yes", 1),
        ("ne", "Yes", "Yes", 0),
        ("like", "the Answer is 4", "Answer", 1),
        ("like", "the answer is 4", "Answer", 0),
        ("like", "4", "the answer is 4", 0),
        ("ilike", "the ANSWER is 4", "answer", 1),
        ("ilike", "STRASSE", "straße", 1),
    ],
)
def test_a_string_is_checked(operation: str, text: str, reference: str, score: float):
    assert _graded(_check(operation, reference), text).score == score


@pytest.mark.parametrize(
    ("metric", "text", "reference", "score"),
    [
        # Three of six letters go, four of seven come: 13 letters, 5 of them edits.
        ("fuzzy_match", "kitten", "sitting", 8 / 13),
        # Words shared: 5 of 6. F1 = 2 x 5 / 12.
        ("rouge_1", OTHER, CAT, 10 / 12),
        # Pairs of words shared: the cat, cat sat, sat on: 3 of 5.
        ("rouge_2", OTHER, CAT, 6 / 10),
        ("rouge_3", OTHER, CAT, 4 / 8),
        ("rouge_4", OTHER, CAT, 2 / 6),
        ("rouge_5", OTHER, CAT, 0.0),
        # the cat sat on mat.
        ("rouge_l", OTHER, CAT, 10 / 12),
        ("rouge_1", "The CAT!", "the cat", 1.0),
        # 5/6, 3/5, 2/4 and 1/3, as long as the reference.
        ("bleu", OTHER, CAT, (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25),
        ("bleu", "42", "42", 1.0),
        # 5 + 3 + 2 + 1 of 6 + 5 + 4 + 3.
        ("gleu", OTHER, CAT, 11 / 18),
    ],
)
def test_texts_are_compared(metric: Any, text: str, reference: str, score: float):
    assert similarity(metric, text, reference) == pytest.approx(score)


@pytest.mark.parametrize(
    "metric", ["fuzzy_match", "bleu", "gleu", "rouge_1", "rouge_2", "rouge_3", "rouge_4", "rouge_5", "rouge_l"]
)
def test_every_metric_goes_from_nothing_to_the_same(metric: Any):
    assert similarity(metric, CAT, CAT) == pytest.approx(1.0)
    assert similarity(metric, "xyz", "abc") == pytest.approx(0.0)
    assert similarity(metric, "", CAT) == 0.0
    assert similarity(metric, "", "") == 1.0


@pytest.mark.parametrize(
    ("read", "score"),
    [
        ("{{sample.output_json.a.b[1]}}", 1),
        ("{{ sample.output_json.a.b[1] }}", 1),
        ("{{sample.output_json.a.b[0]}}", 0),
        ("{{sample.output_json.a.b[7]}}", 0),
        ("{{sample.output_json.none}}", 0),
        ("{{sample.output_tools[0].function.name}}", 0),
        ("{{item.n}}", 1),
        ("{{item.deep.n}}", 1),
    ],
)
def test_a_reference_goes_into_objects_and_lists(read: str, score: float):
    item = {"n": 2, "deep": {"n": "2"}}
    assert _graded(_check("eq", "2", read), '{"a": {"b": [1, 2]}}', item).score == score


def test_other_values_than_texts_stand_as_json():
    item = {"yes": True, "none": None, "list": [1, "a"]}
    grader = _check("eq", "{{item.yes}} {{item.none}} {{item.list}}")
    assert _graded(grader, 'true null [1,"a"]', item).score == 1


def test_tool_calls_are_read():
    calls = [{"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}]
    assert _graded(_check("eq", "add", "{{sample.output_tools[0].function.name}}"), "", tools=calls).score == 1


def test_a_sample_without_what_is_read_earns_nothing_and_is_said():
    found = _graded(_check("ne", "x", "{{sample.output_json.answer}}"), "no JSON")
    assert (found.score, list(found.lacking)) == (0.0, ["c"])


def test_what_the_row_lacks_is_no_reward():
    with pytest.raises(GraderFailed, match="there is no 'answer'"):
        _graded(_check("eq", "{{item.answer}}"), "4", {"other": 1})


def test_long_texts_are_not_compared():
    with pytest.raises(GraderFailed, match="more than 10 characters"):
        _graded(_check("eq", "x" * 11), "y", limit=10)
    found = _graded(_check("ne", "x"), "y" * 10, limit=10)
    assert (found.score, found.lacking["c"][:41]) == (0.0, "the output is too long: it is compared up")
    # The parts of a multi grader are compared one by one.
    parts = {"a": _check("ne", "x"), "b": _check("ne", "x")}
    whole = _graded({"type": "multi", "name": "m", "graders": parts, "calculate_output": "a + b"}, "y" * 9, limit=10)
    assert whole.score == 2.0


def _multi(formula: str, **graders: dict[str, Any]) -> dict[str, Any]:
    return {"type": "multi", "name": "m", "graders": graders, "calculate_output": formula}


def test_a_formula_combines_the_scores():
    similar = {**_check("eq", CAT), "type": "text_similarity", "evaluation_metric": "rouge_2"}
    del similar["operation"]
    found = _graded(_multi("0.5 * exact + 0.5 * near", exact=_check("eq", CAT), near=similar), OTHER)
    assert found.score == pytest.approx(0.3)
    assert found.parts == {"exact": 0.0, "near": pytest.approx(0.6)}


def test_a_formula_without_a_value_is_no_reward():
    with pytest.raises(GraderFailed, match="has no value"):
        _graded(_multi("1 / a", a=_check("eq", "x")), "y")


def test_one_grader_without_a_key_has_its_name():
    grader = {"type": "multi", "name": "m", "graders": _check("eq", "4"), "calculate_output": "2 * c"}
    assert _graded(grader, "4").score == 2.0


@pytest.mark.parametrize(
    ("grader", "where", "what"),
    [
        ({"type": "oracle"}, "grader.type", "not known"),
        ({**_check("eq", "x"), "operation": "neq"}, "grader.operation", "Input should be"),
        ({**_check("eq", "x"), "pass_threshold": 1}, "grader.pass_threshold", "not known"),
        (_check("eq", "{{item}}"), "grader.reference", "names no field"),
        (_check("eq", "{{item.x"), "grader.reference", "not closed"),
        (_check("eq", "x", "{{sample.output_audio}}"), "grader.input", "has no 'output_audio'"),
        (_check("eq", "x", "{{sample.output_text.x}}"), "grader.input", "no fields"),
        (_check("eq", "x", "{{row.x}}"), "grader.input", "no reference"),
        (
            {"type": "text_similarity", "name": "t", "input": "", "reference": "", "evaluation_metric": "cosine"},
            "grader.evaluation_metric",
            "embeddings",
        ),
        (_multi("a + b", a=_check("eq", "x")), "grader.calculate_output", "'b' is not one of its graders"),
        (_multi("a.b", a=_check("eq", "x")), "grader.calculate_output", "nothing that a formula"),
        (_multi("a", a=_multi("b", b=_check("eq", "x"))), "grader.graders.a.type", "multi"),
        (_multi("a", a=_check("is", "x")), "grader.graders.a.operation", "Input should be"),
        (_multi("a", **{"a b": _check("eq", "x")}), "grader.graders.a b", "no name"),
        ({"type": "multi", "name": "m", "calculate_output": "1"}, "grader.graders", "has none"),
        (_multi("a0", **{f"a{n}": _check("eq", "x") for n in range(33)}), "grader.graders", "33 graders"),
    ],
)
def test_a_wrong_grader_is_refused_at_its_field(grader: dict[str, Any], where: str, what: str):
    with pytest.raises(UserError) as refused:
        parse_grader(grader)
    problem = refused.value.problems[0]
    assert (problem.where, what in problem.what) == (where, True), problem
    assert problem.expected


PYTHON = {"type": "python", "name": "p", "source": "def grade(sample, item): return 1"}


@pytest.mark.parametrize("grader", [PYTHON, {"type": "multi", "name": "m", "graders": {"p": PYTHON}}])
def test_code_that_is_not_run_is_refused_before_it_is_parsed(
    grader: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def parsed(source: str) -> str:
        raise AssertionError(source)

    monkeypatch.setattr(schema, "source_wrong", parsed)
    with pytest.raises(UserError, match="runs no code"):
        parse_grader(grader, python=False)
