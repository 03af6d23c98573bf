"""Reads the input items of the Responses API as the messages of a chat.

One sampled reply comes back as several items: its reasoning, its message, its calls. Such a run of items is one message
of the assistant again. If an item names reasoning by its id, the text comes from our own record, because clients drop
or shorten it.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

from synth.errors import UserError
from synth.inference.api.keys import UnreadKey
from synth.inference.api.requests import typed
from synth.inference.api.responses.fields import (
    ITEMS,
    NOT_KEPT,
    CallItem,
    CallOutputItem,
    InputPart,
    ItemReference,
    MessageItem,
    ReasoningItem,
)
from synth.inference.recording.response_log import ResponseLog

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

    kept: the results of this rollout's calls; None outside a rollout. origins: for each message, the place in the
    request of each of its fields, and of the message as "". parts: the objects that were read, with their structs.
    notes: what had no effect.
    """

    def __init__(self, kept: ResponseLog | None) -> None:
        self._kept = kept
        self._reply: int | None = None
        self._caller: tuple[str, int] | None = None
        self.messages: list[dict[str, Any]] = []
        self.origins: list[dict[str, str]] = []
        self.parts: list[tuple[Any, Any, str]] = []
        self.notes: list[UnreadKey] = []

    def read(self, item: dict[str, Any], place: str) -> None:
        """Read the next item. Raises `UserError` for an item that no chat can hold."""
        kind = item.get("type") or "message"
        struct = ITEMS.get(kind) if isinstance(kind, str) else None
        if struct is None:
            raise UserError(
                f"an item of type {str(kind)[:60]!r}",
                expected=", ".join(ITEMS),
                fix="leave it out, or give the model a function of your own",
                where=f"{place}.type",
            )
        read = typed(item, struct, place, api="Responses")
        self.parts.append((item, struct, place))
        match read:
            case MessageItem(role="assistant"):
                content = _content(read.content, f"{place}.content")
                self._add_to_reply("content", content, place, f"{place}.content")
            case MessageItem():
                content = _content(read.content, f"{place}.content")
                self._add({"role": read.role, "content": content}, place, content=f"{place}.content")
            case CallItem():
                self._add_call(read, place)
            case CallOutputItem():
                output = _content(read.output, f"{place}.output")
                message = {"role": "tool", "tool_call_id": read.call_id, "content": output}
                self._add(message, place, content=f"{place}.output")
            case ReasoningItem():
                if (text := self._reasoning(read)) is None:
                    self.notes.append(UnreadKey(None, f"{place} has no effect: {_NOT_READ}"))
                elif text:
                    self._add_to_reply("reasoning_content", text, place, place)
            case ItemReference():
                self.read(self._referenced(read.id, f"{place}.id"), place)
            case _:
                raise AssertionError(read)

    def _reasoning(self, item: ReasoningItem) -> str | None:
        kept = {} if self._kept is None else self._kept.items.get(item.id or "", {})
        if kept.get("type") == "reasoning":
            return "".join(part["text"] for part in kept["content"])
        written = "".join(part.text for part in item.content or item.summary or ())
        sealed = None if item.encrypted_content is None else unseal_reasoning(item.encrypted_content)
        return sealed or written or None

    def _referenced(self, id: str, place: str) -> dict[str, Any]:
        if self._kept is not None and id in self._kept.items:
            return self._kept.items[id]
        if self._kept is None:
            fix = "send the item itself; most clients do with `store: false`"
            raise UserError(NOT_KEPT, expected="items, no references to them", fix=fix, where=place)
        raise UserError(f"no item {id[:80]!r} in this rollout", expected="the id of an item of its calls", where=place)

    def _add(self, message: dict[str, Any], place: str, **origins: str) -> None:
        self._reply = None
        self.messages.append(message)
        self.origins.append({"": place, **origins})

    def _add_to_reply(self, field: str, value: Any, place: str, origin: str) -> None:
        """Add to the reply that the items before this one began, or begin the next one."""
        before = {"role"} if field == "reasoning_content" else {"role", "reasoning_content"}
        if self._reply is None or self.messages[self._reply].keys() - before:
            self._begin_reply(place)
        at = len(self.messages) - 1
        self.messages[at][field] = value
        self.origins[at][field] = origin

    def _add_call(self, call: CallItem, place: str) -> None:
        """Add a call to its reply, also if an output of that reply's calls stands between."""
        owner = None if self._kept is None else self._kept.owners.get(call.call_id)
        if self._reply is not None:
            at = self._reply
        elif owner is not None and self._caller is not None and self._caller[0] == owner:
            at = self._caller[1]
        else:
            at = self._begin_reply(place)
        calls = self.messages[at].setdefault("tool_calls", [])
        self.origins[at][f"tool_calls[{len(calls)}]"] = place
        calls.append({"id": call.call_id, "function": {"name": call.name, "arguments": call.arguments}})
        if owner is not None:
            self._caller = owner, at

    def _begin_reply(self, place: str) -> int:
        self._add({"role": "assistant"}, place)
        self._reply = len(self.messages) - 1
        return self._reply


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
            raise UserError("an image without `image_url`", expected="one", fix=fix, where=where)
        else:
            raise UserError(
                f"a content part of type {part.type[:60]!r}",
                expected="input_text, input_image or output_text, with its text or image_url",
                fix="models here read text and images",
                where=f"{where}.type",
            )
