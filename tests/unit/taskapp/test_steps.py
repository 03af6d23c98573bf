"""What an app of the SDK answers of an episode: its steps, and what it earned."""

from __future__ import annotations

from fractions import Fraction
from functools import partial, wraps
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from synth.errors import Problem, UserError
from synth.taskapp.contract import RolloutResponse
from synth.taskapp.sdk import Episode
from tests.unit.taskapp.echo_app import app_with, play
from tests.unit.taskapp.scripted_llm import ScriptedLlm, completion


async def test_a_step_says_which_calls_it_came_after_and_what_was_called():
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"place": 2}'}}
    app = app_with(ScriptedLlm(completion("", tool_calls=[call]), completion("done")), max_turns=2)

    @app.episode
    async def dig(ep: Episode) -> None:
        await ep.chat([{"role": "user", "content": "where?"}])
        ep.step(obs=KeyError("2"), reward=0.0)
        await ep.chat([{"role": "user", "content": "there?"}])
        ep.step(obs=np.arange(3), tool_calls=[{"name": "dig"}], info={"odd": object}, reward=0.0, done=True)

    reply = await play(app)
    first, second = RolloutResponse.model_validate(reply.json()).trajectories[0].steps
    assert (first.after_call, first.tool_calls, first.obs) == (1, [call], "KeyError: '2'")
    assert (second.after_call, second.tool_calls, second.obs) == (2, [{"name": "dig"}], [0, 1, 2])
    assert second.info is not None
    assert "object" in second.info["odd"]


async def test_an_error_comes_with_its_place_and_with_the_steps_before_it():
    app = app_with(ScriptedLlm(completion("2")))

    @app.episode
    async def dig(ep: Episode) -> None:
        ep.step(obs="the beach", reward=0.5)
        ep.env_config["gold"]

    reply = await play(app)
    assert reply.status_code == 500
    message = reply.json()["detail"]["error"]["message"]
    assert message.startswith("KeyError: 'gold' (")
    assert "test_steps.py:" in message
    [step] = reply.json()["trajectories"][0]["steps"]
    assert (step["obs"], step["reward"]) == ("the beach", 0.5)


async def test_an_outcome_is_the_reward_in_place_of_the_sum_over_the_steps():
    app = app_with(ScriptedLlm(completion("2")))

    @app.episode
    async def dig(ep: Episode) -> None:
        ep.step(reward=0.5, info={"meta": {"depth": 3}})
        ep.step(reward=1.0, done=True, truncated=True)
        ep.outcome(0.25, events=0.5, details={"found": ["gold"]})

    answer = RolloutResponse.model_validate((await play(app, mode="eval")).json())
    assert answer.reward() == 0.25
    assert (answer.metrics.mean_return, answer.metrics.events_score) == (1.5, 0.5)
    assert answer.metrics.details == {"found": ["gold"]}
    first, last = answer.trajectories[0].steps
    assert (first.truncated, last.truncated) == (None, True)
    assert first.info is not None
    # What the app says there stands beside what the contract asks for.
    assert (first.info["meta"]["depth"], "inference_url" in first.info["meta"]) == (3, True)
    assert answer.trace is not None
    trace = answer.trace["session_trace"]
    assert [(e["terminated"], e["truncated"]) for e in trace["event_history"]] == [(False, False), (False, True)]
    assert trace["metadata"]["total_reward"] == 0.25


WAYS = "expected a number, which is the reward, or nothing, after ep.step(reward=…) or ep.outcome(…)"


@pytest.mark.parametrize(
    ("returned", "reward"),
    [(0.25, 0.25), (0, 0.0), (True, 1.0), (np.float32(0.5), 0.5), (Fraction(1, 4), 0.25), (torch.tensor(0.5), 0.5)],
)
@pytest.mark.parametrize("kind", ["async", "plain", "partial"])
async def test_a_number_that_an_episode_returns_is_the_reward_in_place_of_the_sum_over_the_steps(
    returned: Any, reward: float, kind: str
):
    app = app_with(ScriptedLlm(completion("2")))

    async def dig(ep: Episode) -> Any:
        ep.step(reward=3.0)
        return returned

    def dig_plainly(ep: Episode) -> Any:
        return returned

    app.episode({"async": dig, "plain": dig_plainly, "partial": partial(dig)}[kind])
    answer = RolloutResponse.model_validate((await play(app, mode="eval")).json())
    assert (answer.reward(), answer.metrics.outcome_score) == (reward, reward)
    assert answer.metrics.mean_return == (0.0 if kind == "plain" else 3.0)
    assert answer.trace is not None
    assert answer.trace["session_trace"]["metadata"]["total_reward"] == reward


