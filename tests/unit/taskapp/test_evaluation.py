"""A task app in an evaluation by the published client: traces, and a model behind a plain address."""

from __future__ import annotations

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


@pytest.mark.parametrize(("url", "sent"), [(URL, None), ("http://llm/v1", "second")])
async def test_a_model_at_an_address_without_a_credential_gets_the_key_that_came_with_its_address(
    url: str, sent: str | None
):
    llm = ScriptedLlm(completion("hello"))
    app = app_with(llm)

    @app.episode
    async def episode(ep: Episode) -> None:
        await ep.chat([{"role": "user", "content": "hi"}])

    async with client(app, **{"x-api-key": "wrong, second"}) as http:
        assert (await http.post("/rollout", json=rollout(config={"inference_url": url}))).status_code == 200
    assert llm.headers[0].get("x-api-key") == sent
