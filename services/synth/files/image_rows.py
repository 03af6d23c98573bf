"""Rows with images, as they are trained on: each image a part of its message that names its blob.

`{"type": "image", "image": "blob://orgs/<org>/images/<sha256>"}`, whether it came as a part of either kind or in the
row's older `images` or `image_url`, which go in front of the first user message's text. All of them are kept: how many
of a message are trained is for the job to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from synth.chat.messages import IMAGE_TYPES, PART_TYPES, object_text

_OLDER = ("images", "image_url")


@dataclass(frozen=True)
class ImageSlot:
    """An image of a row. part: the content part that gets its blob's URI; path: its place in the row as it came."""

    part: dict[str, Any]
    address: str
    path: str


@dataclass(frozen=True)
class DraftRow:
    """A row whose images are not stored yet."""

    row: dict[str, Any]
    slots: list[ImageSlot]

    def line(self) -> bytes:
        """Return the row as JSON, without a newline."""
        return msgspec.json.encode(self.row)


def draft_row(line: bytes) -> DraftRow | None:
    """Return a checked line as a row to fill in; None for a line without an image."""
    # Two searches in the bytes are ten times as fast as decoding them; a name may be written with escapes.
    if b"image" not in line and b"\\u" not in line:
        return None
    row: dict[str, Any] = msgspec.json.decode(line)
    older = [ImageSlot({}, address, path) for name in _OLDER for address, path in _row_images(row, name)]
    slots: list[ImageSlot] = []
    for place, message in _messages(row):
        content = message.get("content")
        parts = _parts(content)
        first = older if message["role"] == "user" else []
        own = _part_slots(parts, f"{place}.content")
        if not (first or own):
            continue
        if first:
            older = []
            parts = [*(s.part for s in first), *parts]
        message["content"] = parts
        slots += [*first, *own]
    if not slots:
        return None
    for name in _OLDER:
        row.pop(name, None)
    return DraftRow(row, slots)


def _messages(row: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the messages of a conversation, or of a pair's prompt and sides, each with its place."""
    for name in ("messages", "chosen", "rejected"):
        for i, message in enumerate(row.get(name) or ()):
            yield f"$.{name}[{i}]", message


def fill_slot(slot: ImageSlot, uri: str) -> None:
    """Write the URI of the image's blob into its part."""
    slot.part.clear()
    slot.part.update(type="image", image=uri)


def _row_images(row: dict[str, Any], name: str) -> list[tuple[str, str]]:
    value = row.get(name)
    if isinstance(value, list):
        return [(_address(item), f"$.{name}[{k}]") for k, item in enumerate(value)]
    return [(_address(value), f"$.{name}")] if value else []


def _parts(content: Any) -> list[Any]:
    """Return a message's content as parts; an object that is no part becomes its text."""
    if isinstance(content, list):
        return content
    if isinstance(content, dict):
        if content.get("type") in PART_TYPES:
            return [content]
        content = object_text(content)
    return [{"type": "text", "text": content}] if content else []


def _part_slots(parts: list[Any], path: str) -> list[ImageSlot]:
    return [
        ImageSlot(part, _address(part.get("image_url") or part["image"]), f"{path}[{j}]")
        for j, part in enumerate(parts)
        if isinstance(part, dict) and part.get("type") in IMAGE_TYPES
    ]


def _address(value: Any) -> str:
    return value["url"] if isinstance(value, dict) else value
