"""One turn of a conversation, in any spelling, as the message that is trained on.

Every shape of a row gives its turns to `read_turn`, so that a key of a turn has one meaning in all of them. A key is
used, or the row is refused with the place of the key: a turn has no keys that are left out. A null, an empty text, an
empty list and an empty object hold nothing.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from synth.chat.families import THINK_END
from synth.chat.json_text import BadJson, repeated_key, tool_arguments
from synth.chat.messages import (
    IMAGE_TYPES,
    PART_TYPES,
    ROLES,
    SHOWING_ROLES,
    ContentPart,
    TrainingMessage,
    object_text,
)

#: The role of a message, by the names that are in use for it.
_ROLES = {
    **{role: role for role in ROLES},
    **dict.fromkeys(("human",), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "bing", "model", "function_call", "tool_call"), "assistant"),
    **dict.fromkeys(("observation", "function_response", "tool_response", "function"), "tool"),
}
#: Roles whose content is the JSON of the assistant's calls.
_CALLING = ("function_call", "tool_call")
_FIELDS = frozenset(
    ("role", "content", "tool_calls", "tool_call_id", "name", "reasoning_content", "reasoning", "raw_content", "weight")
)
_TEXT_TURN = frozenset(("role", "content"))
#: The content that `synth-ai filter` 0.2.16 writes for a reply of tool calls alone, as some task apps store it.
_LOST = "[no response recorded]"
_REREAD = (
    f"{_LOST!r} stands for a reply that synth-ai's filter did not read; expected the reply; `synthctl filter` reads it "
    "from the same database, with its tool calls"
)
#: Other names of the fields. loss, train: whether an assistant's turn is learnt from.
_SPELLINGS = {
    "from": "role",
    "value": "content",
    "thinking": "reasoning_content",
    "loss": "weight",
    "train": "weight",
    "function_call": "tool_calls",
}
_CALL_FIELDS = frozenset(("id", "type", "index", "function", "name", "arguments"))
_FUNCTION_FIELDS = frozenset(("name", "arguments"))
_ACTION_FIELDS = frozenset(("tool_name", "arguments"))
_PART_FIELDS = {
    "text": frozenset(("type", "text")),
    "image": frozenset(("type", "image", "image_url", "url")),
    "image_url": frozenset(("type", "image_url", "image")),
}
_PATH = re.compile(r"\$\.?(\w*)(.*)", re.DOTALL)
_AT = re.compile(r" - at `(\$[^`]*)`$")
_KINDS = {"dict": "object", "list": "array", "NoneType": "null"}


class BadRow(Exception):
    """A row that cannot be trained on. path: the place in the row as it came, as `$.messages[0].role`."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason


@dataclass(slots=True)
class Turn:
    """A message and its place in the row. names: the row's own names of the message's fields, if they are others.

    calls: whether the turn is the assistant's calls alone, spelled in a role of their own.
    """

    message: dict[str, Any]
    place: str
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    calls: bool = False

    @property
    def role(self) -> str:
        return self.message["role"]

    def at(self, path: str) -> str:
        """Return the place in the row of a path in the message, such as `$.content[0].text`."""
        match = _PATH.fullmatch(path)
        name, rest = (match[1], match[2]) if match else ("", "")
        name = self.names.get(name, name)
        return f"{self.place}.{name}{rest}" if name else self.place + rest


def is_empty(value: Any) -> bool:
    """Return whether a value holds nothing."""
    return value is None or (isinstance(value, str | list | dict) and not value)


def expect(value: Any, kind: type, place: str) -> Any:
    """Return a value of this kind. Raises `BadRow` for one of another."""
    if not isinstance(value, kind):
        expected, actual = (_KINDS.get(name, name) for name in (kind.__name__, type(value).__name__))
        raise BadRow(place, f"Expected `{expected}`, got `{actual}`")
    return value


def only(value: Mapping[str, Any], known: Collection[str], place: str, owner: str) -> None:
    """Raise `BadRow` if an object has unread keys, and name all of them. owner: the kind of object, for the text."""
    unread = [name for name in value if name not in known and not is_empty(value[name])]
    if unread:
        names = ", ".join(f"`{name[:40]}`" for name in unread[:8])
        raise BadRow(
            f"{place}.{unread[0]}", f"{owner} has keys that are not read: {names}{meant(unread[0], known)}; remove them"
        )


