"""A grader's request to a model, with its templates filled in; the judge service sends it to the grader's judge."""

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

    key: of the grader in its multi, else its name. model: names one of the request's judges. range: the lowest and the
    highest score; None if the answer is one of `labels`, which scores 1 if it is in `passing_labels`, else 0. sampling:
    parameters of the call that the grader sets, by their names in its schema.
    """

    key: str
    model: str
    messages: list[PromptMessage]
    range: tuple[float, float] | None = None
    labels: list[str] = []
    passing_labels: list[str] = []
    sampling: dict[str, Any] = {}
