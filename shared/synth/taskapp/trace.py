"""A rollout in the shape that the published clients store and filter: a trace of version 3.

A message history in the order of the conversation, each message once, and an event for each call of the model and each
step of the environment. Times are unix seconds. An event of a call has the messages since the call before it, and the
number of earlier messages, so that a trace is as long as its conversation.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

from synth.traces.messages import message_type, stored_content

Object = dict[str, Any]
TRACING = "TASKAPP_TRACING_ENABLED"
_SWITCH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def tracing_enabled() -> bool | None:
    """Return the value of TASKAPP_TRACING_ENABLED; None if it is not set. Raises `ValueError` for other values."""
    text = os.environ.get(TRACING, "").strip().lower()
    if text and text not in _SWITCH:
        raise ValueError(f"{TRACING}={text[:40]!r}: expected 1, to keep images in traces, or 0")
    return _SWITCH.get(text)


@dataclass
class Trace:
    """Collects while an episode is played. session_id: the rollout's run id. images: whether they are kept; else a
    sha256 stands for each.
    """

    session_id: str
    images: bool = True
    started: float = field(default_factory=time.time)
    _messages: list[Object] = field(default_factory=list[Object])
    _events: list[Object] = field(default_factory=list[Object])
    _told: list[Object] = field(default_factory=list[Object])

    def called(
        self, messages: list[Object], completion: Object, *, tools: Sequence[Object] = (), seconds: float
    ) -> None:
        """Record a call of the model: its messages, its tools, and its whole completion."""
        at, turn = time.time(), sum(1 for event in self._events if "call_records" in event)
        # A conversation grows by the messages since the last call; a new conversation is recorded whole.
        earlier = len(self._told) if messages[: len(self._told)] == self._told else 0
        reply = cast(Object, completion["choices"][0]["message"])
        new = [message if self.images else _without_images(message) for message in messages[earlier:]]
        for message in [*new, reply]:
            self._messages.append(_message(message, at=at, turn=turn))
        self._told = [*messages, reply]
        usage = cast(Object, completion.get("usage") or {})
        model = str(completion.get("model") or "")
        self._events.append(
            {
                **_moment("policy", at),
                "model_name": model,
                "provider": "synth",
                "input_tokens": usage.get("prompt_tokens"),
                "output_tokens": usage.get("completion_tokens"),
                "total_tokens": usage.get("total_tokens"),
                "latency_ms": round(seconds * 1000),
                "call_records": [
                    {
                        "call_id": str(completion.get("id") or ""),
                        "api_type": "chat_completions",
                        "provider": "synth",
                        "model_name": model,
                        "input_messages": new,
                        "messages_before": earlier,
                        "output_messages": [reply],
                        "output_text": reply.get("content"),
                        "tools": list(tools),
                        "finish_reason": completion["choices"][0].get("finish_reason"),
                        "usage": usage,
                    }
                ],
            }
        )

    def stepped(self, *, reward: float | None, done: bool, truncated: bool) -> None:
        """Record a step of the environment and its reward."""
        ended = {"terminated": done and not truncated, "truncated": truncated}
        self._events.append({**_moment("environment", time.time()), "reward": reward or 0.0, **ended})

    def session(self, metadata: Object) -> Object:
        """Return the trace of the whole rollout."""
        created = datetime.fromtimestamp(self.started, UTC).isoformat()
        return {
            "session_id": self.session_id,
            "created_at": created,
            "session_time_steps": [],
            "event_history": self._events,
            "markov_blanket_message_history": self._messages,
            "metadata": metadata,
        }


def _moment(instance: str, at: float) -> Object:
    return {"system_instance_id": instance, "time_record": {"event_time": at}, "metadata": {}}


def _message(message: Object, *, at: float, turn: int) -> Object:
    return {
        "content": stored_content(message),
        "message_type": message_type(message),
        "time_record": {"event_time": at, "message_time": turn},
        "metadata": {"turn": turn},
    }


def _without_images(message: Object) -> Object:
    parts = message.get("content")
    if not isinstance(parts, list):
        return message
    return message | {"content": [_named_image(part) for part in cast(list[Any], parts)]}


def _named_image(part: Any) -> Any:
    fields: Object = cast(Object, part) if isinstance(part, dict) else {}
    shown: Any = fields.get("image_url") or fields.get("image")
    if fields.get("type") not in ("image_url", "image") or shown is None:
        return cast(Any, part)
    url: Any = cast(Object, shown).get("url") if isinstance(shown, dict) else shown
    return {"type": "image", "sha256": hashlib.sha256(str(url).encode()).hexdigest()}
