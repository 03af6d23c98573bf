"""Any body at all against a live app: an answer, or one OpenAI error that names the field; never a 500."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from synth.chat.messages import ROLES
from synth.inference.api.keys import OPENAI_FIELDS
from synth.inference.api.requests import ChatRequest
from synth.inference.chat.prompts import ChatFormat
from synth.inference.engines.settings import EngineSettings
from synth.inference.engines.transformers import TransformersEngine
from synth.inference.tokenizers import load_tokenizer
from tests.unit.inference.one_model_service import API_KEY_HEADERS, Served, credential
from tests.unit.inference.tiny_model import save_tiny_model

FIELDS = [field.name for field in msgspec.structs.fields(ChatRequest)]
_rollouts = itertools.count()

_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
_TEXT = st.text(max_size=12) | st.sampled_from(
    ["<think>", "</think>", "<|im_end|>", "<|im_start|>user\n", "<tool_call>"]
)
_CALL = st.fixed_dictionaries(
    {"function": st.fixed_dictionaries({"name": _TEXT, "arguments": _TEXT | st.just('{"a": 1}') | _JSON})},
    optional={"id": _TEXT, "type": st.just("function")},
)
_MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from([*ROLES, "function"])},
    optional={
        "content": _TEXT
        | st.none()
        | st.lists(st.fixed_dictionaries({"type": st.sampled_from(["text", "image_url"]), "text": _TEXT}), max_size=2),
        "tool_calls": st.lists(_CALL, max_size=2),
        "tool_call_id": _TEXT,
        "reasoning_content": _TEXT,
        "reasoning": _TEXT | _JSON,
    },
)
_TOOL = st.fixed_dictionaries(
    {
        "type": st.just("function"),
        "function": st.fixed_dictionaries(
            {"name": st.sampled_from(["add", "sub", 'a"b', ""])}, optional={"parameters": _JSON}
        ),
    }
)
_CHOICE = st.sampled_from(
    ["none", "auto", "required", "any", {"type": "function", "function": {"name": "add"}}, {"name": "sub"}, {}]
)
_HELLO = st.just({"role": "user", "content": "hi"})
_MESSAGES = st.lists(_HELLO | _HELLO | _MESSAGE, min_size=1, max_size=3)

# What may be asked for, so that most bodies get an answer …
_GOOD: dict[str, st.SearchStrategy[Any]] = {
    "stream": st.booleans(),
    "stream_options": st.just({"include_usage": True}),
    "temperature": st.sampled_from([0, 1e-300, 1e-6, 0.7, 2]),
    "top_p": st.sampled_from([0, 1e-9, 0.5, 1]),
    "top_k": st.sampled_from([-1, 0, 1, 10**6]),
    "max_completion_tokens": st.sampled_from([1, 7, 2**40]),
    "stop": _TEXT.filter(bool) | st.lists(_TEXT.filter(bool), max_size=4),
    "seed": st.sampled_from([0, -1, 2**63 - 1]),
    "n": st.sampled_from([1, 2, 16]),
    "logprobs": st.booleans(),
    "top_logprobs": st.sampled_from([0, 1, 20]),
    "frequency_penalty": st.sampled_from([-2, 0, 0.5, 2]),
    "presence_penalty": st.sampled_from([-2, 0, 0.5, 2]),
    "logit_bias": st.sampled_from([{}, {"5": 1}, {"0": -100, "319": 100}]),
    "return_token_ids": st.booleans(),
    # A few schemas only, because each is compiled in a process of its own.
    "response_format": st.sampled_from(
        [
            {"type": "text"},
            {"type": "json_object"},
            {"type": "json_schema", "json_schema": {"schema": {"type": "boolean"}, "strict": True}},
            {"type": "json_schema", "json_schema": {"schema": {"type": "strin"}}},
        ]
    ),
    "tools": st.lists(_TOOL, max_size=2),
    "tool_choice": _CHOICE,
    "parallel_tool_calls": st.booleans(),
    "stop_after_tool_calls": st.sampled_from([0, 1, 2]),
    "thinking_mode": st.sampled_from(["think", "no_think"]),
    "thinking_budget": st.sampled_from([0, 1, 3, 10**9]),
    "chat_template_kwargs": st.fixed_dictionaries(
        {}, optional={"enable_thinking": st.booleans(), "thinking_budget": st.integers(0, 4)}
    ),
}
# … and what is wrong in one place.
_WRONG: dict[str, st.SearchStrategy[Any]] = {
    "model": st.just("other"),
    "temperature": st.sampled_from([2.1, -1]),
    "top_p": st.sampled_from([-0.1, 1.1]),
    "max_tokens": st.sampled_from([-1, 0]),
    "stop": st.lists(_TEXT, min_size=5, max_size=5),
    "seed": st.sampled_from([2**63, -(2**63) - 1]),
    "n": st.sampled_from([-1, 0, 129]),
    "function_call": _CHOICE,
    "reasoning_effort": st.sampled_from(["none", "high", ""]),
    "response_format": st.sampled_from([{}, {"type": "json_schema"}, {"type": "json_schema", "json_schema": []}]),
    "top_logprobs": st.sampled_from([-1, 21, False]),
    "frequency_penalty": st.sampled_from([-2.1, 3, False]),
    "presence_penalty": st.sampled_from([-2.1, 3, False]),
    "logit_bias": st.sampled_from([{"5": 101}, {"320": 1}, {"-1": 1}, {"1" * 5000: 1}, {"5": None}]),
    "thinking_budget": st.just(-1),
}


@st.composite
def _bodies(draw: st.DrawFn) -> dict[str, Any]:
    needed = {"messages": _MESSAGES, "model": st.just("tiny"), "max_tokens": st.sampled_from([1, 5, 9])}
    body: dict[str, Any] = draw(st.fixed_dictionaries(needed, optional=_GOOD))
    if body.get("top_logprobs"):
        body["logprobs"] = True
    if draw(st.integers(0, 2)) == 0:
        name = draw(st.sampled_from(FIELDS))
        body[name] = draw(_WRONG.get(name, _JSON) | _JSON)
    return body


@pytest.fixture(scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    model_dir = tmp_path_factory.mktemp("tiny-qwen3")
    save_tiny_model(model_dir)
    engine = await TransformersEngine.load(model_dir, settings=EngineSettings(device="cpu", seed=0))
    one = Served(engine, ChatFormat(load_tokenizer(model_dir)))
    yield one
    await one.http.aclose()
    await engine.close()


def nested(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth):
        value = {"a": value}
    return value


def hello(**more: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, **more}


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=_bodies() | _bodies() | _bodies() | _JSON, rollout=st.booleans())
@example(body=hello(tools=[nested(80)]), rollout=True)
@example(body=hello(tools=[nested(900)]), rollout=True)
@example(body=hello(messages=[{"role": "user", "content": "\ud800"}]), rollout=False)
@example(
    body=hello(tools=[{"type": "function", "function": {"name": "\udcff"}}], tool_choice="required"), rollout=False
)
@example(body=hello(temperature=1e-45), rollout=False)
@example(body=hello(top_p=0, n=16), rollout=False)
async def test_any_body_gets_an_answer_or_an_error_that_names_the_field(
    served: Served, body: Any, rollout: bool
) -> None:
    query = f"?cid={credential(f'job_1_t{next(_rollouts)}_0', calls=128)}" if rollout else ""
    got = await served.http.post(
        f"/v1/chat/completions{query}", content=json.dumps(body), headers={} if rollout else API_KEY_HEADERS
    )
    assert got.status_code in (200, 400, 404), got.text
    if got.status_code != 200:
        error = got.json()["error"]
        assert set(error) >= {"message", "type", "param", "code"}
        assert error["message"]
        assert error["type"] == "invalid_request_error"
        named = error["param"].replace("[", ".").split(".")[0]
        assert named in (*FIELDS, *OPENAI_FIELDS, "body")
    elif got.headers["content-type"].startswith("text/event-stream"):
        *events, done = [line.removeprefix("data: ") for line in got.text.strip().split("\n\n")]
        assert done == "[DONE]"
        said = [choice for event in events for choice in json.loads(event)["choices"]]
        assert sum(choice["finish_reason"] is not None for choice in said) == (body.get("n") or 1)
    else:
        reply = got.json()
        assert len(reply["choices"]) == (body.get("n") or 1)
        most = body.get("max_completion_tokens") or body["max_tokens"] or 1024
        assert reply["usage"]["completion_tokens"] <= most * len(reply["choices"])
    assert served.engine.healthy
