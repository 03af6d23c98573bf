"""What a line of a training file must be: one conversation, or one preference pair, as JSON.

{"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…", "weight": 1}], "tools": […]}

Or one prompt for a grader's job: messages that end with the user's, and whatever fields the grader refers to.

Every message that the published clients write is taken as it is (`synth.chat.messages` has the types and the rules), so
that only rows with images and rows of another shape (`synth.datasets.shapes`, `synth.datasets.pairs`) are ever written
anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta

from synth.chat.json_text import MAX_VALUE_NESTING, BadJson, is_too_deep, tool_arguments
from synth.chat.messages import (
    IMAGE_TYPES,
    PART_TYPES,
    ROLES,
    ContentPart,
    Message,
    Tool,
    TrainingMessage,
    TrainingRow,
    object_text,
)
from synth.datasets.pairs import OPENAI, Pair, holds_pair, pair_problem, read_pair
from synth.datasets.shapes import ALPACA, PROMPT_COMPLETION, SHAREGPT, Reshaped, reshape
from synth.events import LineProblem

_MESSAGE = re.compile(r"\$\.messages\[(\d+)\]")
_FIELD = {SHAREGPT: "$.conversations", ALPACA: "$.instruction", PROMPT_COMPLETION: "$.prompt"}
_LIST = "a JSON list; expected an object on each line (jq -c '.[]' FILE > rows.jsonl makes them of a list)"
_SHAPES = (
    "messages, conversations (ShareGPT), instruction and output (Alpaca), prompt and completion, or prompt, chosen and "
    "rejected"
)
_AT = re.compile(r" - at `(\$[^`]*)`$")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class UploadedRow(TrainingRow, frozen=True, gc=False, kw_only=True):
    """A conversation. chosen, rejected: there where the line is a pair instead."""

    messages: Annotated[list[TrainingMessage], Meta(min_length=1)]
    chosen: msgspec.Raw | None = None
    rejected: msgspec.Raw | None = None


class LineStats(msgspec.Struct, gc=False):
    """What a good line holds. texts: of its messages, tool calls and reasoning. has_images: whether it shows any.

    pair: whether it is a preference pair. prompt: whether its last message is the user's. answered: whether any is of
    an assistant. shape: the one that it came in, "" where it is the one that is trained on.
    """

    messages: int
    texts: list[str]
    has_images: bool
    pair: bool = False
    shape: str = ""
    prompt: bool = False
    answered: bool = True


_decoder = msgspec.json.Decoder(UploadedRow)


def decode_row(line: bytes) -> UploadedRow:
    """The row on a line, its types checked. Raises what msgspec raises."""
    return _decoder.decode(line)


def read_line(line: bytes) -> LineStats | tuple[str, str]:
    """What is on this line, or where in it something is wrong, and what: (`$.messages[0].role`, reason)."""
    try:
        # The decoder does not look into values that it skips, and whoever trains on the line will.
        line.decode()
        try:
            row = decode_row(line)
        except msgspec.ValidationError:
            found = _read_other_shape(line)
            if found is None:
                raise
            return found
        if row.chosen is not None or row.rejected is not None:
            return _read_pair(line, msgspec.json.decode(line))
    except UnicodeDecodeError as error:
        if line.startswith((b"\xff\xfe", b"\xfe\xff")):
            return "$", "the file is UTF-16; save it as UTF-8"
        return "$", f"not UTF-8: byte 0x{line[error.start]:02x} at column {error.start + 1}"
    except msgspec.ValidationError as error:
        path, reason = _located(error)
        return path, reason + (f"; expected one of {', '.join(ROLES)}" if path.endswith(".role") else "")
    except RecursionError:
        return "$", "nested too deeply"
    except msgspec.DecodeError as error:
        if line.startswith(_BYTE_ORDER_MARK):
            return "$", "the line begins with a byte order mark; save the file as UTF-8 without one"
        return "$", _malformed(line, str(error))
    if row.messages[-1].role != "user" and len(row.messages) < 2:
        return (
            "$.messages",
            "Expected `array` of length >= 2, or one message of the user",
        )
    return _row_problem(row, row.messages) or _line_stats(row, prompts=True)


def canonical_line(line: bytes) -> bytes:
    """A checked line as it is trained on: itself, unless it came in another shape."""
    try:
        row = decode_row(line)
    except msgspec.ValidationError:
        row = None
    if row is not None and row.chosen is None and row.rejected is None:
        return line
    data: dict[str, Any] = msgspec.json.decode(line)
    found = read_pair(line, data) if holds_pair(data) else reshape(line, data)
    return msgspec.json.encode(found.data) if isinstance(found, Pair | Reshaped) and found.shape else line


def _read_other_shape(line: bytes) -> LineStats | tuple[str, str] | None:
    """What is on a line that has no good `messages`; None where it is in none of the other shapes either."""
    decoded = msgspec.json.decode(line)
    if isinstance(decoded, list):
        return "$", _LIST
    if not isinstance(decoded, dict):
        return None
    data = cast(dict[str, Any], decoded)
    if holds_pair(data):
        return _read_pair(line, data)
    found = reshape(line, data)
    if not isinstance(found, Reshaped):
        if found is None and data.get("messages") is None:
            return "$", f"a row in none of the shapes that are known; expected {_SHAPES}"
        return found
    place = _FIELD[found.shape]
    if len(found.data["messages"]) < 2:
        return place, "fewer than two messages; expected a question and an answer"
    row = msgspec.convert(found.data, UploadedRow)
    stats = _row_problem(row, row.messages) or _line_stats(row)
    if isinstance(stats, LineStats):
        stats.shape = found.shape
        return stats
    path, reason = stats
    at = _MESSAGE.match(path)
    # In the words of the line as it came.
    return found.places[int(at[1])] if at else path.replace("$.messages", place), reason


def _read_pair(line: bytes, data: dict[str, Any]) -> LineStats | tuple[str, str]:
    pair = read_pair(line, data)
    if isinstance(pair, tuple):
        return pair
    row = pair.row
    if wrong := _row_problem(row, [*row.messages, *row.chosen, *row.rejected]):
        return wrong
    texts: list[str] = []
    has_images = bool(row.images or row.image_url)
    for part in (pair.prompt, pair.chosen, pair.rejected):
        found = _messages_show_images(part.messages, part.place, texts, start=part.start)
        if isinstance(found, tuple):
            return found
        has_images = has_images or found
    if wrong := _tools_problem(row, "$.input.tools" if pair.shape == OPENAI else "$.tools") or pair_problem(pair):
        return wrong
    messages = len(row.messages) + len(row.chosen) + len(row.rejected)
    return LineStats(messages, texts, has_images, pair=True, shape=pair.shape)


def _row_problem(row: TrainingRow, messages: Sequence[TrainingMessage]) -> tuple[str, str] | None:
    """What is wrong with a row as a whole. messages: all that it holds."""
    if any(is_too_deep(value, MAX_VALUE_NESTING) for value in _nested_values(row, messages)):
        return "$", f"nested too deeply; expected at most {MAX_VALUE_NESTING} levels"
    if (row.images or row.image_url) and all(message.role != "user" for message in row.messages):
        return "$.images" if row.images else "$.image_url", "there is no user message to show them in"
    return None


def _nested_values(row: TrainingRow, messages: Sequence[TrainingMessage]) -> Iterator[Any]:
    """The values of a row that are rendered and may be nested at will."""
    yield row.tools
    for message in messages:
        if isinstance(message.content, dict):
            yield message.content
        elif isinstance(message.content, list):
            yield from (part.arguments for part in message.content if isinstance(part, ContentPart))
        for call in message.tool_calls or ():
            yield call.id
            yield call.called.arguments


def _located(error: msgspec.ValidationError) -> tuple[str, str]:
    """The path at which a value has the wrong type, and what is wrong."""
    reason = str(error)
    at = _AT.search(reason)
    return (at[1], reason[: at.start()]) if at else ("$", reason)


def _malformed(line: bytes, reason: str) -> str:
    if reason.startswith("Input data was truncated"):
        if line.lstrip().startswith(b"["):
            return _LIST
        if line.rstrip().endswith(b"}"):
            return "not JSON: a text is not closed, or a \\u escape is one half of a pair"
        return "not JSON: the line ends too early (a conversation must be on one line)"
    return f"not JSON: {reason.removeprefix('JSON is malformed: ')}"


def _line_stats(row: TrainingRow, *, prompts: bool = False) -> LineStats | tuple[str, str]:
    """What a conversation holds, or what is wrong with it. prompts: whether one without an answer is good."""
    texts: list[str] = []
    found = _messages_show_images(row.messages, "$.messages", texts)
    if isinstance(found, tuple):
        return found
    # Most rows end with an assistant, and one look is enough.
    last = row.messages[-1].role
    answered = last == "assistant" or any(message.role == "assistant" for message in row.messages)
    if not answered and not (prompts and last == "user"):
        return "$.messages", "no assistant message to learn from"
    if wrong := _tools_problem(row, "$.tools"):
        return wrong
    shows = found or bool(row.images or row.image_url)
    return LineStats(len(row.messages), texts, shows, prompt=last == "user", answered=answered)


def _messages_show_images(
    messages: Sequence[TrainingMessage], place: str, texts: list[str], *, start: int = 0
) -> bool | tuple[str, str]:
    """Whether any of these messages shows an image, or what is wrong with one. Their texts are added to `texts`.

    place, start: where in the line they stand, and the index of the first.
    """
    has_images = False
    for i, message in enumerate(messages, start=start):
        content = message.content
        if isinstance(content, str):
            texts.append(content)
        elif content is not None:
            found = _content(message.role, content, texts, f"{place}[{i}].content")
            if isinstance(found, tuple):
                return found
            has_images = has_images or found
        if message.tool_calls is not None:
            wrong = _calls(message, texts, f"{place}[{i}]")
            if wrong:
                return wrong
        if message.reasoning_text:
            texts.append(message.reasoning_text)
        if message.role == "assistant":
            if not content and not message.tool_calls and not message.reasoning_text:
                if not message.raw_content:
                    return f"{place}[{i}].content", "an assistant message with neither content nor tool_calls"
                texts.append(message.raw_content)
        elif message.weight is not None:
            return f"{place}[{i}].weight", f"a weight on a message of {message.role}; only assistants have one"
    return has_images


def _content(
    role: str, content: list[ContentPart | str] | dict[str, Any], texts: list[str], place: str
) -> bool | tuple[str, str]:
    """Whether an image is shown, or what is wrong."""
    if isinstance(content, dict):
        if content.get("type") not in PART_TYPES:
            texts.append(object_text(content))
            return False
        try:
            content = [msgspec.convert(content, ContentPart)]
        except msgspec.ValidationError as error:
            return place, str(error)
    has_images = False
    for j, part in enumerate(content):
        if isinstance(part, str):
            texts.append(part)
        elif part.type is None:
            if part.tool_name is None or role != "assistant":
                return f"{place}[{j}]", f"a part without a type; expected one of {', '.join(PART_TYPES)}"
            if wrong := _arguments_problem(part.arguments, f"{place}[{j}].arguments"):
                return wrong
            texts.append(part.tool_name + msgspec.json.encode(part.arguments).decode())
        elif part.type == "text":
            if part.text is None:
                return f"{place}[{j}]", "a text part without `text`"
            texts.append(part.text)
        elif part.type in IMAGE_TYPES:
            if not (part.image_url or part.image):
                return f"{place}[{j}]", "an image part without `image_url` or `image`"
            has_images = True
        else:
            return f"{place}[{j}].type", f"a part of type {part.type[:40]!r}; expected one of {', '.join(PART_TYPES)}"
    return has_images


def _calls(message: Message, texts: list[str], place: str) -> tuple[str, str] | None:
    if message.tool_calls and message.role != "assistant":
        return f"{place}.tool_calls", f"tool calls in a message of {message.role}; only assistants call tools"
    for j, call in enumerate(message.tool_calls or ()):
        function = call.called
        if not function.name:
            return f"{place}.tool_calls[{j}]", "a call without `function` or `name`"
        key = "arguments" if call.function is None else "function.arguments"
        if wrong := _arguments_problem(function.arguments, f"{place}.tool_calls[{j}].{key}"):
            return wrong
        arguments = function.arguments
        said = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments or {}).decode()
        texts.append(function.name + said)
    return None


def _arguments_problem(arguments: Any, place: str) -> tuple[str, str] | None:
    """What is wrong with a call's arguments, which a model would learn as they are."""
    try:
        tool_arguments(arguments)
    except BadJson as error:
        return place, f"{str(arguments)[:60]!r} is not the arguments of a call ({error}); expected a JSON object"
    return None


def _tools_problem(row: TrainingRow, place: str) -> tuple[str, str] | None:
    for i, tool in enumerate(row.tools or ()):
        wrong = _tool_problem(tool, f"{place}[{i}]")
        if wrong:
            return wrong
    return None


def _tool_problem(tool: dict[str, Any], place: str) -> tuple[str, str] | None:
    try:
        checked = msgspec.convert(tool, Tool)
    except msgspec.ValidationError as error:
        path, reason = _located(error)
        return place + path.removeprefix("$"), reason
    if checked.function is None and not checked.name:
        return place, "a tool without a name; expected {name, description?, parameters?}"
    return None


def line_problem(number: int, problem: tuple[str, str]) -> LineProblem:
    """A problem with its line, counted from 1."""
    path, reason = problem
    return LineProblem(line=number, path=path[:200], reason=reason[:300])
