"""The Crafter task app: a game of survival, seen in words or in pictures, paid by the achievements that it unlocks."""

from __future__ import annotations

import asyncio
from typing import Any

from synth.taskapp.llm import PolicyFailure, Reply
from synth.taskapp.sdk import Episode, TaskApp
from task_apps.crafter.env import ACHIEVEMENTS, ACTIONS, Game, Turn
from task_apps.crafter.prompts import TOOL, Conversation, Decision, read_reply, tools
from task_apps.crafter.rewards import StepCredit
from task_apps.crafter.settings import HELD_OUT_FROM, EnvSettings, PolicySettings, read_settings
from task_apps.crafter.view import COLUMNS, ROWS

#: A game has 10000 steps, and each turn takes at least one.
_MOST_TURNS = 10_000
#: Errors that end a game that has begun; the game keeps its reward.
_NO_ROOM = ("context_length", "call_budget")

crafter = TaskApp(
    "crafter",
    name="Crafter",
    description="A game of survival on a grid, in words or pictures; pays the share of its 22 achievements.",
    max_turns=_MOST_TURNS,
    dataset={
        "id": "crafter",
        "splits": ["train", "held_out"],
        "default_split": "train",
        "held_out_from_seed": HELD_OUT_FROM,
    },
    rubric={
        "outcome": {
            "name": "achievements",
            "description": f"The share of the {len(ACHIEVEMENTS)} achievements that the episode unlocks.",
            "criteria": [
                {
                    "id": name,
                    "description": f"The episode unlocks the achievement {name.replace('_', ' ')}.",
                    "weight": 1 / len(ACHIEVEMENTS),
                    "scale": "binary",
                }
                for name in ACHIEVEMENTS
            ],
        },
        "events": {
            "name": "progress",
            "description": "The share of turns that unlock an achievement.",
            "criteria": [
                {"id": "unlocks", "description": "The turn unlocks an achievement.", "weight": 1.0, "scale": "binary"}
            ],
        },
    },
)


@crafter.task_info
def describe(seed: int) -> dict[str, object]:
    return {
        "split": "held_out" if seed >= HELD_OUT_FROM else "train",
        "action_space": {"type": "discrete", "tool": TOOL, "actions": list(ACTIONS)},
        "observation": {"view": [COLUMNS, ROWS], "text": True, "image": "PNG as a data URL"},
        "achievements": list(ACHIEVEMENTS),
    }


@crafter.episode
async def play(ep: Episode) -> None:
    env, policy = read_settings(ep.env_config, ep.policy_config, seed=ep.seed)
    # A new world takes 0.2 s, in which the others would wait.
    game = await asyncio.to_thread(begin, ep.seed, env, policy)
    conversation = Conversation(env, policy, game.look())
    extra = {"tools": tools(env), "tool_choice": policy.tool_choice or "required"} if policy.calls_tools else {}
    credit = StepCredit(env.step_rewards)
    turns = min(ep.max_turns, env.max_steps_per_episode or ep.max_turns)
    unlocking = invalid = 0
    ended = "max_turns"
    for number in range(turns):
        try:
            reply = await ep.chat(conversation.messages(), **extra)
        except PolicyFailure as full:
            if full.code not in _NO_ROOM or not ep.steps:
                raise
            ep.steps[-1].done = ep.steps[-1].truncated = True
            ended = full.code
            break
        decision = read_reply(reply, env, policy)
        invalid = invalid + 1 if decision.problem else 0
        # A turn without a valid reply passes in the game, too.
        turn = game.play(decision.actions or ["noop"])
        unlocking += bool(turn.unlocked)
        ended = _ended(turn, given_up=invalid >= env.max_invalid_turns)
        done = bool(ended) or number + 1 == turns
        ep.step(
            obs=turn.observation.summary(),
            reward=turn.reward,
            done=done,
            truncated=done and not turn.dead,
            info={**credit.turn(number, turn), **_info(turn, decision, reply)},
        )
        if ended:
            break
        ended = "max_turns"
        conversation.played(reply.message, decision, turn.observation)
    share = len(game.unlocked) / len(ACHIEVEMENTS)
    ep.outcome(share, events=unlocking / len(ep.steps), details={**_details(game, ep, ended), **credit.summary()})


def begin(seed: int, env: EnvSettings, policy: PolicySettings) -> Game:
    """Begin the seed's game with the settings."""
    return Game(
        seed,
        area=env.area,
        difficulty=env.difficulty,
        max_steps=env.max_steps,
        image_size=env.image_size if policy.shows_pictures else 0,
        images=policy.max_images_per_step or 1,
    )


def _ended(turn: Turn, *, given_up: bool) -> str:
    """Return why the episode is over after a turn; "" when it goes on."""
    if turn.dead:
        return "died"
    if turn.truncated:
        return "max_steps"
    return "invalid_turns" if given_up else ""


def _info(turn: Turn, decision: Decision, reply: Reply) -> dict[str, Any]:
    """Return the `info` of a turn, which does not depend on its reward."""
    return {
        "actions": turn.played,
        "reward": turn.reward,
        "finish_reason": reply.finish_reason,
        **({"invalid": decision.problem} if decision.problem else {}),
    }


def _details(game: Game, ep: Episode, ended: str) -> dict[str, Any]:
    return {
        "achievements": game.unlocked,
        "steps": game.steps,
        "ended": ended,
        "invalid_turns": sum("invalid" in (step.info or {}) for step in ep.steps),
    }
