"""A row in any shape as the row that is trained on: `label`, `system`, tools, images and weights, once for all shapes.

The row that is trained on is `{"messages", "tools"?, "images"?}`, or a pair with `chosen` and `rejected` beside them:
`synth.chat.messages.TrainingRow` and `PreferenceRow`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from synth.chat.json_text import MAX_VALUE_NESTING, is_too_deep, repeated_key
from synth.chat.messages import IMAGE_TYPES, SHOWING_ROLES, Tool
from synth.datasets.columns import MEDIA, REFUSED, Columns
from synth.datasets.pairs import check_pair, is_conversation, split_pair
from synth.datasets.shapes import MESSAGES, SHAPE_KEYS, Draft, read_shape
from synth.datasets.turns import (
    BadRow,
    Turn,
    check_address,
    check_turn,
    expect,
    is_empty,
    located,
    meant,
    nested_values,
)

#: Whether a reply is a good one, in the datasets of KTO (arXiv 2402.01306).
_VERDICTS = ("label", "kto_tag")
#: The keys that have one rule in every shape.
_RULED = frozenset((*_VERDICTS, "system", "system_prompt", "tools", "functions", "images", "image", "image_url"))
_KNOWN = SHAPE_KEYS | _RULED
_IMAGES = ("images", "image", "image_url")
#: Stands for an image of the row, in a text.
_MARK = re.compile("(<image>)")
_NAMES_KEPT = 60


def why_unread(name: str) -> str:
    """Return a column's name and, if it is known, why it is not read."""
    reason = REFUSED.get(name)
    return f"`{name[:40]}`" + (f" ({reason})" if reason else meant(name, _KNOWN))


class Unread(BadRow):
    """A row with keys that are not read. names: all of them."""

    def __init__(self, names: list[str]) -> None:
        listed = ", ".join(why_unread(name) for name in names[:_NAMES_KEPT])
        super().__init__("$", f"columns that are not read: {listed}")
        self.names = names


@dataclass(frozen=True)
class Row:
    """A row in the form that is trained on. shape: the one that it came in, "" if it is the same.

    data: as JSON. texts: of its messages, tool calls and reasoning. messages: how many. columns: the names of its
    annotations, and of a prompt's further fields. has_images: whether it shows any. pair: whether it is a preference
    pair. prompt: whether its last message is the user's. answered: whether any is of an assistant.
    """

    shape: str
    data: dict[str, Any]
    texts: list[str]
    messages: int
    columns: list[str]
    has_images: bool
    pair: bool
    prompt: bool
    answered: bool


def read_row(line: bytes, data: dict[str, Any]) -> Row:
    """Return the row of a line. data: the line, decoded. Raises `BadRow`."""
    if (name := repeated_key(line, data)) is not None:
        raise BadRow("$", f"the key {name[:40]!r} is given twice in one object; keep one of them")
    columns = Columns(data)
    draft = read_shape(columns)
    pair = draft.chosen is not None
    _add_system(columns, draft)
    prompt = not pair and bool(draft.messages) and draft.messages[-1].role == "user" and draft.shape == MESSAGES
    answered = pair or any(turn.role == "assistant" for turn in draft.messages)
    tools = _tools(columns, draft)
    images = _images(columns)
    texts = list[str]()
    turns = [*draft.messages, *(draft.chosen or ()), *(draft.rejected or ())]
    _check_depth(turns, tools)
    shows = [check_turn(turn, texts, marks=bool(images)) for turn in turns]
    _check_tool_settings(columns, draft, turns, tools)
    if pair:
        split_pair(draft)
    _check_length(draft, answered=answered, prompt=prompt)
    _weigh(draft)
    marked = bool(images) and _show_images(draft, images)
    if pair:
        check_pair(draft)
    if answered:
        _refuse_verdict(columns)
    noted, unread = columns.rest()
    fields = [name for name in unread if _is_field(name)] if prompt else []
    if others := [name for name in unread if name not in fields]:
        raise Unread(others)
    row = _canonical(draft, tools, columns, images if not marked else [])
    shape = "" if _is_canonical(row, data) else draft.shape
    if prompt:
        row = row | {name: data[name] for name in data if name in fields or name in noted}
    return Row(shape, row, texts, len(turns), [*noted, *fields], any(shows) or bool(images), pair, prompt, answered)


