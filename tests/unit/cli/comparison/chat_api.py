"""A stub of a chat API: models that reply by a function of the last message, and failures on demand."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

from tests.unit.cli.backend import Answer, Request

KEY = "sk_hosted_key"
#: From the model and the last message's text to a reply: a text, or a whole message.
Reply = Callable[[str, str], "str | dict[str, Any]"]


class ChatApi:
    """Answers `POST /v1/chat/completions`. failures: answers that come first, one a request.

    by_text: the answer to rows whose last message holds a text, in place of a reply. waits: what such rows wait for.
    refuses_max_tokens: the older name of the limit is refused, to all requests that meet at the barrier at one time.
    """

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self.failures: list[Answer] = []
        self.by_text: dict[str, Answer] = {}
        self.bodies: list[dict[str, Any]] = []
        self.names: list[str] = []
        self.waits: dict[str, threading.Event] = {}
        self.refuses_max_tokens: threading.Barrier | None = None
        self._lock = threading.Lock()

    def __call__(self, request: Request) -> Answer:
        if request.headers.get("Authorization") != f"Bearer {KEY}":
            return error(401, "Incorrect API key provided: sk_***.")
        body = json.loads(request.body)
        text = body["messages"][-1]["content"]
        with self._lock:
            self.bodies.append(body)
            if self.failures:
                return self.failures.pop(0)
        if self.refuses_max_tokens is not None and "max_tokens" in body:
            self.refuses_max_tokens.wait(10)
            return error(400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.")
        for mark, event in self.waits.items():
            if mark in text:
                event.wait(30)
        for mark, answer in self.by_text.items():
            if mark in text:
                return answer
        reply = self.reply(body["model"], text)
        message = {"role": "assistant", "content": reply} if isinstance(reply, str) else reply
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        with self._lock:
            name = self.names.pop(0) if self.names else body["model"]
        usage = {"prompt_tokens": 20, "completion_tokens": 20, "total_tokens": 40}
        return Answer(body={"id": "c", "object": "chat.completion", "model": name, "choices": [choice], "usage": usage})


def error(status: int, message: str, **headers: str) -> Answer:
    return Answer(status, {"error": {"message": message, "type": "error"}}, headers=headers)