def read_turn(value: Any, place: str) -> Turn:
    """Return the turn that a value spells. Raises `BadRow`."""
    table: dict[str, Any] = expect(value, dict, place)
    if isinstance(table.get("content"), list) and any(isinstance(p, dict) and "url" in p for p in table["content"]):
        table = table | {"content": [_respelled(part) for part in table["content"]]}
    if table.keys() <= _FIELDS and table.get("role") in ROLES:
        return Turn(table, place)
    only(table, (*_FIELDS, *_SPELLINGS), place, "a message")
    message, names = dict[str, Any](), dict[str, str]()
    for key, entry in table.items():
        name = _SPELLINGS.get(key, key)
        if entry is None or name not in _FIELDS:
            continue
        if key in ("loss", "train") and isinstance(entry, bool):
            entry = float(entry)
        elif key == "function_call":
            if is_empty(entry):
                continue
            entry = [expect(entry, dict, f"{place}.{key}")]
        if name in message and message[name] != entry:
            raise BadRow(f"{place}.{key}", f"differs from `{names[name]}`, which is the same field; keep one of them")
        message[name], names[name] = entry, key
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        if "role" not in message:
            raise BadRow(place, f"a message without `role`; expected one of {', '.join(ROLES)}")
        near = difflib.get_close_matches(str(role).lower()[:40], _ROLES, n=1)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        raise BadRow(
            f"{place}.{names['role']}", f"{str(role)[:40]!r} is no role; expected one of {', '.join(_ROLES)}{meant}"
        )
    message["role"] = _ROLES[role]
    turn = Turn(message, place, names, calls=role in _CALLING)
    if turn.calls:
        if "tool_calls" in message:
            raise BadRow(turn.at("$.tool_calls"), f"calls beside a {role}'s; keep one of them")
        message["tool_calls"] = _calls_in(message.pop("content", None), role, turn.at("$.content"))
        turn.names = names | {"tool_calls": names.get("content", "content")}
    return turn


def merge_calls(turns: list[Turn]) -> list[Turn]:
    """Return the turns with the assistant's calls that follow each other as one message."""
    merged: list[Turn] = []
    for turn in turns:
        last = merged[-1] if merged else None
        if last is None or not (turn.calls and last.calls):
            merged.append(turn)
            continue
        first, second = ({k: v for k, v in t.message.items() if k != "tool_calls"} for t in (last, turn))
        if first != second:
            raise BadRow(turn.place, "calls that follow each other are one message, and these two differ otherwise")
        calls = [*last.message["tool_calls"], *turn.message["tool_calls"]]
        merged[-1] = Turn(last.message | {"tool_calls": calls}, last.place, last.names, calls=True)
    return merged


def check_turn(turn: Turn, texts: list[str], *, marks: bool) -> bool:
    """Return whether a turn shows an image; its texts are added to `texts`. Raises `BadRow`.

    marks: whether an image part without an address stands for one of the row's images.
    """
    text = turn.message.get("content")
    if text == _LOST and turn.role == "assistant":
        raise BadRow(turn.at("$.content"), _REREAD)
    if isinstance(text, str) and text and turn.message.keys() == _TEXT_TURN:
        # Most turns are a role and a text, and nothing of them is left to check.
        texts.append(text)
        return False
    message = _typed(turn)
    role, content = message.role, message.content
    shows = False
    if isinstance(content, str):
        texts.append(content)
    elif content is not None:
        shows = _check_content(turn, content, texts, marks=marks)
    if message.tool_calls:
        _check_calls(turn, message, texts)
    if role != "assistant":
        for name in ("reasoning_content", "reasoning", "raw_content", "weight"):
            if not is_empty(turn.message.get(name)):
                raise BadRow(turn.at(f"$.{name}"), f"`{name}` of a message of {role}; only assistants have it")
        return shows
    _check_reasoning(turn, message)
    if message.reasoning_text:
        texts.append(message.reasoning_text)
    if not (content or message.tool_calls or message.reasoning_text):
        if not message.raw_content:
            raise BadRow(turn.at("$.content"), "an assistant message with neither content nor tool_calls")
        texts.append(message.raw_content)
    elif message.raw_content and not (isinstance(content, str) and content in message.raw_content):
        raise BadRow(turn.at("$.raw_content"), "differs from the content, which is trained on; keep one of them")
    return shows


