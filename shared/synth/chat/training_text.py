"""Render a row of a training file as text: the model's input, and the turns that it learns.

The trainer encodes this text. The check of a job's files renders it too, so that a row which the template cannot render
is refused before the job starts. Invariant: the text before an assistant's turn is exactly the one that a server
prompts with.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import msgspec

from synth.chat.marks import THINK, THINK_END
from synth.chat.messages import PreferenceRow, TrainingMessage, TrainingRow, images_in, keep_first_images
from synth.chat.rendering import Renderer
from synth.chat.template import IMAGE_TOKEN
from synth.errors import UserError


@dataclass(frozen=True)
class Piece:
    """A part of a rendered text (see `synth.chat.template`), and the weight of its tokens (0: context)."""

    text: str
    weight: float


@dataclass(frozen=True)
class RenderedSequence:
    """A sequence as alternating context and completion. context: how many of the row's messages its prompts show."""

    pieces: list[Piece]
    context: int


def trim_images(row: TrainingRow, most: int) -> tuple[TrainingRow, int]:
    """Return the row with the first `most` images of each message, and how many were left out."""
    kept = [keep_first_images(message, most) for message in row.messages]
    return msgspec.structs.replace(row, messages=[message for message, _ in kept]), sum(gone for _, gone in kept)


def pair_conversations(row: PreferenceRow) -> tuple[TrainingRow, TrainingRow]:
    """Return the chosen and the rejected side, each after the prompt, which is not trained."""

    def conversation(side: list[TrainingMessage]) -> TrainingRow:
        prompt = [msgspec.structs.replace(m, weight=0.0) if m.role == "assistant" else m for m in row.messages]
        return TrainingRow(messages=[*prompt, *side], tools=row.tools)

    return conversation(row.chosen), conversation(row.rejected)


def render_row(row: TrainingRow, template: Renderer) -> list[RenderedSequence]:
    """Return the sequences of a row that have a trained turn.

    A row is one sequence. If the template renders earlier turns differently (Qwen3 strips their `<think>` blocks), each
    assistant turn that does not continue the text before it begins another sequence. Raises `UserError` for a row that
    the template cannot render, or of which it omits images or a part of a learnt turn.
    """
    prepared = template.prepare(row.conversation())
    sequences: list[list[Piece]] = []
    contexts: list[int] = []
    so_far = ""
    for i, message in enumerate(row.messages):
        if message.role != "assistant":
            continue
        prompt, whole = template.assistant_turn(prepared, i)
        if message.weight != 0:
            _check_written(whole[len(prompt) :], prepared.messages[i], f"messages[{i}]")
        if not (so_far and prompt.startswith(so_far)):
            so_far = ""
            sequences.append([])
            contexts.append(0)
        sequences[-1] += [
            Piece(prompt[len(so_far) :], 0.0),
            Piece(whole[len(prompt) :], 1.0 if message.weight is None else float(message.weight)),
        ]
        so_far = whole
        contexts[-1] = i
    rendered = map(RenderedSequence, sequences, contexts)
    trained = [sequence for sequence in rendered if any(piece.weight for piece in sequence.pieces)]
    if template.sees:
        for sequence in trained:
            _check_images(row, sequence)
    return trained


def _check_written(turn: str, message: dict[str, Any], where: str) -> None:
    """Raise `UserError` if the text of a turn lacks a part of its message: it would not be learnt."""
    content: str = message["content"]
    if not all(part.strip() in turn for part in re.split(f"{THINK}|{THINK_END}", content)):
        raise _left_out("text", f"{where}.content", "choose a model whose template does")
    if message.get("thinking", "").strip() not in turn:
        raise _left_out("reasoning", f"{where}.reasoning_content", "remove it, or choose a model that reasons")
    called = Counter(call["function"]["name"] for call in message.get("tool_calls", ()))
    if any(turn.count(name) < times for name, times in called.items()):
        raise _left_out("tool calls", f"{where}.tool_calls", "write one call a turn, or choose a model of tool calls")


def _left_out(part: str, where: str, fix: str) -> UserError:
    what = f"the model's chat template leaves out {part} of this turn, which would not be learnt"
    return UserError(what, expected="a turn that the template writes whole", fix=fix, where=where)


def _check_images(row: TrainingRow, sequence: RenderedSequence) -> None:
    """Raise `UserError` if the template shows other images than the messages."""
    shown = sum(piece.text.count(IMAGE_TOKEN) for piece in sequence.pieces)
    expected = images_in(row.messages[: sequence.context])
    if shown != expected:
        raise UserError(
            f"the chat template shows {shown} images, and the messages have {expected}",
            expected="a template that shows every image, wherever it stands",
            fix="put images into messages of the user",
            where="messages",
        )
