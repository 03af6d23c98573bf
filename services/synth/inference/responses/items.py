"""From the input items of the Responses API to the messages of a chat.

One sampled reply comes back as several items: its reasoning, its message, its calls. Such a run of items is one message
of the assistant again. The text of reasoning is that of our own record wherever an item names it, because clients drop
or shorten it.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any

from synth.errors import Problem, UserError
from synth.inference.api.keys import UnreadKey
from synth.inference.api.requests import typed
from synth.inference.responses.fields import (
    ITEMS,
    NOT_KEPT,
    CallItem,
    CallOutputItem,
    InputPart,
    ItemReference,
    MessageItem,
    ReasoningItem,
)

_OURS = "synth1."
_NOT_READ = "the reasoning of this item cannot be read: the model is not shown it"


def seal_reasoning(text: str) -> str:
    """Return the `encrypted_content` of reasoning: its text, which `unseal_reasoning` reads; it is no secret."""
    return _OURS + base64.urlsafe_b64encode(text.encode()).decode()


def unseal_reasoning(sealed: str) -> str | None:
    """Return the text of an `encrypted_content` that this API wrote; None for any other."""
    if not sealed.startswith(_OURS):
        return None
    try:
        return base64.urlsafe_b64decode(sealed.removeprefix(_OURS)).decode()
    except ValueError:
        return None


class ItemReader:
    """Reads input items one by one into `messages`, each a JSON object of a chat.

    kept: the items that calls of this rollout returned, by id; None outside a rollout. origins: the place of each
    message in the request. parts: the objects that were read, with their structs. notes: what had no effect.
    """

    def __init__(self, kept: Mapping[str, dict[str, Any]] | None) -> None:
        self._kept = kept
        self._assistant: dict[str, Any] | None = None
        self.messages: list[dict[str, Any]] = []
        self.origins: list[str] = []
        self.parts: list[tuple[Any, Any, str]] = []
        self.notes: list[UnreadKey] = []

    def read(self, item: dict[str, Any], place: str) -> None:
        """Read the next item. Raises `UserError` for an item that no chat can hold."""
        kind = item.get("type") or "message"
        struct = ITEMS.get(kind) if isinstance(kind, str) else None
        if struct is None:
            raise UserError(
                Problem(
                    what=f"an item of type {str(kind)[:60]!r}",
                    expected=", ".join(ITEMS),
                    fix="leave it out, or give the model a function of your own",
                    where=f"{place}.type",
                )
            )
        read = typed(item, struct, place, api="Responses")
        self.parts.append((item, struct, place))
        match read:
            case MessageItem(role="assistant"):
                self._add_to_reply("content", _content(read.content, f"{place}.content"), place)
            case MessageItem():
                self._add({"role": read.role, "content": _content(read.content, f"{place}.content")}, place)
            case CallItem():
                function = {"name": read.name, "arguments": read.arguments}
                self._add_to_reply("tool_calls", [{"id": read.call_id, "function": function}], place)
            case CallOutputItem():
                output = _content(read.output, f"{place}.output")
                self._add({"role": "tool", "tool_call_id": read.call_id, "content": output}, place)
            case ReasoningItem():
                if (text := self._reasoning(read)) is None:
                    self.notes.append(UnreadKey(None, f"{place} has no effect: {_NOT_READ}"))
                elif text:
                    self._add_to_reply("reasoning_content", text, place)
            case ItemReference():
                self.read(self._referenced(read.id, f"{place}.id"), place)
            case _:
                raise AssertionError(read)

    def _reasoning(self, item: ReasoningItem) -> str | None:
        kept = (self._kept or {}).get(item.id or "", {})
        if kept.get("type") == "reasoning":
            return "".join(part["text"] for part in kept["content"])
        written = "".join(part.text for part in item.content or item.summary or ())
        sealed = None if item.encrypted_content is None else unseal_reasoning(item.encrypted_content)
        return sealed or written or None

    def _referenced(self, id: str, place: str) -> dict[str, Any]:
        if self._kept is not None and id in self._kept:
            return self._kept[id]
        if self._kept is None:
            fix = "send the item itself; most clients do with `store: false`"
            raise UserError(Problem(what=NOT_KEPT, expected="items, no references to them", fix=fix, where=place))
        raise UserError(
            Problem(what=f"no item {id[:80]!r} in this rollout", expected="the id of an item of its calls", where=place)
        )

    def _add(self, message: dict[str, Any], place: str) -> None:
        self._assistant = None
        self.messages.append(message)
        self.origins.append(place)

    def _add_to_reply(self, field: str, value: Any, place: str) -> None:
        """Add to the reply that the items before this one began, or begin the next one."""
        reply = self._assistant
        follows = {"reasoning_content": (), "content": ("reasoning_content",)}.get(field)
        if reply is None or (follows is not None and reply.keys() - {"role", *follows}):
            self._add({"role": "assistant"}, place)
            reply = self._assistant = self.messages[-1]
        if field == "tool_calls":
            reply.setdefault(field, []).extend(value)
        else:
            reply[field] = value


def _content(content: str | list[dict[str, Any]], place: str) -> str | list[dict[str, Any]]:
    """Return a content as a chat has it: one text, or texts and images."""
    if isinstance(content, str):
        return content
    parts = list(_chat_parts(content, place))
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _chat_parts(parts: list[dict[str, Any]], place: str) -> Iterator[dict[str, Any]]:
    for i, given in enumerate(parts):
        where = f"{place}[{i}]"
        part = typed(given, InputPart, where, api="Responses")
        if part.type in ("input_text", "output_text", "text") and part.text is not None:
            yield {"type": "text", "text": part.text}
        elif part.type == "input_image" and part.image_url is not None:
            yield {"type": "image_url", "image_url": {"url": part.image_url}}
        elif part.type == "input_image":
            fix = "send the image as a data URI or an address"
            raise UserError(Problem(what="an image without `image_url`", expected="one", fix=fix, where=where))
        else:
            raise UserError(
                Problem(
                    what=f"a content part of type {part.type[:60]!r}",
                    expected="input_text, input_image or output_text, with its text or image_url",
                    fix="models here read text and images",
                    where=f"{where}.type",
                )
            )
