"""The messages between the game and a model: system message, turns, tool; and the parsing of a reply."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from synth.taskapp.llm import PolicyFailure, Reply
from task_apps.crafter.env import ACHIEVEMENTS, ACTIONS, Observation
from task_apps.crafter.settings import EnvSettings, PolicySettings
from task_apps.crafter.view import COLUMNS, ROWS, SIGNS, YOU
from task_apps.crafter.world import RULES

Message = dict[str, Any]
TOOL = "interact"
_PLACED = {action.removeprefix("place_") for action in ACTIONS if action.startswith("place_")}
_ACTIONS_LINE = re.compile(r"^\W*actions\W*:\s*(.+)$", re.IGNORECASE | re.MULTILINE)
_BETWEEN = re.compile(r"[^\w]+")

_RULES = """\
You play Crafter, a game of survival on a grid. Unlock as many different achievements as you can, and stay alive.

How the game works:
- move_left, move_right, move_up and move_down turn you that way, and take a step if the way is free. You walk on \
grass, sand and path. Lava kills you.
- do acts on the cell that you face: it takes wood from a tree, water, stone, coal, iron, diamond, now and then a \
sapling from grass; it hits a cow (which feeds you), a zombie, a skeleton; it eats a ripe plant.
- Food, drink and energy fall with time, and without them health does. Sleep restores energy; zombies come at night."""


def _recipes() -> str:
    """Return the recipes of the game's own tables."""
    tools = [f"{what} needs {next(iter(r['require']))}" for what, r in RULES.collect.items() if r["require"]]
    placed = [f"place_{what} {_counts(r['uses'])}" for what, r in RULES.place.items() if what in _PLACED]
    made = [f"make_{what} {_counts(r['uses'])} near a {' and a '.join(r['nearby'])}" for what, r in RULES.make.items()]
    return f"- To take: {'; '.join(tools)}.\n- What it takes: {'; '.join([*placed, *made])}."


def _counts(uses: dict[str, int]) -> str:
    return " and ".join(f"{count} {name}" for name, count in uses.items())


def system_message(env: EnvSettings, policy: PolicySettings) -> Message:
    """Return the rules of the game, its display, and how to answer."""
    parts = [f"{_RULES}\n{_recipes()}", f"Achievements: {', '.join(ACHIEVEMENTS)}.", f"Actions: {', '.join(ACTIONS)}."]
    if policy.shows_pictures:
        parts.append(
            f"You are shown a picture: {COLUMNS} x {ROWS} cells with you in the middle, and below them your health, "
            "food, drink, energy and what you carry."
        )
    if not policy.image_only_mode:
        signs = ", ".join(f"{sign} {thing}" for thing, sign in SIGNS.items())
        parts.append(f"The map shows {COLUMNS} x {ROWS} cells with you ({YOU}) in the middle: {signs}.")
    most = f"at most {env.max_actions}" if env.max_actions > 1 else "one"
    if policy.calls_tools:
        parts.append(f"Each turn, call {TOOL} with the actions to play in order, {most}.")
    else:
        parts.append(f"End each reply with a line of the actions to play in order, {most}:\nactions: move_left, do")
    if policy.system_hint:
        parts.append(policy.system_hint)
    return {"role": "system", "content": "\n\n".join(parts)}


def tools(env: EnvSettings) -> list[dict[str, Any]]:
    """Return the one tool, as the OpenAI API has it."""
    actions = {"type": "array", "items": {"type": "string", "enum": list(ACTIONS)}, "minItems": 1}
    return [
        {
            "type": "function",
            "function": {
                "name": TOOL,
                "description": "Play actions in Crafter, one after the other.",
                "parameters": {
                    "type": "object",
                    "properties": {"actions": {**actions, "maxItems": env.max_actions}},
                    "required": ["actions"],
                },
            },
        }
    ]


