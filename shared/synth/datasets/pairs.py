"""Preference pairs: the common beginning of both sides is their prompt, and each side begins with the assistant."""

from __future__ import annotations

from typing import Any

import msgspec

from synth.chat.messages import TrainingMessage, template_messages
from synth.datasets.shapes import CHOSEN_REJECTED, Draft
from synth.datasets.turns import BadRow, Turn
from synth.errors import UserError

_SAME = "the same as the chosen side; expected two different continuations"


def split_pair(draft: Draft) -> None:
    """Give the draft of a pair its prompt, and the sides that follow it. Raises `BadRow`.

    If the sides are whole conversations, the prompt is their common beginning, and a prompt beside them must be its
    beginning.
    """
    chosen, rejected = draft.chosen or [], draft.rejected or []
    if draft.shape == CHOSEN_REJECTED and (is_conversation(chosen) or is_conversation(rejected)):
        won, lost = _messages(chosen), _messages(rejected)
        if won == lost:
            raise BadRow(draft.sides[1], _SAME)
        # Whole conversations share their prompt, and part at an assistant's turn.
        shared = next((i for i, (a, b) in enumerate(zip(won, lost, strict=False)) if a != b), min(len(won), len(lost)))
        if not shared:
            raise BadRow(
                f"{draft.sides[1]}[0]", "chosen and rejected are conversations that begin apart; expected one prompt"
            )
        prompt, both = _messages(draft.messages), won[:shared]
        without_system = [message for message in both if message["role"] != "system"]
        # A dataset may keep the whole chosen conversation under `messages` too.
        if prompt != won and prompt not in (both[: len(prompt)], without_system[: len(prompt)]):
            raise BadRow(draft.place, "the conversations of chosen and rejected do not begin with the prompt")
        draft.messages, draft.chosen, draft.rejected = chosen[:shared], chosen[shared:], rejected[shared:]
    if not draft.messages:
        raise BadRow("$", "a pair without a prompt; expected `prompt`, or chosen and rejected as whole conversations")
    for side, place in zip((draft.chosen, draft.rejected), draft.sides, strict=True):
        if not side:
            raise BadRow(place, "nothing follows the prompt")
        if side[0].role != "assistant":
            reason = f"the side of a pair begins with {side[0].role!r}; expected an assistant's message"
            raise BadRow(side[0].at("$.role"), reason)


def check_pair(draft: Draft) -> None:
    """Refuse a pair whose sides render the same with any template, or that has no reply to compare. Raises `BadRow`."""
    sides = [_typed(side or []) for side in (draft.chosen, draft.rejected)]
    for side, place in zip(sides, draft.sides, strict=True):
        if not any(message.role == "assistant" and message.weight != 0 for message in side):
            raise BadRow(place, "no assistant message with a weight above 0; expected one to compare")
    try:
        won, lost = (template_messages(side, thinks=True, sees=True) for side in sides)
    except UserError as error:
        raise BadRow(draft.sides[0], str(error)) from error
    if won == lost:
        raise BadRow(draft.sides[1], _SAME)


def _typed(turns: list[Turn]) -> list[TrainingMessage]:
    return [msgspec.convert(turn.message, TrainingMessage) for turn in turns]


def _messages(turns: list[Turn]) -> list[dict[str, Any]]:
    return [turn.message for turn in turns]


def is_conversation(side: list[Turn]) -> bool:
    """Return whether a side of a pair begins with its prompt."""
    return bool(side) and side[0].role != "assistant"
