"""Pages of a list that is short enough to read whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from synth.gateway.errors import not_found

_Item = TypeVar("_Item")


def items_after(items: list[_Item], id: str | None, *, kind: str, id_of: Callable[[_Item], str]) -> list[_Item]:
    """Return the items after the one with this id; all items without an id. Raises a 404 for an unknown id.

    kind: the name of such an item in the message.
    """
    if not id:
        return items
    place = next((i for i, item in enumerate(items) if id_of(item) == id), None)
    if place is None:
        raise not_found(kind, id)
    return items[place + 1 :]
