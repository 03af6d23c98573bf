"""The rows of a dataset as prompts: the request that a model gets, and the reply that its own is compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import msgspec

from synth.cli.checking.dataset import check_dataset
from synth.cli.transfer.local_file import local_file
from synth.console.errors import UsageProblem
from synth.datasets.conversations import canonical_line
from synth.datasets.sources import read_pieces, source_files
from synth.errors import UserError

Json = dict[str, Any]

#: The field of a row that a grader reads the dataset's own reply from, if the row has no field of this name.
REFERENCE = "reference"


@dataclass(frozen=True)
class PromptRow:
    """A row. number: from 1, as it stands in the file; blank lines are not counted.

    messages, tools, response_format: of the request. reference: the assistant's message that the row ends with, None
    for a row of a prompt alone. item: the fields that a grader's templates refer to, `reference` among them.
    """

    number: int
    messages: list[Json]
    tools: list[Json] = field(default_factory=list[Json])
    response_format: Json | None = None
    reference: Json | None = None
    item: Json = field(default_factory=dict[str, Any])


class PromptFile:
    """A file or folder of rows, read line by line as often as it is iterated."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files = source_files(local_file(path))

    def check(self, progress: Callable[[str], None] = lambda text: None) -> None:
        """Read every row before a model is called. Raises `UserError` with the first bad lines."""
        report = check_dataset(self.path, read=lambda done: progress(f"checking {self.path}: {done / 1e6:.0f} MB"))
        if report.problems:
            raise UserError(report.problems)

    def __iter__(self) -> Iterator[PromptRow]:
        number = 0
        for file in self._files:
            for line in _lines(read_pieces(file)):
                if line and not line.isspace():
                    number += 1
                    yield prompt_row(number, line, f"{self.path}: row {number}")


def prompt_row(number: int, line: bytes, where: str) -> PromptRow:
    """Read a checked line of any shape. Raises `UsageProblem` if nothing is left to send."""
    decoded: Json = msgspec.json.decode(line)
    row: Json = msgspec.json.decode(canonical_line(line))
    messages, reference = cast(list[Json], row["messages"]), None
    if "chosen" in row:
        # The chosen side is the reference: its last message, after the turns that both sides share.
        side = cast(list[Json], row["chosen"])
        shared = len(messages) if side[: len(messages)] == messages else 0
        messages, reference = messages + side[shared:-1], side[-1]
    elif messages[-1].get("role") == "assistant":
        messages, reference = messages[:-1], messages[-1]
    messages = [{name: value for name, value in message.items() if name != "weight"} for message in messages]
    if not messages:
        raise UsageProblem(
            "nothing stands in front of the assistant's message", expected="a message of the user", where=where
        )
    tools = cast(list[Json], row.get("tools") or [])
    item = {**decoded, **row}
    if REFERENCE not in item and reference is not None:
        item[REFERENCE] = text_of(reference)
    response_format = decoded.get("response_format")
    return PromptRow(
        number=number,
        messages=messages,
        tools=[tool if "function" in tool else {"type": "function", "function": tool} for tool in tools],
        response_format=cast(Json, response_format) if isinstance(response_format, dict) else None,
        reference=reference,
        item=item,
    )


def text_of(message: Json) -> str:
    """Return the text of a message, joined if it has several text parts."""
    content = message.get("content")
    if isinstance(content, list):
        parts = [cast(Json, part) for part in cast(list[Any], content) if isinstance(part, dict)]
        return "".join(str(part.get("text") or "") for part in parts)
    return content if isinstance(content, str) else ""


def _lines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        yield from lines
    if rest:
        yield rest