async def test_a_returned_number_may_repeat_the_outcome_and_keeps_what_it_says():
    app = app_with(ScriptedLlm())

    @app.episode
    def dig(ep: Episode) -> float:
        ep.outcome(0.25, events=0.5, details={"found": ["gold"]})
        return 0.25

    metrics = RolloutResponse.model_validate((await play(app)).json()).metrics
    assert (metrics.outcome_score, metrics.events_score, metrics.details) == (0.25, 0.5, {"found": ["gold"]})


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, f"the episode returned nothing, and recorded no step and no outcome; {WAYS}"),
        ("0.5", f"the episode returned a value of type str; {WAYS}"),
        ({"reward": 1.0}, f"the episode returned a value of type dict; {WAYS}"),
        ((_ for _ in ()), f"the episode returned a value of type generator; {WAYS}"),
        (float("nan"), "the reward that the episode returned is NaN; expected a finite number, true or false"),
        (
            torch.ones(2),
            'the reward that the episode returned is "tensor([1., 1.])"; expected a finite number, true or false',
        ),
    ],
)
@pytest.mark.parametrize("plain", [False, True])
async def test_an_episode_of_which_no_reward_is_known_is_an_error_that_explains_the_ways(
    returned: Any, message: str, plain: bool
):
    app = app_with(ScriptedLlm())

    async def dig(ep: Episode) -> Any:
        return returned

    @wraps(dig)
    def dig_plainly(ep: Episode) -> Any:
        return returned

    app.episode(dig_plainly if plain else dig)
    reply = await play(app)
    assert (reply.status_code, reply.json()["detail"]["error"]["code"]) == (500, "bad_outcome")
    place = f"{Path(__file__).relative_to(Path.cwd())}:{dig.__code__.co_firstlineno}"
    assert reply.json()["detail"]["error"]["message"] == f"{message} ({place})"
    assert reply.json()["traceback"] == [
        f"{place}, in dig",
        "  async def dig(ep: Episode) -> Any:",
        message,
    ]


async def test_a_returned_number_beside_another_outcome_is_an_error():
    app = app_with(ScriptedLlm())

    @app.episode
    async def dig(ep: Episode) -> float:
        ep.outcome(0.25)
        return 0.5

    message = (await play(app)).json()["detail"]["error"]["message"]
    assert message.startswith(
        "the episode returned 0.5, and ep.outcome recorded 0.25; expected one of them, or the same number in both ("
    )


async def test_a_failure_of_the_policy_has_no_outcome():
    app = app_with(ScriptedLlm(completion("2")))

    @app.episode
    async def dig(ep: Episode) -> None:
        ep.outcome(0.25, details={"found": []})
        (await ep.chat([])).require_tool_call()

    answer = RolloutResponse.model_validate((await play(app)).json())
    assert answer.reward() is None
    assert answer.metrics.details.keys() == {"found", "policy_failure"}


@pytest.mark.parametrize("scores", [(float("nan"), None), (0.0, float("inf"))])
async def test_an_outcome_that_is_no_number_is_the_environment_s_error(scores: tuple[float, float | None]):
    app = app_with(ScriptedLlm(completion("2")))

    @app.episode
    async def dig(ep: Episode) -> None:
        ep.outcome(scores[0], events=scores[1])

    reply = await play(app)
    assert (reply.status_code, reply.json()["detail"]["error"]["code"]) == (500, "environment_error")


async def test_what_the_job_asks_for_and_the_app_does_not_have_is_said_in_its_words():
    app = app_with(ScriptedLlm(completion("2")))

    @app.episode
    async def dig(ep: Episode) -> None:
        raise UserError(Problem(where="env.config.depth", what="-1", expected="0 or more"))

    reply = await play(app)
    error = reply.json()["detail"]["error"]
    assert (reply.status_code, error["code"]) == (422, "bad_request")
    assert error["message"] == "env.config.depth: -1; expected 0 or more"
