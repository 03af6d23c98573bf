"""What a line of a training file must be: one conversation, as JSON.

{"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…", "weight": 1}]}
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta

from synth.events import LineProblem

Role = Literal["system", "developer", "user", "assistant", "tool"]

_AT = re.compile(r" - at `(\$[^`]*)`$")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Part(msgspec.Struct, gc=False):
    """A piece of a message's content; only text counts here."""

    type: str
    text: str | None = None


class Function(msgspec.Struct, gc=False):
    name: str


class ToolCall(msgspec.Struct, gc=False):
    function: Function


class Message(msgspec.Struct, gc=False):
    """One turn. weight: how much an assistant's turn is learnt from, 0 … 1."""

    role: Role
    content: str | list[Part] | None = None
    tool_calls: list[ToolCall] | None = None
    weight: Annotated[float, Meta(ge=0, le=1)] | None = None

    @property
    def characters(self) -> int:
        if isinstance(self.content, str):
            return len(self.content)
        return sum(len(part.text or "") for part in self.content or ())


class Conversation(msgspec.Struct, gc=False):
    messages: Annotated[list[Message], Meta(min_length=2)]


_decoder = msgspec.json.Decoder(Conversation)


def read_line(line: bytes) -> Conversation | tuple[str, str]:
    """The conversation on this line, or where in it something is wrong, and what: (`$.messages[0].role`, reason)."""
    try:
        # The decoder does not look into values that it skips, and whoever trains on the line will.
        line.decode()
        conversation = _decoder.decode(line)
    except UnicodeDecodeError as error:
        if line.startswith((b"\xff\xfe", b"\xfe\xff")):
            return "$", "the file is UTF-16; save it as UTF-8"
        return "$", f"not UTF-8: byte 0x{line[error.start]:02x} at column {error.start + 1}"
    except msgspec.ValidationError as error:
        reason = str(error)
        at = _AT.search(reason)
        path, reason = (at[1], reason[: at.start()]) if at else ("$", reason)
        expected = f"; expected one of {', '.join(get_args(Role))}" if path.endswith(".role") else ""
        return path, reason + expected
    except RecursionError:
        return "$", "nested too deeply"
    except msgspec.DecodeError as error:
        if line.startswith(_BYTE_ORDER_MARK):
            return "$", "the line begins with a byte order mark; save the file as UTF-8 without one"
        return "$", _malformed(line, str(error))
    return _weigh(conversation)


def _malformed(line: bytes, reason: str) -> str:
    if reason.startswith("Input data was truncated"):
        if line.rstrip().endswith(b"}"):
            return "not JSON: a text is not closed, or a \\u escape is one half of a pair"
        return "not JSON: the line ends too early (a conversation must be on one line)"
    return f"not JSON: {reason.removeprefix('JSON is malformed: ')}"


def _weigh(conversation: Conversation) -> Conversation | tuple[str, str]:
    replies = 0
    for i, message in enumerate(conversation.messages):
        if message.role == "assistant":
            replies += 1
            if not message.content and not message.tool_calls:
                return f"$.messages[{i}].content", "an assistant message with neither content nor tool_calls"
        elif message.weight is not None:
            return f"$.messages[{i}].weight", f"a weight on a message of {message.role}; only assistants have one"
    if not replies:
        return "$.messages", "no assistant message to learn from"
    return conversation


def line_problem(number: int, problem: tuple[str, str]) -> LineProblem:
    """A problem with its line, counted from 1."""
    path, reason = problem
    return LineProblem(line=number, path=path[:200], reason=reason[:300])
