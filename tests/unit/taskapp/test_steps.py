"""What an app of the SDK tells of its steps, for whoever reads the rollout, without being asked to."""

from __future__ import annotations

import numpy as np

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
