"""The Responses of one rollout, so that a later call can name them: `previous_response_id`, and the ids of items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from synth.chat.messages import Message
from synth.transcripts.transcript import RecordedChat


@dataclass(frozen=True, slots=True)
class _KeptCall:
    """The conversation of one call: the first `kept` messages of call `continues`, its reply counted, then `messages`.

    reply: to the call. instructed: whether its first message is its own instructions.
    """

    continues: int | None
    kept: int
    messages: list[Message]
    reply: Message
    instructed: bool


@dataclass(slots=True)
class ResponseLog:
    """The results of a rollout's calls.

    items: of their output, by id. owners: the response of each item. responses: the call of each response, as its
    number in the rollout.
    """

    items: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    owners: dict[str, str] = field(default_factory=dict[str, str])
    responses: dict[str, int] = field(default_factory=dict[str, int])
    _calls: dict[int, _KeptCall] = field(default_factory=dict[int, _KeptCall])

    def add_items(self, response: str, items: Sequence[dict[str, Any]]) -> int:
        """Keep the items of a response. Returns how many bytes they take."""
        for item in items:
            self.items.setdefault(item["id"], item)
            self.owners.setdefault(item["id"], response)
        return sum(len(msgspec.json.encode(item)) for item in items)

    def add_call(
        self,
        response: str,
        number: int,
        messages: Sequence[Message],
        reply: Message,
        chat: RecordedChat,
        *,
        instructed: bool,
    ) -> int:
        """Keep the conversation of a response. Returns how many bytes that takes.

        chat: the messages that the call repeats from an earlier one, which are not kept twice.
        """
        continues, kept = chat.continues, chat.kept
        if continues not in self._calls:
            continues, kept = None, 0
        new = list(messages[kept:])
        self._calls[number] = _KeptCall(continues, kept, new, reply, instructed)
        self.responses[response] = number
        return len(msgspec.json.encode([*new, reply]))

    def conversation(self, response: str) -> list[Message] | None:
        """Return the messages of a response without its instructions, its reply included; None for an unknown one."""
        number = self.responses.get(response)
        if number is None:
            return None
        calls: list[_KeptCall] = []
        following: int | None = number
        while following is not None:
            calls.append(self._calls[following])
            following = calls[-1].continues
        messages: list[Message] = []
        for call in reversed(calls):
            messages = [*messages[: call.kept], *call.messages, call.reply]
        return messages[1:] if calls[0].instructed else messages
