"""An operator's calls about dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from synth.api.dead_letters import DeadLetter, DeadLetterPayload, SettledLetter
from synth.api.limits import MAX_PAGE

if TYPE_CHECKING:
    from synth.cli.api.client import Client


class _Letters(msgspec.Struct):
    data: list[DeadLetter]
    has_more: bool = False


def dead_letters(client: Client, *, limit: int, settled: bool) -> tuple[list[DeadLetter], bool]:
    """Return up to `limit` letters, oldest first, and whether there are more. `settled` includes settled letters."""
    letters: list[DeadLetter] = []
    more = True
    while more and len(letters) < limit:
        after = letters[-1].id if letters else 0
        params = {"after": after, "limit": min(MAX_PAGE, limit - len(letters)), "settled": settled}
        page = client.request("GET", "/dead-letters", _Letters, params=params)
        letters += page.data
        more = page.has_more
    return letters, more


def dead_letter(client: Client, id: int) -> DeadLetterPayload:
    """Return one letter, with its payload."""
    return client.request("GET", f"/dead-letters/{id}", DeadLetterPayload)


def retry_letter(client: Client, id: int) -> SettledLetter:
    """Have it handled again."""
    return client.request("POST", f"/dead-letters/{id}/retry", SettledLetter)


def drop_letter(client: Client, id: int) -> SettledLetter:
    """Settle it."""
    return client.request("POST", f"/dead-letters/{id}/drop", SettledLetter)