def nested_values(turn: Turn) -> Iterator[Any]:
    """Yield the values of a message that are rendered and may be nested at will."""
    content: Any = turn.message.get("content")
    calls: Any = turn.message.get("tool_calls")
    if isinstance(content, dict):
        yield content
    parts = cast(list[Any], content) if isinstance(content, list) else []
    for entry in itertools.chain(parts, cast(list[Any], calls) if isinstance(calls, list) else []):
        for value in cast(dict[str, Any], entry).values() if isinstance(entry, dict) else ():
            yield cast(dict[str, Any], value).get("arguments", value) if isinstance(value, dict) else value


def located(error: msgspec.ValidationError) -> tuple[str, str]:
    """Return the path at which a value has the wrong type, and the reason."""
    reason = str(error)
    at = _AT.search(reason)
    return (at[1], reason[: at.start()]) if at else ("$", reason)


def check_address(address: Any, place: str) -> None:
    """Raise `BadRow` for an image's address with keys that are not read."""
    if isinstance(address, dict):
        table = cast(dict[str, Any], address)
        only(table, ("url", "detail"), place, "an image")
        if table.get("detail") not in (None, "", "auto"):
            raise BadRow(f"{place}.detail", "another size than auto; the model's image processor chooses the size")


def _respelled(part: Any) -> Any:
    """Return an image part in the form that is trained on, from one with its address in `url`, as in transformers."""
    image = cast(dict[str, Any], part) if isinstance(part, dict) else {}
    if image.get("type") not in IMAGE_TYPES or is_empty(image.get("url")):
        return cast(Any, part)
    rest = {name: value for name, value in image.items() if name != "url"}
    return rest | {"image": image["url"]} if is_empty(image.get("image")) else image


def _typed(turn: Turn) -> TrainingMessage:
    try:
        return msgspec.convert(turn.message, TrainingMessage)
    except msgspec.ValidationError as error:
        path, reason = located(error)
        raise BadRow(turn.at(path), reason) from error


def _check_content(
    turn: Turn, content: list[ContentPart | str] | dict[str, Any], texts: list[str], *, marks: bool
) -> bool:
    raw: list[Any] = turn.message["content"] if isinstance(content, list) else [content]
    if isinstance(content, dict):
        if content.get("type") not in PART_TYPES:
            texts.append(object_text(content))
            return False
        try:
            content = [msgspec.convert(content, ContentPart)]
        except msgspec.ValidationError as error:
            raise BadRow(turn.at("$.content"), str(error)) from error
    shows = False
    listed = isinstance(turn.message["content"], list)
    for j, (part, given) in enumerate(zip(content, raw, strict=True)):
        place = turn.at(f"$.content[{j}]" if listed else "$.content")
        if isinstance(part, str):
            texts.append(part)
            continue
        if part.type is None:
            if part.tool_name is None or turn.role != "assistant":
                raise BadRow(place, f"a part without a type; expected one of {', '.join(PART_TYPES)}")
            only(given, _ACTION_FIELDS, place, "a call")
            _check_arguments(part.arguments, f"{place}.arguments")
            texts.append(part.tool_name + msgspec.json.encode(part.arguments).decode())
        elif part.type not in PART_TYPES:
            raise BadRow(f"{place}.type", f"a part of type {part.type[:40]!r}; expected one of {', '.join(PART_TYPES)}")
        else:
            only(given, _PART_FIELDS[part.type], place, f"a part of type {part.type}")
            if part.type == "text":
                if part.text is None:
                    raise BadRow(place, "a text part without `text`")
                texts.append(part.text)
            else:
                _check_image(turn, given, place, marks=marks)
                shows = True
    return shows


