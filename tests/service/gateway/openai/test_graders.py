"""The openai SDK tries a grader before it makes a job of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from tests.service.gateway.conftest import Client
from tests.service.gateway.openai.sdk_jobs import sdk_of

EXACT = {
    "type": "string_check",
    "name": "exact",
    "operation": "eq",
    "input": "{{sample.output_text}}",
    "reference": "{{item.answer}}",
}


@pytest.fixture
async def graders(user: Client) -> AsyncIterator[Any]:
    async with sdk_of(user) as client:
        yield client.fine_tuning.alpha.graders


async def test_a_grader_is_read_and_run(graders: Any):
    read = await graders.validate(grader=EXACT)
    assert read.grader.to_dict() == EXACT
    right = await graders.run(grader=EXACT, model_sample="4", item={"answer": "4"})
    wrong = await graders.run(grader=EXACT, model_sample="5", item={"answer": "4"})
    assert (right.reward, wrong.reward) == (1.0, 0.0)
    assert right.metadata.scores == {"exact": 1.0}
    assert (right.metadata.name, right.metadata.type) == ("exact", "string_check")


async def test_a_formula_tells_its_parts(graders: Any):
    like = EXACT | {"operation": "like"}
    multi = {
        "type": "multi",
        "name": "both",
        "graders": {"exact": EXACT, "like": like},
        "calculate_output": "exact + like / 4",
    }
    found = await graders.run(grader=multi, model_sample="it is 4", item={"answer": "4"})
    assert (found.reward, found.sub_rewards) == (0.25, {"exact": 0.0, "like": 1.0})


async def test_a_formula_needs_no_name(graders: Any):
    multi = {"type": "multi", "graders": {"exact": EXACT}, "calculate_output": "2 * exact"}
    found = await graders.run(grader=multi, model_sample="4", item={"answer": "4"})
    assert (found.reward, found.metadata.name) == (2.0, "multi")


@pytest.mark.parametrize(
    ("changes", "said", "flag"),
    [
        ({"reference": "{{item.none}}"}, "4", "invalid_variable_error"),
        ({"input": "{{sample.output_json.answer}}"}, "no JSON", "sample_parse_error"),
        ({}, "4" * 200_001, "sample_parse_error"),
        ({"reference": "4" * 200_001}, "4", "other_error"),
    ],
)
async def test_what_goes_wrong_is_flagged(graders: Any, changes: dict[str, Any], said: str, flag: str):
    found = await graders.run(grader=EXACT | changes, model_sample=said, item={"answer": "4"})
    assert found.reward == 0.0
    errors = found.metadata.errors.to_dict()
    assert [name for name, value in errors.items() if value is True] == [flag]
    assert errors["details"]


async def test_a_grader_that_is_not_run_is_refused_at_its_field(graders: Any):
    python = {"type": "python", "name": "p", "source": "def grade(sample, item): return 1"}
    for call in (graders.validate(grader=python), graders.run(grader=python, model_sample="")):
        with pytest.raises(openai.BadRequestError) as refused:
            await call
        assert (refused.value.param, "runs no code" in refused.value.message) == ("grader", True)


PYTHON: Any = {
    "type": "python",
    "name": "p",
    "source": "def grade(sample, item):\n    return len(sample['output_text']) / item['n']",
}


async def test_code_grades_where_the_operator_allows_it(start_gateway: Any, client_of: Any):
    user = await client_of(await start_gateway(python_graders=True))
    async with sdk_of(user) as client:
        graders = client.fine_tuning.alpha.graders
        found = await graders.run(grader=PYTHON, model_sample="abcd", item={"n": 8})
        assert (found.reward, found.metadata.scores) == (0.5, {"p": 0.5})
        both: Any = {"type": "multi", "graders": {"p": PYTHON, "exact": EXACT}, "calculate_output": "p + exact"}
        found = await graders.run(grader=both, model_sample="abcd", item={"n": 4, "answer": "abcd"})
        assert (found.reward, found.sub_rewards) == (2.0, {"p": 1.0, "exact": 1.0})
        failed = await graders.run(grader=PYTHON, model_sample="abcd", item={})
        assert (failed.reward, failed.metadata.errors.python_grader_runtime_error) == (0.0, True)
        assert "KeyError" in str(failed.metadata.errors.to_dict()["details"])


async def test_a_grader_that_asks_a_model_is_read(graders: Any):
    score = {
        "type": "score_model",
        "name": "s",
        "model": "m",
        "input": [{"role": "user", "content": "{{ sample.output_text }}"}],
    }
    assert (await graders.validate(grader=score)).grader.range == [0.0, 1.0]
