"""Preference pairs: the shapes in which a line may hold one, and the one in which it is trained on.

As it is trained on: `{"messages": [prompt], "chosen": [the assistant's messages], "rejected": […], "tools"?}`, which is
`synth.chat.messages.PreferenceRow`. As it may come:

- OpenAI's: `{"input": {"messages", "tools"?, "parallel_tool_calls"?}, "preferred_output", "non_preferred_output"}`;
- `{"prompt" or "messages", "chosen", "rejected"}`, each a text or messages, or with Alpaca's `instruction` and `input`
  as the prompt. Where the two sides are whole conversations, what they share is the prompt, and a prompt beside them
  has to be its beginning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import msgspec

from synth.chat.messages import Message, PreferenceRow, TrainingMessage, template_messages
from synth.datasets.shapes import instruction_text
from synth.errors import UserError

OPENAI = "openai_preference"
CHOSEN_REJECTED = "chosen_rejected"

_Messages = list[TrainingMessage]
_SAME = "the same as the chosen side; expected two different ways to go on"
_SIDES = ("chosen", "rejected", "preferred_output", "non_preferred_output")


class _OpenAIInput(msgspec.Struct, gc=False):
    messages: _Messages
    tools: list[dict[str, Any]] | None = None


class _OpenAIPair(msgspec.Struct, gc=False):
    input: _OpenAIInput
    preferred_output: _Messages
    non_preferred_output: _Messages


class _ChosenRejected(msgspec.Struct, gc=False, kw_only=True):
    prompt: str | _Messages | None = None
    messages: _Messages | None = None
    system: str | None = None
    instruction: str | None = None
    input: str | None = None
    chosen: str | _Messages
    rejected: str | _Messages


_OPENAI = msgspec.json.Decoder(_OpenAIPair)
_CHOSEN_REJECTED = msgspec.json.Decoder(_ChosenRejected)


@dataclass(frozen=True)
class Part:
    """Messages of a pair, and where they stand in the line: `place`, from its element `start` on."""

    messages: _Messages
    place: str
    start: int = 0


@dataclass(frozen=True)
class Pair:
    """A pair that was found in a line. shape: the one that it came in, "" where it is the one that is trained on.

    data: the row as it is trained on, untyped; row: the same, typed.
    """

    shape: str
    data: dict[str, Any]
    row: PreferenceRow
    prompt: Part
    chosen: Part
    rejected: Part


def holds_pair(data: dict[str, Any]) -> bool:
    """Whether an object of a line means to be a preference pair."""
    return any(data.get(name) is not None for name in _SIDES)


def read_pair(line: bytes, data: dict[str, Any]) -> Pair | tuple[str, str]:
    """The pair on a line, or where something is wrong, and what. data: the line, decoded.

    Raises `msgspec.ValidationError` for a value of the wrong type.
    """
    if data.get("chosen") is None and data.get("rejected") is None:
        _OPENAI.decode(line)
        return _from_openai(data)
    _CHOSEN_REJECTED.decode(line)
    return _from_chosen_rejected(data)


def same_sides(row: PreferenceRow) -> bool:
    """Whether a template is given the same messages for both sides. Raises `UserError` for what no template shows."""
    chosen, rejected = (template_messages(side, thinks=True, sees=True) for side in (row.chosen, row.rejected))
    return chosen == rejected


def _from_openai(data: dict[str, Any]) -> Pair | tuple[str, str]:
    given = data["input"]
    kept = {name: value for name, value in data.items() if name in ("metadata", "images", "image_url")}
    kept |= {name: given[name] for name in ("tools", "parallel_tool_calls") if given.get(name) is not None}
    row = {"messages": given["messages"], "chosen": data["preferred_output"], "rejected": data["non_preferred_output"]}
    places = ("$.input.messages", "$.preferred_output", "$.non_preferred_output")
    return _pair(OPENAI, row | kept, places, 0)


def _from_chosen_rejected(data: dict[str, Any]) -> Pair | tuple[str, str]:
    chosen, rejected = _said(data["chosen"]), _said(data["rejected"])
    prompt_place = "$.prompt" if data.get("prompt") is not None else "$.messages"
    prompt = _prompt(data)
    shared = 0
    if _is_conversation(chosen) or _is_conversation(rejected):
        # Whole conversations share their prompt, and part at an assistant's turn.
        shared = next(
            (i for i, (a, b) in enumerate(zip(chosen, rejected, strict=False)) if a != b),
            min(len(chosen), len(rejected)),
        )
        if chosen == rejected:
            return "$.rejected", _SAME
        both = chosen[:shared]
        if not both:
            return "$.rejected[0]", "chosen and rejected are conversations that begin apart; expected one prompt"
        without_system = [m for m in both if m.get("role") != "system"]
        # A dataset may keep the whole chosen conversation under `messages` too.
        kept_whole = data.get("prompt") is None and prompt == chosen
        if not kept_whole and prompt not in (both[: len(prompt)], without_system[: len(prompt)]):
            return prompt_place, "the prompt is not what the conversations of chosen and rejected begin with"
        prompt, prompt_place = both, "$.chosen"
        chosen, rejected = chosen[shared:], rejected[shared:]
    if not prompt:
        return "$", "a pair without a prompt; expected `prompt`, or chosen and rejected as whole conversations"
    kept = {name: value for name, value in data.items() if name not in ("prompt", "system", "instruction", "input")}
    row = kept | {"messages": prompt, "chosen": chosen, "rejected": rejected}
    shape = "" if row == data else CHOSEN_REJECTED
    return _pair(shape, row, (prompt_place, "$.chosen", "$.rejected"), shared)


def _pair(shape: str, data: dict[str, Any], places: tuple[str, str, str], start: int) -> Pair | tuple[str, str]:
    for name, place in zip(("messages", "chosen", "rejected"), places, strict=True):
        messages = cast(list[dict[str, Any]], data[name])
        first = start if name != "messages" else 0
        if not messages:
            return place, "no messages; expected a prompt" if name == "messages" else "nothing follows the prompt"
        if name != "messages" and messages[0].get("role") != "assistant":
            role = str(messages[0].get("role"))[:20]
            return f"{place}[{first}].role", f"the side of a pair begins with {role!r}; expected an assistant's message"
    row = msgspec.convert(data, PreferenceRow)
    prompt, chosen, rejected = places
    return Pair(
        shape,
        data,
        row,
        Part(row.messages, prompt),
        Part(row.chosen, chosen, start),
        Part(row.rejected, rejected, start),
    )


def _prompt(data: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages of the prompt that stands beside the sides; none where there is no such field."""
    given = data["prompt"] if data.get("prompt") is not None else data.get("messages")
    if given is None and data.get("instruction") is not None:
        given = instruction_text(data["instruction"], data.get("input"))
    if given is None:
        return []
    messages = [{"role": "user", "content": given}] if isinstance(given, str) else list(given)
    system = data.get("system")
    return [{"role": "system", "content": system}, *messages] if system else messages


def _said(side: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"role": "assistant", "content": side}] if isinstance(side, str) else side


def _is_conversation(side: list[dict[str, Any]]) -> bool:
    return bool(side) and side[0].get("role") != "assistant"


def pair_problem(pair: Pair) -> tuple[str, str] | None:
    """What is wrong with a pair whose messages are good one by one: where, and what."""
    for part in (pair.chosen, pair.rejected):
        if not any(_is_learnt(message) for message in part.messages):
            return part.place, "no assistant message with a weight above 0; expected one to compare"
    try:
        if same_sides(pair.row):
            return pair.rejected.place, _SAME
    except UserError as error:
        return pair.chosen.place, str(error)
    return None


def _is_learnt(message: Message) -> bool:
    return message.role == "assistant" and getattr(message, "weight", None) != 0
