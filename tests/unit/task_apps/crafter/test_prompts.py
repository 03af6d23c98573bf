"""Settings, prompts, and how a reply is read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from synth.errors import UserError
from synth.taskapp.llm import Reply
from task_apps.crafter.env import ACTIONS, Observation, Picture
from task_apps.crafter.prompts import Conversation, Decision, assistant_message, read_reply, system_message, tools
from task_apps.crafter.settings import HELD_OUT_FROM, read_settings


def reply(content: str | None = None, *calls: tuple[str, Any], finish_reason: str = "stop") -> Reply:
    called = [
        {"id": f"c{i}", "function": {"name": name, "arguments": given if isinstance(given, str) else json.dumps(given)}}
        for i, (name, given) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": content, "tool_calls": called}
    return Reply(content or "", finish_reason, {"choices": [{"message": message}]})


def read(answer: Reply, **policy: Any) -> Decision:
    return read_reply(answer, *read_settings({}, policy, seed=0))


def test_the_actions_of_all_calls_are_played_in_their_order():
    answer = reply(None, ("interact", {"actions": ["move_left", "do"]}), ("interact", {"actions": ["sleep"]}))
    assert read(answer) == Decision(["move_left", "do", "sleep"])


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (reply("I will look around."), "there was no call of interact"),
        (reply(None, ("interact", "{")), "interact: arguments are no JSON object"),
        (reply(None, ("interact", {"actions": "do"})), "interact takes a list of actions"),
        (reply(None, ("interact", {"actions": []})), "no action was named"),
        (reply(None, ("interact", {"actions": ["do", "fly"]})), "'fly' is no action"),
        (reply(None, ("interact", {"actions": ["do", 3]})), "3 is no action"),
        (reply(None, ("interact", {"actions": ["do", ["do"]]})), "['do'] is no action"),
        (reply(None, ("move", {"actions": ["do"]})), "'move' is no tool; call interact"),
        (reply(None, ("interact", {"actions": ["do"] * 6})), "6 actions are more than the 5 of a turn"),
        (reply("hm", finish_reason="length"), "your reply was cut off; answer in fewer words"),
    ],
)
def test_a_reply_that_cannot_be_played_is_invalid_as_a_whole(answer: Reply, problem: str):
    assert read(answer) == Decision(problem=problem)


@pytest.mark.parametrize(
    ("text", "actions"),
    [
        ("I see a tree.\nactions: move_left, do", ["move_left", "do"]),
        ("Actions: do\nno, rather\n**Actions:** [sleep]", ["sleep"]),
        ("move_left\ndo", ["move_left", "do"]),
        ("do.", ["do"]),
    ],
)
def test_actions_are_read_from_text(text: str, actions: list[str]):
    assert read(reply(text), action_format="text") == Decision(actions)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("I do not know", "there was no line `actions: …`"),
        ("actions: jump", "'jump' is no action"),
        ("", "no action was named"),
    ],
)
def test_text_without_actions_is_invalid(text: str, problem: str):
    assert read(reply(text), use_tools=False) == Decision(problem=problem)


def test_what_the_expert_says_is_read_as_what_it_played():
    for policy in ({"action_format": "tool"}, {"action_format": "text"}):
        said = assistant_message(["do", "sleep"], read_settings({}, policy, seed=0)[1], number=3)
        answer = Reply(said["content"], "stop", {"choices": [{"message": said}]})
        assert read(answer, **policy) == Decision(["do", "sleep"])


def test_the_tool_names_every_action_and_how_many_a_turn_has():
    env, _ = read_settings({"max_actions": 2}, {}, seed=0)
    actions = tools(env)[0]["function"]["parameters"]["properties"]["actions"]
    assert (actions["items"]["enum"], actions["maxItems"]) == (list(ACTIONS), 2)


def test_the_system_message_says_what_is_shown_and_how_to_answer():
    def said(**policy: Any) -> str:
        return system_message(*read_settings({}, policy, seed=0))["content"]

    assert "The map shows" in said()
    assert "picture" not in said()
    assert "picture" in said(use_vision=True)
    assert "The map shows" not in said(image_only_mode=True)
    assert "call interact" in said()
    assert "actions: move_left, do" in said(action_format="text")
    assert said(system_hint="Be brave.").endswith("Be brave.")


@pytest.mark.parametrize(
    ("policy", "sees"),
    [
        ({"model": "Qwen/Qwen3-VL-4B-Instruct"}, True),
        ({"model": "rl:qwen/qwen3-vl-2b-instruct:job_1"}, True),
        ({"model": "Qwen/Qwen3-4B"}, False),
        ({}, False),
        ({"model": "job_1", "supports_vision": True}, True),
        ({"model": "Qwen/Qwen3-VL-4B-Instruct", "supports_vision": False}, False),
        ({"model": "Qwen/Qwen3-VL-4B-Instruct", "use_vision": False}, False),
        ({"model": "Qwen/Qwen3-4B", "use_vision": True}, True),
        ({"image_only_mode": True}, True),
        ({"image_only_mode": False}, False),
    ],
)
def test_a_model_is_shown_pictures_where_that_is_said_or_its_name_says_that_it_sees(policy: Any, sees: bool):
    assert read_settings({}, policy, seed=0)[1].shows_pictures is sees


def test_the_turns_of_an_episode_stand_in_two_places():
    for config in (
        {"max_steps_per_episode": 9},
        {"env_params": {"max_steps_per_episode": 9}},
        {"max_steps_per_episode": 9, "env_params": {"max_steps_per_episode": 9}},
    ):
        env, _ = read_settings(config, {}, seed=0)
        assert (env.max_steps_per_episode, env.max_steps) == (9, 10_000)


@pytest.mark.parametrize(
    ("config", "policy", "problem"),
    [
        ({"area": 8}, {}, "env.config.area: 8; expected cells of the world"),
        ({"area": [32]}, {}, "env.config.area: [32]; expected"),
        (
            {"image_size": 65},
            {},
            "env.config.image_size: 65; expected pixels of each side of a picture, a multiple of 32",
        ),
        ({"max_actions": True}, {}, "env.config.max_actions: True; expected actions of a turn, 1 or more"),
        ({"trees": 3}, {}, "env.config.trees: unknown key; expected one of area, difficulty, max_steps"),
        ({"difficulty": "brutal"}, {}, 'env.config.difficulty: \'brutal\'; expected "normal", "easy"'),
        ({"env_params": {"x": 1}}, {}, "env.config.env_params.x: unknown key"),
        (
            {"max_steps_per_episode": 5, "env_params": {"max_steps_per_episode": 6}},
            {},
            "env.config: max_steps_per_episode = 5 and env_params.max_steps_per_episode = 6",
        ),
        ({"step_rewards": True}, {}, "env.config.step_rewards: True; expected a table"),
        ({"step_rewards": {"lambda": 1}}, {}, "env.config.step_rewards.lambda: unknown key; expected one of enabled"),
        ({"step_rewards": {"strategy": "dense"}}, {}, "env.config.step_rewards.strategy: 'dense'; expected"),
        ({"step_rewards": {"step_beta": 0.5}}, {}, "step_beta: 0.5; expected 0: a rollout has one reward"),
        ({}, {"step_rewards": {"mode": "on"}}, "policy.config.step_rewards.mode: 'on'; expected"),
        (
            {"step_rewards": {"strategy": "complex", "weights": {"collect_food": 1.0}}},
            {},
            "weights: {'collect_food': 1.0}; expected a table of numbers, by the game's achievements",
        ),
        ({"step_rewards": {"k_limits": {"eat_cow": 2}}}, {}, 'expected strategy = "per_achievement"'),
        (
            {"step_rewards": {"indicator_lambda": 2}},
            {"step_rewards": {}},
            "policy.config.step_rewards: another table than env.config.step_rewards",
        ),
        ({"split": "held_out"}, {}, "env.config.split: 'held_out', and seed 0 is of the other split"),
        ({}, {"use_vision": "yes"}, "policy.config.use_vision: 'yes'; expected true or false"),
        (
            {},
            {"max_images_per_step": 0},
            "policy.config.max_images_per_step: 0; expected pictures of a turn, 1 or more",
        ),
        ({}, {"use_vision": False, "image_only_mode": True}, "nothing would be shown"),
        ({}, {"supports_vision": False, "use_vision": True}, "expected a model that sees"),
        ({}, {"action_format": "tool", "use_tools": False}, "expected one way to act"),
    ],
)
def test_a_setting_that_cannot_be_honoured_is_refused_in_one_line(config: Any, policy: Any, problem: str):
    with pytest.raises(UserError) as refused:
        read_settings(config, policy, seed=0)
    assert problem in str(refused.value)
    assert len(refused.value.problems) == 1


def test_a_seed_of_the_split_is_accepted():
    for split, seed in (("train", HELD_OUT_FROM - 1), ("held_out", HELD_OUT_FROM)):
        assert read_settings({"split": split}, {}, seed=seed)[0].split == split


def test_a_conversation_keeps_as_many_earlier_turns_as_it_is_told():
    said = {"role": "assistant", "content": "actions: do"}
    lengths: dict[int | None, list[int]] = {}
    for history in (None, 0, 1):
        env, policy = read_settings({"history": history}, {"action_format": "text"}, seed=0)
        conversation = Conversation(env, policy, Observation("0"))
        lengths[history] = []
        for number in range(1, 4):
            lengths[history].append(len(conversation.messages()))
            conversation.played(said, Decision(["do"]), Observation(str(number)))
        assert conversation.messages()[-1] == {"role": "user", "content": "3"}
    assert lengths == {None: [2, 4, 6], 0: [2, 2, 2], 1: [2, 4, 4]}


def test_why_a_reply_was_not_played_is_said_without_words_of_the_world_in_image_only_mode():
    env, policy = read_settings({}, {"image_only_mode": True}, seed=0)
    shown = Observation("secret", [Picture(b"png", 64)])
    conversation = Conversation(env, policy, shown)
    conversation.played({"role": "assistant", "content": "hm"}, Decision(problem="no"), shown)
    image, text = conversation.messages()[-1]["content"]
    assert (image["type"], text) == ("image_url", {"type": "text", "text": "Not played: no."})