def _check_image(turn: Turn, part: dict[str, Any], place: str, *, marks: bool) -> None:
    if turn.role not in SHOWING_ROLES:
        raise BadRow(place, f"an image in a message of {turn.role}; expected images in messages of user or tool")
    addresses = [(name, part[name]) for name in ("image_url", "image", "url") if not is_empty(part.get(name))]
    if not addresses and not marks:
        raise BadRow(place, "an image part without `image_url` or `image`")
    if len(addresses) > 1:
        raise BadRow(f"{place}.{addresses[1][0]}", "a second address of one image; keep one of them")
    for name, address in addresses:
        check_address(address, f"{place}.{name}")


def _check_calls(turn: Turn, message: TrainingMessage, texts: list[str]) -> None:
    if message.role != "assistant":
        raise BadRow(turn.at("$.tool_calls"), f"tool calls in a message of {message.role}; only assistants call tools")
    for j, (call, written) in enumerate(zip(message.tool_calls or (), turn.message["tool_calls"], strict=True)):
        place = turn.at(f"$.tool_calls[{j}]")
        only(written, _CALL_FIELDS, place, "a call")
        if written.get("type") not in (None, "function"):
            raise BadRow(f"{place}.type", f"{str(written['type'])[:40]!r}; expected function")
        if written.get("index") is not None and (type(written["index"]) is not int or written["index"] != j):
            raise BadRow(f"{place}.index", f"{str(written['index'])[:40]}; expected {j}, the position of the call")
        if call.function is not None:
            only(written["function"], _FUNCTION_FIELDS, f"{place}.function", "a call")
            for name in _FUNCTION_FIELDS:
                if not is_empty(written.get(name)):
                    raise BadRow(f"{place}.{name}", f"`{name}` beside `function`, which has it; remove it")
        if not call.called.name:
            raise BadRow(place, "a call without `function` or `name`")
        arguments = call.called.arguments
        _check_arguments(arguments, f"{place}.arguments" if call.function is None else f"{place}.function.arguments")
        spelled = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments or {}).decode()
        texts.append(call.called.name + spelled)


def _check_arguments(arguments: Any, place: str) -> None:
    """Raise `BadRow` for arguments that are no object: a model would learn to write them."""
    try:
        value = tool_arguments(arguments)
    except BadJson as error:
        reason = f"{str(arguments)[:60]!r} is not the arguments of a call ({error}); expected a JSON object"
        raise BadRow(place, reason) from error
    if isinstance(arguments, str) and (name := repeated_key(arguments, value)) is not None:
        raise BadRow(place, f"the key {name[:40]!r} is given twice in one object")


def _check_reasoning(turn: Turn, message: TrainingMessage) -> None:
    first, second = message.reasoning_content, message.reasoning
    if first and second and first != second:
        raise BadRow(turn.at("$.reasoning"), "differs from `reasoning_content`, which is trained on; keep one of them")
    content = message.content
    reasons = content if isinstance(content, str) and THINK_END in content else message.reasoning_text
    if message.reasoning_text.strip() not in reasons:
        raise BadRow(
            turn.at("$.reasoning_content" if first else "$.reasoning"),
            f"the content has reasoning of its own, up to {THINK_END}; keep one of them",
        )


def _calls_in(text: Any, role: str, place: str) -> list[dict[str, Any]]:
    """Return the calls that the content of a calling role spells."""
    expected = f'a {role} that is not JSON of {{"name", "arguments"}}, or a list of such'
    if isinstance(text, str):
        try:
            value: Any = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadRow(place, expected) from error
        if (name := repeated_key(text, value)) is not None:
            raise BadRow(place, f"the key {name[:40]!r} is given twice in one object")
    else:
        value = text
    calls = cast(list[Any], value if isinstance(value, list) else [value])
    if not calls or not all(isinstance(call, dict) for call in calls):
        raise BadRow(place, expected)
    if not all("function" in call or isinstance(call.get("name"), str) for call in calls):
        raise BadRow(place, expected)
    return calls


def meant(name: str, known: Collection[str]) -> str:
    """Return a hint at the key that a name may be meant as."""
    lower = {k.lower(): k for k in known}
    close = difflib.get_close_matches(name[:40].lower(), lower, n=1, cutoff=0.8)
    return f" (did you mean `{lower[close[0]]}`?)" if close else ""
