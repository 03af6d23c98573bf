"""The Responses of one rollout, so that a later call can name them: `previous_response_id`, and the ids of items.

A message that several calls repeat is kept once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from synth.chat.messages import Message


@dataclass(frozen=True, slots=True)
class _KeptResponse:
    """One response.

    previous: the response whose conversation it continues. messages: those that follow, the reply included.
    """

    previous: str | None
    messages: list[Message]


@dataclass(slots=True)
class ResponseLog:
    """Responses by their ids, and the items of their output by theirs."""

    responses: dict[str, _KeptResponse] = field(default_factory=dict[str, _KeptResponse])
    items: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    _ends: dict[bytes, str] = field(default_factory=dict[bytes, str])

    def add(
        self, id: str, messages: Sequence[Message], reply: Message, items: Sequence[tuple[str, dict[str, Any]]]
    ) -> int:
        """Keep a response and the items of its output. Returns how many bytes that takes."""
        whole = [*messages, reply]
        encoded = [msgspec.json.encode(message) for message in whole]
        digests = _digests(encoded)
        kept = next((n for n in range(len(messages), 0, -1) if digests[n - 1] in self._ends), 0)
        previous = self._ends[digests[kept - 1]] if kept else None
        self.responses[id] = _KeptResponse(previous, whole[kept:])
        self._ends[digests[-1]] = id
        self.items.update(items)
        return sum(map(len, encoded[kept:])) + sum(len(msgspec.json.encode(item)) for _, item in items)

    def conversation(self, id: str) -> list[Message] | None:
        """Return the messages of a response, its reply included; None if there is no such response."""
        if id not in self.responses:
            return None
        parts: list[list[Message]] = []
        following: str | None = id
        while following is not None:
            kept = self.responses[following]
            parts.append(kept.messages)
            following = kept.previous
        return [message for part in reversed(parts) for message in part]


def _digests(encoded: Sequence[bytes]) -> list[bytes]:
    """Return a digest of each beginning of the conversation."""
    digests, before = list[bytes](), b""
    for message in encoded:
        before = hashlib.blake2b(before + message, digest_size=16).digest()
        digests.append(before)
    return digests
