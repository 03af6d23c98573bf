"""What a line of a training file must be: one conversation, as JSON.

{"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…", "weight": 1}], "tools": […]}

Every shape that the published clients write is taken as it is; the trainer reads the same shapes
(`synth.trainer.learner.data.chat_rows`), so that only rows with images are ever written anew.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from synth.events import LineProblem

Role = Literal["system", "developer", "user", "assistant", "tool"]
PartType = Literal["text", "image", "image_url"]

_AT = re.compile(r" - at `(\$[^`]*)`$")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_PARTS = get_args(PartType)
_IMAGES = ("image", "image_url")


class ImageUrl(msgspec.Struct, gc=False):
    url: str


class Part(msgspec.Struct, gc=False):
    """A piece of a message's content: a typed part, or an action that an agent took, `{tool_name, arguments}`."""

    type: str | None = None
    text: str | None = None
    image_url: ImageUrl | str | None = None
    image: ImageUrl | str | None = None
    tool_name: str | None = None
    arguments: Any = None


class Function(msgspec.Struct, gc=False):
    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCall(msgspec.Struct, gc=False):
    """As the OpenAI API nests it, or flat."""

    function: Function | None = None
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class ToolFunction(msgspec.Struct, gc=False):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(msgspec.Struct, gc=False):
    """A tool that the assistant may call: nested as the OpenAI API has it, or flat."""

    function: ToolFunction | None = None
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Message(msgspec.Struct, gc=False):
    """One turn. weight: how much an assistant's turn is learnt from, 0 … 1. raw_content: what stands for a missing
    content; reasoning: what the assistant thought before it."""

    role: Role
    content: str | list[Part | str] | dict[str, Any] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    reasoning: str | None = None
    raw_content: str | None = None
    weight: Annotated[float, Meta(ge=0, le=1)] | None = None


class Conversation(msgspec.Struct, gc=False):
    """images, image_url: the older form, in which a whole row shows its images to the first user message."""

    messages: Annotated[list[Message], Meta(min_length=2)]
    tools: list[Tool] | None = None
    metadata: dict[str, Any] | None = None
    images: list[ImageUrl | str] | str | None = None
    image_url: list[ImageUrl | str] | ImageUrl | str | None = None


class LineStats(msgspec.Struct, gc=False):
    """A good line. texts: of its messages, tool calls and reasoning. has_images: whether it shows an image."""

    messages: int
    texts: list[str]
    has_images: bool


_decoder = msgspec.json.Decoder(Conversation)


def read_line(line: bytes) -> LineStats | tuple[str, str]:
    """What is on this line, or where in it something is wrong, and what: (`$.messages[0].role`, reason)."""
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
    return _line_stats(conversation)


def _malformed(line: bytes, reason: str) -> str:
    if reason.startswith("Input data was truncated"):
        if line.rstrip().endswith(b"}"):
            return "not JSON: a text is not closed, or a \\u escape is one half of a pair"
        return "not JSON: the line ends too early (a conversation must be on one line)"
    return f"not JSON: {reason.removeprefix('JSON is malformed: ')}"


def _line_stats(conversation: Conversation) -> LineStats | tuple[str, str]:
    replies = 0
    texts: list[str] = []
    has_images = bool(conversation.images or conversation.image_url)
    if has_images and all(message.role != "user" for message in conversation.messages):
        return "$.images" if conversation.images else "$.image_url", "there is no user message to show them in"
    for i, message in enumerate(conversation.messages):
        content = message.content
        if isinstance(content, str):
            texts.append(content)
        elif content is not None:
            shown = _content(message.role, content, texts, f"$.messages[{i}].content")
            if isinstance(shown, tuple):
                return shown
            has_images = has_images or shown
        if message.tool_calls is not None:
            wrong = _calls(message, texts, f"$.messages[{i}]")
            if wrong:
                return wrong
        if message.reasoning:
            texts.append(message.reasoning)
        if message.role == "assistant":
            replies += 1
            if not content and not message.tool_calls and not message.reasoning:
                if not message.raw_content:
                    return f"$.messages[{i}].content", "an assistant message with neither content nor tool_calls"
                texts.append(message.raw_content)
        elif message.weight is not None:
            return f"$.messages[{i}].weight", f"a weight on a message of {message.role}; only assistants have one"
    if not replies:
        return "$.messages", "no assistant message to learn from"
    for i, tool in enumerate(conversation.tools or ()):
        if tool.function is None and not tool.name:
            return f"$.tools[{i}]", "a tool without a name; expected {name, description?, parameters?}"
    return LineStats(len(conversation.messages), texts, has_images)


def _content(
    role: str, content: list[Part | str] | dict[str, Any], texts: list[str], place: str
) -> bool | tuple[str, str]:
    """Whether an image is shown, or what is wrong."""
    if isinstance(content, dict):
        if content.get("type") not in _PARTS:
            texts.append(msgspec.json.encode(content).decode())
            return False
        try:
            content = [msgspec.convert(content, Part)]
        except msgspec.ValidationError as error:
            return place, str(error)
    has_images = False
    for j, part in enumerate(content):
        if isinstance(part, str):
            texts.append(part)
        elif part.type is None:
            if part.tool_name is None or role != "assistant":
                return f"{place}[{j}]", f"a part without a type; expected one of {', '.join(_PARTS)}"
            texts.append(part.tool_name + msgspec.json.encode(part.arguments).decode())
        elif part.type == "text":
            if part.text is None:
                return f"{place}[{j}]", "a text part without `text`"
            texts.append(part.text)
        elif part.type in _IMAGES:
            if not (part.image_url or part.image):
                return f"{place}[{j}]", "an image part without `image_url` or `image`"
            has_images = True
        else:
            return f"{place}[{j}].type", f"a part of type {part.type[:40]!r}; expected one of {', '.join(_PARTS)}"
    return has_images


def _calls(message: Message, texts: list[str], place: str) -> tuple[str, str] | None:
    if message.tool_calls and message.role != "assistant":
        return f"{place}.tool_calls", f"tool calls in a message of {message.role}; only assistants call tools"
    for j, call in enumerate(message.tool_calls or ()):
        function = call.function or call
        if not function.name:
            return f"{place}.tool_calls[{j}]", "a call without `function` or `name`"
        arguments = function.arguments
        said = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments or {}).decode()
        texts.append(function.name + said)
    return None


def line_problem(number: int, problem: tuple[str, str]) -> LineProblem:
    """A problem with its line, counted from 1."""
    path, reason = problem
    return LineProblem(line=number, path=path[:200], reason=reason[:300])
