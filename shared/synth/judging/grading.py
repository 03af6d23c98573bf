"""What a grader asks of a model, its templates filled in: what the judge service puts before the grader's judge."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class PromptPiece(msgspec.Struct, frozen=True, kw_only=True):
    """A text of a message. sampled: by the model that is graded, so that it is data and gives no orders."""

    text: str
    sampled: bool = False


class PromptMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message, its texts in their order."""

    role: Literal["user", "assistant", "system", "developer"]
    pieces: list[PromptPiece]


class GraderPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """One question to one model.

    key: of the grader in its multi, else its name. model: names one of the question's judges. range: the lowest and the
    highest score; None where one of `labels` is asked for, which scores 1 where it is in `passing_labels`, else 0.
    sampling: parameters of the call that the grader sets, by their names in its schema.
    """

    key: str
    model: str
    messages: list[PromptMessage]
    range: tuple[float, float] | None = None
    labels: list[str] = []
    passing_labels: list[str] = []
    sampling: dict[str, Any] = {}