def _add_system(columns: Columns, draft: Draft) -> None:
    """Put the row's system text in front of its conversation."""
    name = columns.first("system", "system_prompt")
    if name is None or is_empty(value := columns.take(name)):
        return
    text: str = expect(value, str, f"$.{name}")
    turn = Turn({"role": "system", "content": text}, f"$.{name}", {"content": "", "role": ""})
    # Whole conversations begin with their prompt.
    whole = [side for side in (draft.chosen, draft.rejected) if side is not None and is_conversation(side)]
    for section in (draft.messages, *whole):
        first = section[0] if section else turn
        if first.role not in ("system", "developer"):
            section.insert(0, turn)
        elif first.message.get("content") != text:
            raise BadRow(f"$.{name}", "a second system text: the conversation begins with another; keep one of them")


def _tools(columns: Columns, draft: Draft) -> list[dict[str, Any]] | None:
    """Return the tools of a row: a list, or its JSON text; `functions` are the same by their older name."""
    named = [(f"$.{name}", columns.take(name)) for name in ("tools", "functions")] + [("$.input.tools", draft.tools)]
    lists = [(place, _listed(value, place)) for place, value in named if not is_empty(value)]
    lists = [(place, tools) for place, tools in lists if tools]
    if not lists:
        return None
    place, tools = lists[0]
    for other, repeated in lists[1:]:
        if [tool.get("function", tool) for tool in repeated] != [tool.get("function", tool) for tool in tools]:
            raise BadRow(other, f"differs from {place}; keep one of them")
    for i, tool in enumerate(tools):
        _check_tool(tool, f"{place}[{i}]")
    return tools


def _listed(value: Any, place: str) -> list[dict[str, Any]]:
    if isinstance(value, str):
        value = _decoded(value, place) if value.strip() else []
    tools: list[Any] = expect(value, list, place)
    if any(isinstance(tool, str) for tool in tools):
        tools = [_decoded(tool, f"{place}[{i}]") if isinstance(tool, str) else tool for i, tool in enumerate(tools)]
    for i, tool in enumerate(tools):
        expect(tool, dict, f"{place}[{i}]")
    return tools


def _decoded(text: str, place: str) -> Any:
    try:
        value: Any = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRow(place, "a text that is not a JSON list of tools") from error
    if (name := repeated_key(text, value)) is not None:
        raise BadRow(place, f"the key {name[:40]!r} is given twice in one object")
    return value


def _check_tool(tool: dict[str, Any], place: str) -> None:
    try:
        checked = msgspec.convert(tool, Tool)
    except msgspec.ValidationError as error:
        path, reason = located(error)
        raise BadRow(place + path.removeprefix("$"), reason) from error
    if checked.function is None and not checked.name:
        raise BadRow(place, "a tool without a name; expected {name, description?, parameters?}")


def _check_tool_settings(columns: Columns, draft: Draft, turns: list[Turn], tools: list[Any] | None) -> None:
    """Refuse a request's settings for tools if the replies contradict them; no template shows them otherwise."""
    if columns.data.get("parallel_tool_calls") is False or draft.parallel is False:
        for turn in turns:
            if len(turn.message.get("tool_calls") or ()) > 1:
                raise BadRow(turn.at("$.tool_calls"), "several calls, and `parallel_tool_calls` is false")
    if columns.data.get("tool_choice") == "none" and tools:
        raise BadRow("$.tool_choice", "'none' beside tools: a model is not shown them then; remove the tools")


def _images(columns: Columns) -> list[tuple[str, Any]]:
    """Return the images beside a row's conversation, with their places."""
    images = list[tuple[str, Any]]()
    for name in _IMAGES:
        value, place = columns.take(name), f"$.{name}"
        if is_empty(value):
            continue
        if images:
            raise BadRow(place, f"images beside {images[0][0].split('[')[0]}; keep them in one list")
        listed = cast(list[Any], value) if isinstance(value, list) else [value]
        images = [(f"{place}[{k}]" if isinstance(value, list) else place, image) for k, image in enumerate(listed)]
    for place, image in images:
        address = cast(dict[str, Any], image).get("url") if isinstance(image, dict) else image
        check_address(image, place)
        expect(address, str, place)
    return images


