"""The chat calls of one rollout as text, each message once however often the client sends it again.

A conversation that grows by a few messages a call would otherwise be kept a hundred times over.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from synth.chat.messages import Conversation, Message, template_messages
from synth.transcripts.plain import to_plain
from synth.transcripts.transcript import RecordedChat


@dataclass(slots=True)
class ConversationLog:
    """The messages of the calls of one rollout so far.

    places: by the digest of each beginning of a conversation, the call that had it, and its number of messages.
    """

    places: dict[bytes, tuple[int, int]] = field(default_factory=dict[bytes, tuple[int, int]])
    tools: list[Any] = field(default_factory=list[Any])

    def record(self, number: int, conversation: Conversation, reply: Message) -> RecordedChat:
        """Record call `number`, and return its new messages. `continues` is the number of an earlier call."""
        digests = _digests([*conversation.messages, reply])
        length = len(conversation.messages)
        kept = next((n for n in range(length, 0, -1) if digests[n - 1] in self.places), 0)
        continues = self.places[digests[kept - 1]][0] if kept else None
        for n, digest in enumerate(digests[kept:], start=kept + 1):
            # The latest call wins: a client that repeats a call goes on from the last one.
            self.places[digest] = (number, n)
        tools = [to_plain(tool) for tool in conversation.tools]
        changed, self.tools = tools != self.tools, tools
        return RecordedChat(
            continues=continues,
            kept=kept,
            messages=[_as_json(message) for message in conversation.messages[kept:]],
            tools=tools if changed else None,
            reply=_as_json(reply),
        )


def _as_json(message: Message) -> Any:
    """Return the message with the fields that it has, as JSON data."""
    fields = _without_nulls(msgspec.to_builtins(message))
    if isinstance(parts := fields.get("content"), list):
        fields["content"] = [
            _without_nulls(cast(dict[str, Any], part)) if isinstance(part, dict) else part
            for part in cast(list[Any], parts)
        ]
    return to_plain(fields)


def _without_nulls(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _digests(messages: Sequence[Message]) -> list[bytes]:
    """Return a digest of each beginning of the conversation.

    Reasoning and the ids of tool calls do not count: most clients send a reply back without its reasoning, and some
    change the ids.
    """
    digests: list[bytes] = []
    before = b""
    for entry in template_messages(messages, thinks=False, sees=True):
        calls = [call["function"] for call in entry.pop("tool_calls", ())]
        for key in ("tool_call_id", "thinking"):
            entry.pop(key, None)
        text = json.dumps([entry, calls], sort_keys=True)
        before = hashlib.blake2b(before + text.encode(), digest_size=16).digest()
        digests.append(before)
    return digests
