"""A task app, spoken to as the platform does."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from starlette.responses import JSONResponse

from synth.demo.math.app import math
from synth.errors import UserError
from synth.taskapp.contract import RolloutResponse
from synth.taskapp.sdk import Episode, TaskApp, serve
from tests.unit.taskapp.echo_app import CID, app_with, client, play
from tests.unit.taskapp.scripted_llm import ScriptedLlm, completion


@pytest.mark.parametrize(
    "headers",
    [
        {"x-api-key": "right"},
        {"x-api-key": "second"},
        {"x-api-keys": "wrong, right"},
        {"authorization": "Bearer right"},
        {"x-api-key": "wrong", "authorization": "bearer second"},
    ],
)
async def test_every_way_to_send_the_key_is_accepted(headers: dict[str, str]) -> None:
    async with client(app_with(ScriptedLlm()), **headers) as http:
        assert (await http.get("/health")).json()["healthy"] is True


@pytest.mark.parametrize("headers", [{"x-api-key": "wrong"}, {"x-nothing": ""}, {"x-api-key": "é"}])
@pytest.mark.parametrize("path", ["/health", "/info", "/task_info", "/rollout"])
async def test_a_wrong_or_missing_key_is_the_contract_s_400(headers: dict[str, str], path: str) -> None:
    async with client(app_with(ScriptedLlm()), **headers) as http:
        reply = await http.request("POST" if path == "/rollout" else "GET", path)
    assert reply.status_code == 400
    assert reply.json()["detail"]["error"]["code"] == "unauthorised"


async def test_the_keys_come_from_the_environment_and_without_any_it_is_a_503(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ENVIRONMENT_API_KEY", "DEV_ENVIRONMENT_API_KEY", "ENVIRONMENT_API_KEY_ALIASES"):
        monkeypatch.delenv(name, raising=False)
    async with client(math, **{"x-api-key": "alias"}) as http:
        assert (await http.get("/health")).status_code == 503
        monkeypatch.setenv("ENVIRONMENT_API_KEY", "main")
        assert (await http.get("/health")).status_code == 400
        monkeypatch.setenv("ENVIRONMENT_API_KEY_ALIASES", "other,alias")
        assert (await http.get("/health")).status_code == 200


async def test_the_root_needs_no_key() -> None:
    async with client(app_with(ScriptedLlm()), **{"x-api-key": "wrong"}) as http:
        assert (await http.get("/")).json() == {"status": "ok", "service": "echo"}
        assert (await http.head("/")).status_code == 200


async def test_task_info_answers_for_no_seed_one_and_several() -> None:
    app = app_with(ScriptedLlm())
    app.task_info(lambda seed: {"prompt": f"echo {seed}"})
    async with client(app) as http:
        assert (await http.get("/task_info")).json()["taskset"]["id"] == "echo"
        one = (await http.get("/task_info?seed=3")).json()
        assert (one["task"]["id"], one["task_metadata"]) == ("echo", {"seed": 3, "prompt": "echo 3"})
        several = (await http.get("/task_info?seed=1&seed=2")).json()
        assert [i["task_metadata"]["seed"] for i in several] == [1, 2]
        assert (await http.get("/task_info?seed=x")).status_code == 422
        assert (await http.get("/info")).json()["service"]["task"]["name"] == "Echo"


async def test_a_rollout_asks_the_policy_where_and_how_it_was_told() -> None:
    llm = ScriptedLlm(completion("hello"))
    app = app_with(llm)

    @app.episode
    async def episode(ep: Episode) -> None:
        assert (ep.seed, ep.env_config) == (7, {"size": 3})
        reply = await ep.chat([{"role": "user", "content": "say hello"}], tool_choice="auto")
        ep.step(obs=reply.content, reward=0.25)
        ep.step(reward=0.5, done=True)

    body = RolloutResponse.model_validate((await play(app)).json())
    assert llm.urls == [f"http://llm/api/inference/v1/chat/completions?cid={CID}"]
    assert llm.bodies[0] == {
        "model": "m",
        "temperature": 0.5,
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "say hello"}],
        "tool_choice": "auto",
    }
    assert (body.run_id, body.reward(), body.aborted, body.trace_correlation_id) == ("r1", 0.75, False, CID)
    assert body.metrics.episode_returns == [0.75]
    assert [s.obs for s in body.trajectories[0].steps] == ["hello", None]
    assert f"?cid={CID}" in str(body.pipeline_metadata)


@pytest.mark.parametrize(
    ("url", "called"),
    [
        ("http://llm/x?cid=t", "http://llm/x/v1/chat/completions?cid=t"),
        ("http://llm/v1?cid=t", "http://llm/v1/chat/completions?cid=t"),
        ("http://llm/v1/chat/completions?cid=t", "http://llm/v1/chat/completions?cid=t"),
        ("http://llm", "http://llm/v1/chat/completions"),
    ],
)
async def test_the_address_of_the_model_is_completed_and_keeps_its_query(url: str, called: str) -> None:
    llm = ScriptedLlm(completion("x"))
    app = app_with(llm)

    @app.episode
    async def episode(ep: Episode) -> None:
        await ep.chat([])
        ep.outcome(1.0)

    assert (await play(app, config={"inference_url": url})).status_code == 200
    assert llm.urls == [called]


async def test_no_tool_call_is_the_policy_s_failure_without_a_reward() -> None:
    app = app_with(ScriptedLlm(completion("I would rather not.")))

    @app.episode
    async def episode(ep: Episode) -> None:
        (await ep.chat([])).require_tool_call()

    reply = await play(app)
    body = RolloutResponse.model_validate(reply.json())
    assert (reply.status_code, body.reward(), body.aborted) == (200, None, True)
    assert body.policy_failure() == {"code": "no_tool_call", "message": "the model made no tool call"}


async def test_arguments_that_are_no_json_are_the_policy_s_failure() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "move", "arguments": "{left"}}
    app = app_with(ScriptedLlm(completion(None, tool_calls=[call])))

    @app.episode
    async def episode(ep: Episode) -> None:
        (await ep.chat([])).require_tool_call()

    failure = RolloutResponse.model_validate((await play(app)).json()).policy_failure()
    assert failure is not None
    assert failure["code"] == "bad_arguments"


async def test_a_tool_call_arrives_parsed() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "move", "arguments": '{"to": [1, 2]}'}}
    app = app_with(ScriptedLlm(completion(None, tool_calls=[call])))

    @app.episode
    async def episode(ep: Episode) -> None:
        made = (await ep.chat([])).require_tool_call()
        ep.step(obs=[made.name, made.arguments], reward=1.0, done=True)

    body = RolloutResponse.model_validate((await play(app)).json())
    assert body.trajectories[0].steps[0].obs == ["move", {"to": [1, 2]}]


async def test_a_conversation_that_outgrew_the_model_is_the_policy_s_failure() -> None:
    app = app_with(ScriptedLlm(JSONResponse({"detail": {"error": "token_budget_exceeded"}}, status_code=400)))

    @app.episode
    async def episode(ep: Episode) -> None:
        await ep.chat([])

    failure = RolloutResponse.model_validate((await play(app)).json()).policy_failure()
    assert failure is not None
    assert failure["code"] == "context_length"


def _crash() -> None:
    raise RuntimeError("the maze has no exit")


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), None])
async def test_an_environment_that_breaks_is_a_500_that_says_how(reward: float | None) -> None:
    app = app_with(ScriptedLlm())

    @app.episode
    async def episode(ep: Episode) -> None:
        if reward is None:
            _crash()
        ep.step(reward=reward)

    reply = await play(app)
    assert reply.status_code == 500
    assert reply.json()["detail"]["error"]["code"] == "environment_error"
    problem = "the reward of a step is NaN" if reward != reward else "the reward of a step is Infinity"
    assert ("the maze has no exit" if reward is None else problem) in reply.text


async def test_an_observation_that_is_no_json_is_shown_as_its_text() -> None:
    app = app_with(ScriptedLlm())

    @app.episode
    async def episode(ep: Episode) -> None:
        ep.step(obs=object(), reward=1.0)

    reply = await play(app)
    [step] = reply.json()["trajectories"][0]["steps"]
    assert (reply.status_code, step["reward"]) == (200, 1.0)
    assert step["obs"].startswith("<object object")


async def test_a_rollout_that_takes_too_long_is_a_504() -> None:
    app = app_with(ScriptedLlm())

    @app.episode
    async def episode(ep: Episode) -> None:
        await asyncio.Event().wait()

    reply = await play(app, safety={"max_time_s": 0.01})
    assert (reply.status_code, reply.json()["detail"]["error"]["code"]) == (504, "rollout_timeout")


async def test_what_an_episode_raises_when_its_time_is_over_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    app = app_with(ScriptedLlm())

    @app.episode
    async def episode(ep: Episode) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            _crash()

    reply = await play(app, safety={"max_time_s": 0.01})
    assert (reply.status_code, reply.json()["detail"]["error"]["code"]) == (504, "rollout_timeout")
    assert "the maze has no exit" in caplog.text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"config": {"inference_url": None}}, "inference_url is missing"),
        ({"config": {"inference_url": "file:///etc/passwd"}}, "not an http address"),
        ({"env": {"env_name": "echo"}}, "env.seed"),
        ({"env": {"env_name": "maze", "seed": 1}}, "'maze', this task app is 'echo'"),
        ({"run_id": None}, "run_id"),
        ({"mode": "train"}, "mode"),
    ],
)
async def test_a_request_that_makes_no_sense_is_a_422_naming_the_field(change: dict[str, Any], words: str) -> None:
    reply = await play(app_with(ScriptedLlm()), **change)
    assert reply.status_code == 422
    assert words in reply.text


async def test_a_body_that_is_no_json_is_a_422() -> None:
    async with client(app_with(ScriptedLlm())) as http:
        assert (await http.post("/rollout", content=b"{")).status_code == 422


def test_an_app_without_an_episode_does_not_start() -> None:
    empty = TaskApp("empty", name="Empty", description="Plays nothing.")
    for start in (empty.asgi, lambda: serve(empty, port=0)):
        with pytest.raises(UserError, match="'empty' has no episode"):
            start()


def test_a_port_in_use_is_one_clear_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match="cannot listen") as caught:
            serve(math, port=port)
    assert caught.value.problems[0].where == f"127.0.0.1:{port}"
