"""What a rollout looked like, in the shape that the published clients store and filter: a trace of version 3.

A message history in the order of the conversation, each message once, and an event for each call of the model and each
step of the environment. Times are unix seconds.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

Object = dict[str, Any]
_TYPES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool_result"}


@dataclass
class Trace:
    """Collects while an episode is played. session_id: the rollout's run id."""

    session_id: str
    started: float = field(default_factory=time.time)
    _messages: list[Object] = field(default_factory=list[Object])
    _events: list[Object] = field(default_factory=list[Object])
    _told: list[Object] = field(default_factory=list[Object])

    def called(self, asked: list[Object], completion: Object, *, seconds: float) -> None:
        """A call of the model: what it was told, and its whole completion."""
        at, turn = time.time(), sum(1 for event in self._events if "call_records" in event)
        # A conversation grows by what came since the last call; one that was begun anew is told whole.
        told = len(self._told) if asked[: len(self._told)] == self._told else 0
        reply = cast(Object, completion["choices"][0]["message"])
        for message in [*asked[told:], reply]:
            self._messages.append(_message(message, at=at, turn=turn))
        self._told = [*asked, reply]
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
                        "input_messages": asked,
                        "output_messages": [reply],
                        "output_text": reply.get("content"),
                        "finish_reason": completion["choices"][0].get("finish_reason"),
                        "usage": usage,
                    }
                ],
            }
        )

    def stepped(self, *, reward: float | None, done: bool, truncated: bool) -> None:
        """A step of the environment, and what it paid."""
        ended = {"terminated": done and not truncated, "truncated": truncated}
        self._events.append({**_moment("environment", time.time()), "reward": reward or 0.0, **ended})

    def session(self, metadata: Object) -> Object:
        """The trace of the whole rollout."""
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
    content = message.get("content")
    if not isinstance(content, str):
        content = json.dumps(message.get("tool_calls") if content is None else content)
    return {
        "content": {"text": content},
        "message_type": _TYPES.get(str(message.get("role")), "system"),
        "time_record": {"event_time": at, "message_time": turn},
        "metadata": {"turn": turn},
    }
