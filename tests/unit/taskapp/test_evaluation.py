"""A task app in an evaluation by the published client: traces, and a model behind a plain address."""

from __future__ import annotations

import json
from typing import Any

import pytest

from synth.taskapp.sdk import Episode
from tests.unit.taskapp.echo_app import URL, app_with, client, play, rollout
from tests.unit.taskapp.scripted_llm import ScriptedLlm, completion


async def test_an_evaluation_gets_the_trace_of_the_conversation_each_message_once():
    llm = ScriptedLlm(completion("two"), completion("three"))
    app = app_with(llm, max_turns=2)

    @app.episode
    async def episode(ep: Episode) -> None:
        messages = [{"role": "system", "content": "Count."}, {"role": "user", "content": "one"}]
        messages.append((await ep.chat(messages)).message)
        ep.step(reward=0.5)
        messages.append({"role": "user", "content": "and?"})
        await ep.chat(messages)
        ep.step(reward=1.0, done=True)

    session = (await play(app, mode="eval")).json()["trace"]["session_trace"]
    said = [(m["message_type"], m["content"]["text"]) for m in session["markov_blanket_message_history"]]
    assert said == [
        ("system", "Count."),
        ("user", "one"),
        ("assistant", "two"),
        ("user", "and?"),
        ("assistant", "three"),
    ]
    assert [event.get("reward") for event in session["event_history"]] == [None, 0.5, None, 1.0]
    assert (session["session_id"], session["metadata"]["seed"], session["metadata"]["total_reward"]) == ("r1", 7, 1.5)
    assert (await play(app)).json()["trace"] is None


@pytest.mark.parametrize("content", ["", None])
async def test_a_reply_of_tool_calls_alone_is_stored_with_them(content: str | None):
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    app = app_with(ScriptedLlm(completion(content, tool_calls=[call])), max_turns=1)

    @app.episode
    async def episode(ep: Episode) -> None:
        await ep.chat([{"role": "user", "content": "where?"}], tools=[tool])
        ep.step(reward=1.0, done=True)

    session = (await play(app, mode="eval")).json()["trace"]["session_trace"]
    stored = session["markov_blanket_message_history"][-1]["content"]
    assert stored["text"] is None
    assert json.loads(stored["json_payload"]) == [{"tool_name": "look", "arguments": {"at": 1}}]
    assert session["event_history"][0]["call_records"][0]["tools"] == [tool]


@pytest.mark.parametrize(
    ("url", "switch", "kept"),
    [
        (URL, None, False),
        (URL, "1", True),
        ("http://llm/v1", None, True),
        ("http://llm/v1", "0", False),
    ],
)
async def test_a_trace_keeps_images_where_the_platform_does_not_have_them_or_tracing_is_on(
    url: str, switch: str | None, kept: bool, monkeypatch: pytest.MonkeyPatch
):
    if switch is not None:
        monkeypatch.setenv("TASKAPP_TRACING_ENABLED", switch)
    llm = ScriptedLlm(completion("a"), completion("b"), completion("c"))
    app = app_with(llm, max_turns=3)
    shown = [f"data:image/png;base64,{'AAAA' * 1000}{turn}" for turn in range(3)]

    @app.episode
    async def episode(ep: Episode) -> None:
        messages: list[dict[str, Any]] = []
        for image in shown:
            messages.append({"role": "user", "content": [{"type": "image_url", "image_url": {"url": image}}]})
            messages.append((await ep.chat(messages)).message)
        ep.step(reward=1.0, done=True)

    found = await play(app, mode="eval", config={"inference_url": url})
    # Twice: as a message, and in the event of the call that it was new in.
    assert [found.text.count(image) for image in shown] == [2 * kept] * 3
    events = [e for e in found.json()["trace"]["session_trace"]["event_history"] if "call_records" in e]
    assert [event["call_records"][0]["messages_before"] for event in events] == [0, 2, 4]


async def test_a_switch_for_tracing_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TASKAPP_TRACING_ENABLED", "maybe")
    found = await play(app_with(ScriptedLlm()), mode="eval")
    assert "TASKAPP_TRACING_ENABLED='maybe': expected 1" in found.text


@pytest.mark.parametrize(("url", "sent"), [(URL, None), ("http://llm/v1", "second")])
async def test_a_model_at_an_address_without_a_credential_gets_the_key_that_came_with_its_address(
    url: str, sent: str | None
):
    llm = ScriptedLlm(completion("hello"))
    app = app_with(llm)

    @app.episode
    async def episode(ep: Episode) -> None:
        await ep.chat([{"role": "user", "content": "hi"}])
        ep.outcome(1.0)

    async with client(app, **{"x-api-key": "wrong, second"}) as http:
        assert (await http.post("/rollout", json=rollout(config={"inference_url": url}))).status_code == 200
    assert llm.headers[0].get("x-api-key") == sent