@dataclass(frozen=True)
class Decision:
    """The actions of a reply. problem: why it is not valid, in the words for the model; there are then no actions."""

    actions: list[str] = field(default_factory=list[str])
    problem: str = ""


def read_reply(reply: Reply, env: EnvSettings, policy: PolicySettings) -> Decision:
    """Return the actions of a reply; a reply is valid as a whole or not at all."""
    if reply.finish_reason == "length":
        return Decision(problem="your reply was cut off; answer in fewer words")
    try:
        named = _called(reply) if policy.calls_tools else _written(reply.content)
    except ValueError as wrong:
        return Decision(problem=str(wrong))
    unknown = [name for name in named if name not in ACTIONS]
    if unknown:
        return Decision(problem=f"{unknown[0]!r} is no action")
    if not named:
        return Decision(problem="no action was named")
    if len(named) > env.max_actions:
        return Decision(problem=f"{len(named)} actions are more than the {env.max_actions} of a turn")
    return Decision(named)


def _called(reply: Reply) -> list[Any]:
    try:
        calls = reply.tool_calls()
    except PolicyFailure as wrong:
        raise ValueError(str(wrong)) from wrong
    if not calls:
        raise ValueError(f"there was no call of {TOOL}")
    named: list[Any] = []
    for call in calls:
        if call.name != TOOL:
            raise ValueError(f"{call.name!r} is no tool; call {TOOL}")
        actions = call.arguments.get("actions")
        if not isinstance(actions, list):
            raise ValueError(f"{TOOL} takes a list of actions")
        named += actions
    return named


def _written(text: str) -> list[str]:
    """Return the names of the last line `actions: …`; of the whole reply if it consists of names only."""
    lines = _ACTIONS_LINE.findall(text)
    named = [word for word in _BETWEEN.split(lines[-1] if lines else text) if word]
    if not lines and not all(word in ACTIONS for word in named):
        raise ValueError("there was no line `actions: …`")
    return named


def assistant_message(actions: Sequence[str], policy: PolicySettings, *, number: int) -> Message:
    """Return the reply that plays these actions, as an expert gives it."""
    if not policy.calls_tools:
        return {"role": "assistant", "content": f"actions: {', '.join(actions)}"}
    arguments = json.dumps({"actions": list(actions)})
    call = {"id": f"call_{number}", "type": "function", "function": {"name": TOOL, "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


class Conversation:
    """The messages so far. With the whole history, each prompt begins with the one before it and its reply."""

    def __init__(self, env: EnvSettings, policy: PolicySettings, first: Observation) -> None:
        self._policy, self._history = policy, env.history
        self._system = system_message(env, policy)
        self._turns = [[self._shown(first)]]

    def messages(self) -> list[Message]:
        """Return the prompt of the next reply: the system message, the kept turns, and the latest observation."""
        kept = self._turns if self._history is None else self._turns[-(self._history + 1) :]
        return [self._system, *(message for turn in kept for message in turn)]

    def played(self, reply: Message, decision: Decision, observation: Observation) -> None:
        """Add a reply and its result to the conversation. A tool's result has the problem of an invalid reply."""
        result = f"Not played: {decision.problem}." if decision.problem else f"Played: {', '.join(decision.actions)}."
        calls = reply.get("tool_calls") or []
        results = [{"role": "tool", "tool_call_id": call.get("id"), "content": result} for call in calls]
        self._turns[-1] += [reply, *results]
        self._turns.append([self._shown(observation, "" if calls or not decision.problem else result)])

    def _shown(self, observation: Observation, note: str = "") -> Message:
        lines = [note] if note else []
        if not self._policy.image_only_mode:
            lines.append(observation.text)
        text = "\n".join(lines)
        if not observation.pictures:
            return {"role": "user", "content": text}
        parts: list[dict[str, Any]] = [
            {"type": "image_url", "image_url": {"url": picture.data_url}} for picture in observation.pictures
        ]
        return {"role": "user", "content": [*parts, {"type": "text", "text": text}] if text else parts}
