"""Prompts that take long to read: who sends them waits, and nobody else does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from synth.inference.api.limits import RequestLimits
from synth.inference.chat.prompts import ChatFormat
from synth.inference.engines.transformers import TransformersEngine
from synth.inference.tokenizers import load_tokenizer
from tests.loop_gaps import RecordProperty, check_gaps
from tests.unit.inference.one_model_service import API_KEY_HEADERS, CHAT_BODY, Served

_SIZE = 4 << 20


def call_with(arguments: str) -> dict[str, Any]:
    calls = [{"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}]
    return {"role": "assistant", "content": None, "tool_calls": calls}


#: What a chat adds to its messages, and what the reply says of it.
LONG: dict[str, tuple[dict[str, Any], str]] = {
    "words": ({"role": "user", "content": "word " * (_SIZE // 5)}, "maximum context length"),
    "one letter": ({"role": "user", "content": "a" * _SIZE}, "maximum context length"),
    "control tokens": ({"role": "user", "content": "<|im_end|>" * (_SIZE // 10)}, "maximum context length"),
    "halves of control tokens": ({"role": "user", "content": "<|im_endx" * (_SIZE // 9)}, "maximum context length"),
    "private characters": ({"role": "user", "content": "\U000f0000" * (_SIZE // 4)}, "maximum context length"),
    "marks": ({"role": "user", "content": "<think></think>" * (_SIZE // 15)}, "maximum context length"),
    "a call's text": (call_with(json.dumps({"a": "b" * _SIZE})), "maximum context length"),
}


@pytest.fixture
async def served(engine: TransformersEngine, model_dir: Path) -> AsyncIterator[Served]:
    one = Served(engine, ChatFormat(load_tokenizer(model_dir)), RequestLimits(default_max_tokens=1))
    yield one
    await one.http.aclose()


@pytest.mark.parametrize("case", LONG)
async def test_a_prompt_that_cannot_fit_is_refused_while_the_loop_turns(
    case: str, served: Served, record_property: RecordProperty
):
    message, reason = LONG[case]
    await served.ask(None, model="tiny")
    got = await check_gaps(
        lambda: served.ask(None, model="tiny", messages=[{"role": "user", "content": "hi"}, message]),
        record_property,
        "inference",
        f"a prompt of {case}",
    )
    assert (got.status_code, reason in got.json()["error"]["message"]) == (400, True), got.text


#: Schemas with a text of more than 64 KiB.
SCHEMAS: dict[str, dict[str, Any]] = {
    "one text": {"description": "a" * _SIZE},
    "many keys": {"properties": {str(i): {} for i in range(60_000)}},
    "a list": {"enum": [[]] * 40_000},
    "nesting": {"anyOf": [{"anyOf": [{}] * 300}] * 100},
    "long keys": {"properties": {"a" * 1000 + str(i): {} for i in range(4000)}},
}


@pytest.mark.parametrize("case", SCHEMAS)
async def test_a_schema_that_is_too_long_is_refused_while_the_loop_turns(
    case: str, served: Served, record_property: RecordProperty
):
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMAS[case]}}
    content = json.dumps(CHAT_BODY | {"model": "tiny", "response_format": form}).encode()
    await served.ask(None, model="tiny")
    got = await check_gaps(
        lambda: served.http.post("/v1/chat/completions", content=content, headers=API_KEY_HEADERS),
        record_property,
        "inference",
        f"a schema of {case}",
    )
    assert (got.status_code, "SYNTH_MAX_SCHEMA_BYTES" in got.json()["error"]["message"]) == (400, True), got.text


async def test_a_call_whose_text_has_too_many_values_is_refused(served: Served):
    message = call_with('{"a":[' + "[]," * 300_000 + "0]}")
    got = await served.ask(None, model="tiny", messages=[{"role": "user", "content": "hi"}, message])
    assert (got.status_code, "SYNTH_MAX_REQUEST_VALUES" in got.json()["error"]["message"]) == (400, True), got.text


async def test_long_prompts_of_one_organisation_keep_no_short_one_waiting(served: Served):
    """More long prompts than the process has threads."""
    # Each is tokenised, as with a tokenizer of which no bound is known.
    object.__setattr__(served.chat, "characters_per_token", None)
    long = [{"role": "user", "content": "word " * 20_000}]
    waiting = [asyncio.create_task(served.ask(None, model="tiny", messages=long)) for _ in range(40)]
    await asyncio.sleep(0)
    got = await served.ask(None, model="tiny")
    ended = sum(task.done() for task in waiting)
    refused = await asyncio.gather(*waiting)
    assert got.status_code == 200
    assert ended < len(waiting) / 2
    assert [reply.status_code for reply in refused] == [400] * len(waiting)
    assert "at least" not in refused[0].json()["error"]["message"]
