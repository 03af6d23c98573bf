"""A judge's preference between two replies, asked in both orders."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from synth.cli.sampling.rows import PromptRow
from synth.client import Client
from synth.console.errors import CliError

Json = dict[str, Any]

_PATIENCE_S = 600.0
_QUESTION = """\
Two assistants answered the last message of this conversation:

{{ item.conversation }}

The first reply:
{{ sample.output_json.first }}

The second reply:
{{ sample.output_json.second }}

Which reply is better: more correct, more helpful, and closer to what the conversation demands? Ignore the order \
and the length of the replies. Score 0 if the first is \
better, 1 if the second is better, 0.5 if they are equally good."""


@dataclass(frozen=True)
class Preference:
    """A judge's preference for the second of two replies: 0 the first, 0.5 neither, 1 the second.

    value: the mean of both orders. consistent: whether both orders agree on the better one.
    """

    value: float
    consistent: bool


class Referee:
    """Compares replies pairwise, by a judge model of the cluster. The replies are data to the judge, never orders."""

    def __init__(self, client: Client, model: str) -> None:
        self.model = model
        self._client = client

    def prefer(self, row: PromptRow, first: Json, second: Json) -> Preference | None:
        """Return the judge's preference; None if it gives no score that can be read.

        A judge may prefer a reply for its position alone, so each pair is judged in both orders.
        """
        if (text := _text(first)) == (other := _text(second)):
            return Preference(0.5, consistent=True)
        forward, backward = self._ask(row, text, other), self._ask(row, other, text)
        if forward is None or backward is None:
            return None
        swapped = 1 - backward
        return Preference((forward + swapped) / 2, consistent=(forward - 0.5) * (swapped - 0.5) >= 0)

    def _ask(self, row: PromptRow, first: str, second: str) -> float | None:
        grader = {
            "type": "score_model",
            "name": "preference",
            "model": self.model,
            "input": [{"role": "user", "content": _QUESTION}],
            "range": [0, 1],
        }
        body = {
            "grader": grader,
            "item": {"conversation": json.dumps(_shown(row.messages), ensure_ascii=False)},
            "model_sample": json.dumps({"first": first, "second": second}, ensure_ascii=False),
        }
        answer = self._client.grade(body, patience=_PATIENCE_S)
        errors: Json = answer["metadata"]["errors"]
        if errors.get("model_grader_parse_error"):
            return None
        if any(value is True for value in errors.values()):
            raise CliError(f"the judge {self.model} cannot compare row {row.number}: {errors.get('details')}")
        return float(answer["reward"])


def _text(message: Json) -> str:
    """Return a reply as the judge reads it: its text, and its tool calls as JSON."""
    shown = {name: message[name] for name in ("content", "tool_calls") if message.get(name)}
    content = shown.get("content")
    return content if set(shown) == {"content"} and isinstance(content, str) else json.dumps(shown, ensure_ascii=False)


def _shown(messages: list[Json]) -> list[Json]:
    """Return messages without the bytes of their images."""
    return [
        {
            **message,
            "content": [part if part.get("type") == "text" else {"type": part.get("type")} for part in content],
        }
        if isinstance(content := message.get("content"), list)
        else message
        for message in messages
    ]
