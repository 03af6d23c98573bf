"""The Crafter app as the platform meets it: over HTTP, with a model behind an OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from synth.taskapp.contract import RolloutResponse
from synth.taskapp.server import listen, make_server, url_of
from task_apps.crafter.app import crafter
from task_apps.crafter.dataset import rows

KEY = "env_of_the_tests"
AREA = 24
Object = dict[str, Any]


class Model:
    """An OpenAI-compatible server: the n-th call of a conversation is answered by `answer(n)`."""

    def __init__(self, answer: Callable[[int], Object | Response]) -> None:
        self._answer = answer
        self.asked: list[Object] = []

    async def complete(self, request: Request) -> Response:
        self.asked.append(json.loads(await request.body()))
        answer = self._answer(len(self.asked) - 1)
        if isinstance(answer, Response):
            return answer
        reason = "tool_calls" if answer.get("tool_calls") else "stop"
        return JSONResponse({"choices": [{"index": 0, "message": answer, "finish_reason": reason}]})


@asynccontextmanager
async def served(app: Starlette) -> AsyncIterator[str]:
    listener = listen("127.0.0.1", 0)
    server = make_server(app, grace_s=1)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    yield url_of(listener)
    server.should_exit = True
    await running


async def play(model: Model, *, turns: int, policy: Object, env: Object | None = None, seed: int = 0) -> httpx.Response:
    """One rollout of the app on a socket, by a model on another."""
    api = Starlette(routes=[Route("/v1/chat/completions", model.complete, methods=["POST"])])
    async with served(api) as model_url, served(crafter.asgi()) as url, httpx.AsyncClient(trust_env=False) as http:
        config = {"inference_url": f"{model_url}/v1/chat/completions?cid=trace_1", "max_llm_calls": turns, **policy}
        body = {
            "run_id": "r1",
            "env": {"env_name": "crafter", "seed": seed, "config": {"area": AREA, **(env or {})}},
            "policy": {"policy_name": "crafter-react", "config": config},
        }
        return await http.post(f"{url}/rollout", json=body, headers={"X-API-Key": KEY}, timeout=30)


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVIRONMENT_API_KEY", KEY)


def interact(*actions: str) -> Object:
    call = {"name": "interact", "arguments": json.dumps({"actions": actions})}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "type": "function", "function": call}]}


@pytest.mark.parametrize(
    "policy",
    [
        {"model": "Qwen/Qwen3-4B"},
        {"model": "Qwen/Qwen3-VL-4B-Instruct"},
        {"model": "job_1", "use_vision": True, "max_images_per_step": 3},
        {"model": "job_1", "image_only_mode": True, "action_format": "text"},
    ],
    ids=["text", "vision by name", "three pictures", "pictures alone"],
)
async def test_a_model_is_asked_in_the_words_and_pictures_that_the_dataset_teaches(policy: Object) -> None:
    turns = 12
    (row,) = rows(range(1), turns=turns, env_config={"area": AREA}, policy_config=policy)
    taught = [message for message in row["messages"] if message["role"] == "assistant"]
    model = Model(lambda n: taught[n])
    reply = await play(model, turns=turns, policy=policy)
    assert reply.status_code == 200, reply.text
    assert [*model.asked[-1]["messages"], taught[-1]] == row["messages"]
    # Each prompt begins with the one before it and its reply: one training sequence.
    for n, (before, after) in enumerate(zip(model.asked, model.asked[1:], strict=False)):
        known = [*before["messages"], taught[n]]
        assert after["messages"][: len(known)] == known
    assert [asked.get("tools") for asked in model.asked] == [row.get("tools")] * turns
    assert {asked.get("tool_choice") for asked in model.asked} == {"required" if "tools" in row else None}
    answer = RolloutResponse.model_validate_json(reply.content)
    steps = answer.trajectories[0].steps
    assert (len(steps), steps[-1].done, steps[-1].truncated) == (turns, True, True)
    shown = [message["content"] for message in row["messages"] if message["role"] == "user"]
    pictures = [sum(p["type"] == "image_url" for p in c) if isinstance(c, list) else 0 for c in shown[1:]]
    assert [len(step.obs["images"]) for step in steps[:-1]] == pictures
    assert "base64" not in reply.text


async def test_achievements_are_the_outcome_and_each_turn_says_what_it_added() -> None:
    (row,) = rows(range(1), turns=30, env_config={"area": AREA}, policy_config={})
    taught = [message for message in row["messages"] if message["role"] == "assistant"]
    reply = await play(Model(lambda n: taught[n]), turns=30, policy={})
    answer = RolloutResponse.model_validate_json(reply.content)
    steps, details = answer.trajectories[0].steps, answer.metrics.details
    unlocked = details["achievements"]
    assert len(unlocked) >= 5
    assert answer.reward() == answer.metrics.outcome_score == len(unlocked) / 22
    infos: list[Any] = [step.info for step in steps]
    decided = [info["meta"]["decision_rewards"] for info in infos]
    assert [name for d in decided for name in d["unique"]] == unlocked
    assert [d["turn"] for d in decided] == list(range(1, 31))
    assert all(d["unique_delta"] == len(d["unique"]) <= len(d["all"]) == d["ach_delta"] for d in decided)
    assert sum(d["ach_delta"] for d in decided) > len(unlocked)
    indicators = [info["stepwise"]["indicator"] for info in infos]
    assert answer.metrics.events_score == sum(indicators) / 30
    assert details["stepwise"]["indicator_sum"] == details["stepwise"]["reward_sum"] == sum(indicators)
    assert details["ended"] == "max_turns"
    # The game's own reward: 1 for a step that unlocks something, and a tenth for a point of health.
    assert answer.metrics.mean_return == pytest.approx(sum(step.reward or 0 for step in steps))
    assert infos[0]["meta"]["inference_url"].endswith("?cid=trace_1")


PUBLISHED = {
    "enabled": True,
    "mode": "decision_stepwise",
    "strategy": "complex",
    "indicator_lambda": 0.5,
    "step_beta": 0.0,
    "weights": {"collect_sapling": 0.6, "craft_wood_pickaxe": 3, "collect_wood": 0.8},
    "k_limits": {"collect_sapling": 2, "collect_wood": 4},
}


@pytest.mark.long
async def test_the_turns_are_worth_what_the_published_clients_step_rewards_say() -> None:
    def worth(answer: Object) -> list[Object]:
        return [step["info"]["stepwise"] for step in answer["trajectories"][0]["steps"]]

    (row,) = rows(range(1), turns=30, env_config={"area": AREA}, policy_config={})
    taught = [message for message in row["messages"] if message["role"] == "assistant"]
    played: dict[str, Object] = {}
    for name, env, policy in (
        ("weighted", {"step_rewards": PUBLISHED}, {}),
        ("of the policy", {}, {"step_rewards": {"strategy": "simple", "indicator_lambda": 2.0}}),
        ("off", {"step_rewards": {"enabled": False, "strategy": "consistent"}}, {}),
        ("sparse", {"step_rewards": {"mode": "env_sparse"}}, {}),
    ):
        played[name] = (await play(Model(lambda n: taught[n]), turns=30, policy=policy, env=env)).json()
    outcomes = {answer["metrics"]["outcome_score"] for answer in played.values()}
    assert len(outcomes) == 1
    steps = played["weighted"]["trajectories"][0]["steps"]
    events = [name for step in steps for name in step["info"]["meta"]["decision_rewards"]["all"]]
    limits = dict.fromkeys(events, 1) | {"collect_sapling": 2, "collect_wood": 4}
    weights = dict.fromkeys(events, 1.0) | {"collect_sapling": 0.6, "make_wood_pickaxe": 3.0, "collect_wood": 0.8}
    assert events.count("collect_wood") > 4
    assert "make_wood_pickaxe" in events
    total = 0.5 * sum(weights[name] * min(events.count(name), limits[name]) for name in set(events))
    assert sum(turn["reward"] for turn in worth(played["weighted"])) == pytest.approx(total)
    assert played["weighted"]["metrics"]["details"]["stepwise"]["reward_sum"] == pytest.approx(total)
    assert {(turn["indicator"], turn["reward"]) for turn in worth(played["of the policy"])} == {(0, 0.0), (1, 2.0)}
    for name in ("off", "sparse"):
        assert "stepwise" not in played[name]["metrics"]["details"]
        for step in played[name]["trajectories"][0]["steps"]:
            assert "stepwise" not in step["info"]
            assert "decision_rewards" not in step["info"]["meta"]


async def test_an_episode_has_as_many_turns_as_the_published_clients_env_params_say() -> None:
    env = {"env_params": {"max_steps_per_episode": 2}, "difficulty": "easy"}
    answer = (await play(Model(lambda n: interact("noop", "noop")), turns=9, policy={}, env=env)).json()
    assert answer["metrics"]["num_steps"] == 2
    assert (answer["metrics"]["details"]["ended"], answer["metrics"]["details"]["steps"]) == ("max_turns", 4)
    assert answer["trajectories"][0]["steps"][-1]["truncated"] is True


async def test_a_reply_that_names_no_action_costs_a_step_and_the_model_is_told_why() -> None:
    said = [{"role": "assistant", "content": "Hm."}, interact("fly"), interact("noop")]
    model = Model(lambda n: said[n])
    answer = (await play(model, turns=3, policy={})).json()
    assert model.asked[1]["messages"][-1]["content"].startswith("Not played: there was no call of interact.\nStep 1 of")
    assert model.asked[2]["messages"][-2]["content"] == "Not played: 'fly' is no action."
    steps = answer["trajectories"][0]["steps"]
    assert [step["info"]["actions"] for step in steps] == [["noop"]] * 3
    assert [step["info"].get("invalid") for step in steps] == [
        "there was no call of interact",
        "'fly' is no action",
        None,
    ]
    assert answer["metrics"]["details"]["invalid_turns"] == 2


async def test_invalid_turns_in_a_row_end_the_episode_with_what_it_earned() -> None:
    # Not in a row at first: the count begins anew.
    said = [interact("fly"), interact("noop"), interact("fly"), interact("fly")]
    model = Model(lambda n: said[n])
    answer = (await play(model, turns=9, policy={}, env={"max_invalid_turns": 2})).json()
    last = answer["trajectories"][0]["steps"][-1]
    assert (len(model.asked), last["done"], last["truncated"]) == (4, True, True)
    assert (answer["metrics"]["details"]["ended"], answer["aborted"]) == ("invalid_turns", False)
    assert answer["metrics"]["outcome_score"] == 0.0


async def test_the_episode_ends_with_its_steps() -> None:
    answer = (await play(Model(lambda n: interact("noop", "noop")), turns=9, policy={}, env={"max_steps": 5})).json()
    steps = answer["trajectories"][0]["steps"]
    assert [(len(s["info"]["actions"]), s["done"], s["truncated"]) for s in steps] == [
        (2, False, False),
        (2, False, False),
        (1, True, True),
    ]
    assert answer["metrics"]["details"]["ended"] == "max_steps"


async def test_the_episode_ends_with_the_player_who_does_nothing() -> None:
    idle = Model(lambda n: interact(*["noop"] * 1000))
    answer = (await play(idle, turns=9, policy={}, env={"max_actions": 1000})).json()
    last = answer["trajectories"][0]["steps"][-1]
    assert (last["done"], last["truncated"]) == (True, False)
    assert answer["metrics"]["details"]["ended"] == "died"


async def test_a_conversation_that_outgrows_the_model_keeps_what_it_earned() -> None:
    full = JSONResponse({"error": {"code": "context_length_exceeded"}}, status_code=400)
    answer = (await play(Model(lambda n: interact("noop") if n < 2 else full), turns=9, policy={})).json()
    steps = answer["trajectories"][0]["steps"]
    assert [(s["done"], s["truncated"]) for s in steps] == [(False, False), (True, True)]
    assert (answer["metrics"]["outcome_score"], answer["metrics"]["details"]["ended"]) == (0.0, "context_length")
    # Nothing was played: the policy's failure.
    failed = (await play(Model(lambda n: full), turns=9, policy={})).json()
    assert (failed["aborted"], failed["metrics"]["outcome_score"]) == (True, None)


async def test_what_a_job_cannot_have_is_refused_with_the_reason() -> None:
    model = Model(lambda n: interact("noop"))
    refused = await play(model, turns=1, policy={"use_vision": "yes"}, env={"image_size": 65})
    assert (refused.status_code, model.asked) == (422, [])
    message = refused.json()["detail"]["error"]["message"]
    assert "env.config.image_size: 65; expected" in message
    assert "policy.config.use_vision: 'yes'; expected" in message


async def test_the_app_says_what_it_judges_and_which_seeds_are_held_out() -> None:
    headers = {"X-API-Key": KEY}
    async with served(crafter.asgi()) as url, httpx.AsyncClient(trust_env=False, headers=headers) as http:
        train, held_out = (await http.get(f"{url}/task_info?seed=1&seed=1000000")).json()
        info = (await http.get(f"{url}/info")).json()
    assert [one["task_metadata"]["split"] for one in (train, held_out)] == ["train", "held_out"]
    assert len(train["task_metadata"]["achievements"]) == len(train["rubric"]["outcome"]["criteria"]) == 22
    assert sum(c["weight"] for c in train["rubric"]["outcome"]["criteria"]) == pytest.approx(1)
    assert info["rubrics"] == train["rubric"]
    assert "move_left" in train["task_metadata"]["action_space"]["actions"]
