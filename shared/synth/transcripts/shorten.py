"""Make JSON data fit into a number of bytes: small values stay whole, large ones are cut, with a note."""

from __future__ import annotations

from typing import Any, cast

import msgspec

#: The least size that a value is cut to: less would show nothing.
MIN_VALUE_BYTES = 48
#: Room for the note about the missing part.
_NOTE_BYTES = 40


def json_size(value: Any) -> int:
    """Return the bytes of a value as JSON."""
    return len(msgspec.json.encode(value))


def share_out(sizes: list[int], budget: int) -> list[int]:
    """Return how many bytes each of some values gets: small ones their whole size, large ones an equal share."""
    shares = [0] * len(sizes)
    order = sorted(range(len(sizes)), key=lambda i: sizes[i])
    for done, i in enumerate(order):
        shares[i] = min(sizes[i], max(0, budget) // (len(order) - done))
        budget -= shares[i]
    return shares


def shorten(value: Any, limit: int) -> Any:
    """Shorten a value to about `limit` bytes of JSON, but not below `MIN_VALUE_BYTES`.

    A text keeps its beginning and its end; a list or an object keeps its first and last items, each shortened.
    """
    limit = max(limit, MIN_VALUE_BYTES)
    if json_size(value) <= limit:
        return value
    if isinstance(value, str):
        return _shorten_text(value, limit)
    if isinstance(value, list):
        items = cast(list[Any], value)
        head, tail = _ends(len(items), limit)
        kept = [*items[:head], *items[len(items) - tail :]]
        parts = _shorten_each(kept, limit - 2 * len(kept) - _NOTE_BYTES)
        left_out = len(items) - len(kept)
        return [*parts[:head], f"[{left_out} items left out]", *parts[head:]] if left_out else parts
    if isinstance(value, dict):
        fields = cast(dict[str, Any], value)
        head, tail = _ends(len(fields), limit)
        names = [*list(fields)[:head], *list(fields)[len(fields) - tail :]]
        shown = [name if len(name) <= MIN_VALUE_BYTES else _shorten_text(name, MIN_VALUE_BYTES) for name in names]
        room = limit - sum(len(name.encode()) + 6 for name in shown) - _NOTE_BYTES
        parts = dict(zip(shown, _shorten_each([fields[name] for name in names], room), strict=True))
        # Of names that are the same once they are shortened, the last one stands.
        left_out = len(fields) - len(parts)
        return parts | ({"…": f"[{left_out} fields left out]"} if left_out else {})
    return value


def _shorten_each(values: list[Any], budget: int) -> list[Any]:
    shares = share_out([json_size(value) for value in values], budget)
    return [shorten(value, share) for value, share in zip(values, shares, strict=True)]


def _ends(count: int, limit: int) -> tuple[int, int]:
    """Return how many items to keep from the beginning and from the end, so that each gets room for a value."""
    room = max(2, limit // (2 * MIN_VALUE_BYTES))
    if count <= room:
        return count, 0
    return room - room // 2, room // 2


def _shorten_text(text: str, limit: int) -> str:
    # Escapes and wide characters make the JSON longer than the text: cut by the average size of a character.
    per_char = json_size(text) / len(text)
    keep = max(8, int((limit - _NOTE_BYTES) / per_char))
    tail = keep // 3
    head = keep - tail
    return f"{text[:head]} …[{len(text) - keep} characters cut]… {text[len(text) - tail :]}"
