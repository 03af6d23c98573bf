"""Formats, tool calls and other shapes of rows, and what a report makes of hostile text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from synth.cli.comparison.validity import calls_problem, format_problem
from synth.cli.sampling.rows import prompt_row
from tests.unit.cli.checking import Run
from tests.unit.cli.comparison.chat_api import ChatApi
from tests.unit.cli.comparison.conftest import write_rows

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def call(arguments: str, name: str = "weather") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]}


def text(content: str) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def row(reply: dict[str, Any] | None, **fields: Any) -> Any:
    messages = [{"role": "user", "content": "How is Bern?"}, *([reply] if reply else [])]
    return prompt_row(1, json.dumps({"messages": messages, **fields}).encode(), "rows")


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (call('{"city": "Bern"}'), ""),
        (call('{"town": "Bern"}'), "weather: the value: "),
        (call('{"city": 3}'), "weather: ['city']: 3 is not of type 'string'"),
        (call('{"city": '), "the arguments are no JSON object"),
        (call("{}", name="wether"), "there is no tool 'wether'"),
        (text("Fine."), "no tool call"),
    ],
)
def test_a_tool_call_is_valid_if_its_tool_exists_and_its_arguments_fit(reply: dict[str, Any], problem: str):
    found = calls_problem(row(call('{"city": "Bern"}'), tools=[WEATHER]), reply)
    assert found is not None
    assert found.startswith(problem)
    assert bool(found) == bool(problem)


def test_a_row_without_tools_has_no_opinion_on_a_text():
    assert calls_problem(row(text("Fine.")), text("Good.")) is None


SCHEMA = {"type": "json_schema", "json_schema": {"name": "w", "schema": {"type": "object", "required": ["sky"]}}}


@pytest.mark.parametrize(
    ("fields", "reference", "reply", "problem"),
    [
        ({}, text("Fine."), "{}", None),
        ({}, text('{"sky": 1}'), '{"sky": 2}', ""),
        ({}, text('{"sky": 1}'), "[1]", "JSON, and no object"),
        ({}, text('{"sky": 1}'), "sunny", "no JSON: Expecting value"),
        ({"response_format": SCHEMA}, None, '{"sky": 2}', ""),
        ({"response_format": SCHEMA}, None, "{}", "the value: 'sky' is a required property"),
    ],
)
def test_a_format_is_the_rows_own_or_that_of_its_reply(
    fields: dict[str, Any], reference: dict[str, Any] | None, reply: str, problem: str | None
):
    found = format_problem(row(reference, **fields), text(reply))
    assert (found is None) == (problem is None)
    if problem is not None:
        assert found is not None
        assert found.startswith(problem)
        assert bool(found) == bool(problem)


def test_a_schema_that_names_an_address_fetches_nothing():
    schema = {"type": "json_schema", "json_schema": {"name": "w", "schema": {"$ref": "http://127.0.0.1:9/schema"}}}
    assert format_problem(row(None, response_format=schema), text("{}")) == ""


@pytest.mark.parametrize(
    "line",
    [
        {"prompt": "How is Bern?", "completion": "Fine."},
        {"conversations": [{"from": "human", "value": "How is Bern?"}, {"from": "gpt", "value": "Fine."}]},
        {
            "input": {"messages": [{"role": "user", "content": "How is Bern?"}]},
            "preferred_output": [{"role": "assistant", "content": "Fine."}],
            "non_preferred_output": [{"role": "assistant", "content": "No."}],
        },
        {
            "messages": [
                {"role": "user", "content": "How is Bern?"},
                {"role": "assistant", "content": "Fine.", "weight": 1},
            ]
        },
    ],
    ids=["prompt and completion", "ShareGPT", "OpenAI's pairs", "messages"],
)
def test_rows_of_every_shape_are_a_prompt_and_a_reference(line: dict[str, Any]):
    read = prompt_row(1, json.dumps(line).encode(), "rows")
    assert read.messages == [{"role": "user", "content": "How is Bern?"}]
    assert read.item["reference"] == "Fine."
    assert read.reference is not None
    assert read.reference["content"] == "Fine."


def test_hostile_text_is_text_in_both_reports(run: Run, url: str, api: ChatApi):
    hostile = "<script>alert(1)</script> ``` | # heading"
    write_rows([{"messages": [{"role": "user", "content": hostile}, {"role": "assistant", "content": "no"}]}])
    api.reply = lambda model, text: hostile
    code, _, err = run("compare", "good", "weak", "--rows", "sums.jsonl", "--base-url", url)
    assert code == 0, err
    page = Path("comparison/report.html").read_text()
    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert f"````text\nuser: {hostile}\n````" in Path("comparison/report.md").read_text()
