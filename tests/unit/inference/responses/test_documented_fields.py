"""docs/responses.md lists how each field of the published SDK and of ours is treated."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_type_hints

import msgspec
from openai.types.responses import response_create_params as params

from synth.inference.api.responses.fields import RESPONSES_FIELDS, ResponsesRequest

PAGE = (Path(__file__).parents[4] / "docs" / "responses.md").read_text()
SDK = {
    **get_type_hints(params.ResponseCreateParamsNonStreaming),
    **get_type_hints(params.ResponseCreateParamsStreaming),
}
READ = {field.encode_name for field in msgspec.structs.fields(ResponsesRequest)}


def treatments() -> dict[str, str]:
    table = PAGE.partition("## Fields")[2].partition("\n\n| ")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ", 1) for line in table.splitlines()[2:]]
    return {name: text for names, text in rows for name in re.findall(r"`(\w+)`", names)}


def test_every_field_of_the_sdk_is_read_or_in_the_table_of_fields() -> None:
    assert SDK.keys() - {"extra_body"} <= READ | RESPONSES_FIELDS.keys()


def test_the_page_lists_every_field_as_it_is_treated() -> None:
    documented = treatments()
    assert documented.keys() == (SDK.keys() | RESPONSES_FIELDS.keys())
    for name, field in RESPONSES_FIELDS.items():
        expected = "ignored" if field.treatment == "taken" else field.treatment
        assert documented[name].startswith(expected), name
    for name in READ & SDK.keys():
        assert not documented[name].startswith("ignored"), name


def test_our_own_fields_are_on_the_page() -> None:
    for name in READ - SDK.keys():
        assert f"`{name}`" in PAGE