def _show_images(draft: Draft, images: list[tuple[str, Any]]) -> bool:
    """Put the images at the row's marks, else before the first user's message. Return whether it has marks.

    A mark is `<image>` in a text, or an image part without an address.
    """
    turns = [*draft.messages, *(draft.chosen or ()), *(draft.rejected or ())]
    split = [(turn, parts) for turn in turns if (parts := _split_at_marks(turn.message.get("content"))) is not None]
    if not split:
        if all(turn.role != "user" for turn in draft.messages):
            raise BadRow(images[0][0].split("[")[0], "there is no user message to show them in")
        return False
    shown = {id(turn) for turn in draft.messages if turn.role in SHOWING_ROLES}
    marks = sum(part is None for _, parts in split for part in parts)
    for turn, _ in split:
        if id(turn) not in shown:
            raise BadRow(turn.at("$.content"), "a mark of an image; expected marks in messages of user or tool")
    if marks != len(images):
        raise BadRow(
            images[0][0].split("[")[0], f"{len(images)} images, and {marks} marks of them; expected as many of both"
        )
    addresses = iter(images)
    for turn, parts in split:
        content = [{"type": "image", "image": _address(next(addresses)[1])} if p is None else p for p in parts]
        turn.message = turn.message | {"content": content}
    return True


def _address(image: Any) -> Any:
    return cast(dict[str, Any], image)["url"] if isinstance(image, dict) else image


def _split_at_marks(content: Any) -> list[Any] | None:
    """Return a content as parts, None for each mark of an image; None if it has no marks."""
    parts = list[Any]()
    for part in cast(list[Any], content) if isinstance(content, list) else [content]:
        item = cast(dict[str, Any], part) if isinstance(part, dict) else {"type": "text", "text": part}
        if item.get("type") in IMAGE_TYPES and all(is_empty(item.get(name)) for name in ("image_url", "image")):
            parts.append(None)
        elif item.get("type") == "text" and "<image>" in (item["text"] or ""):
            pieces = [piece for piece in _MARK.split(item["text"]) if piece]
            parts += [None if piece == "<image>" else {"type": "text", "text": piece} for piece in pieces]
        else:
            parts.append(item)
    return parts if None in parts and content is not None else None


def _check_length(draft: Draft, *, answered: bool, prompt: bool) -> None:
    if draft.chosen is not None:
        return
    if draft.shape == MESSAGES:
        if len(draft.messages) < 2 and not prompt:
            raise BadRow("$.messages", "Expected `array` of length >= 2, or one message of the user")
    elif len(draft.messages) < 2:
        raise BadRow(draft.place, "fewer than two messages; expected a question and an answer")
    if not answered and not prompt:
        raise BadRow(draft.place, "no assistant message to learn from")


def _weigh(draft: Draft) -> None:
    """Refuse weights in a prompt, which is not learnt."""
    prompt = draft.messages if draft.chosen is not None else draft.messages[: draft.context]
    for turn in prompt:
        if turn.message.get("weight"):
            raise BadRow(turn.at("$.weight"), "a weight in a prompt, of which nothing is learnt; remove it")
    if draft.chosen is None:
        for turn in prompt:
            if turn.role == "assistant":
                turn.message = turn.message | {"weight": 0}


def _check_depth(turns: list[Turn], tools: list[dict[str, Any]] | None) -> None:
    nested = [
        turn for turn in turns if not isinstance(turn.message.get("content"), str) or "tool_calls" in turn.message
    ]
    values = [tools, *(value for turn in nested for value in nested_values(turn))]
    if any(is_too_deep(value, MAX_VALUE_NESTING) for value in values):
        raise BadRow("$", f"nested too deeply; expected at most {MAX_VALUE_NESTING} levels")


def _is_field(name: str) -> bool:
    """Return whether a grader may refer to a key of a prompt: it is not a known key in another case, and no media."""
    return name not in MEDIA and (name in _KNOWN or name.lower() not in _KNOWN)


def _refuse_verdict(columns: Columns) -> None:
    for name in _VERDICTS:
        if columns.holds(name):
            raise BadRow(
                f"$.{name}",
                "an unpaired preference, which no method trains on; expected good replies alone, or pairs of `chosen` "
                f"and `rejected`; if it is no verdict: synthctl files upload FILE --drop {name}",
            )


def _canonical(draft: Draft, tools: Any, columns: Columns, images: list[tuple[str, Any]]) -> dict[str, Any]:
    row: dict[str, Any] = {"messages": [turn.message for turn in draft.messages]}
    for name, side in (("chosen", draft.chosen), ("rejected", draft.rejected)):
        if side is not None:
            row[name] = [turn.message for turn in side]
    if tools:
        row["tools"] = tools
    if images:
        address = columns.data.get("image_url")
        row |= {"image_url": address} if not is_empty(address) else {"images": [image for _, image in images]}
    return row


def _is_canonical(row: dict[str, Any], data: dict[str, Any]) -> bool:
    """Return whether a row came in the form that is trained on."""
    return all(name in data and data[name] == value for name, value in row.items())
