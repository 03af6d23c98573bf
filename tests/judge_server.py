"""A scripted judge behind an OpenAI-compatible chat API on a real socket: what it answers, and what it was asked, when.

    with JudgeServer(scored(lambda call: 1.0 if "please" in call.text else 0.0)) as judge:
        …judge.url…, judge.calls, judge.busiest_second()

It runs in a thread of its own, so that tests with and without an event loop can use it. `stop` and `start` take it away
and bring it back on the same port.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_DATA = re.compile(r"<rollout-(\w+)>\n(.*)\n</rollout-\1>", re.DOTALL)
_CRITERIA = re.compile(r"as JSON:\n(\[.*\])\n")


@dataclass(frozen=True)
class JudgeCall:
    """One request. number: from 1, of all that the server had. at: when it came, unix seconds."""

    number: int
    at: float
    body: dict[str, Any]
    headers: Mapping[str, str]

    @property
    def messages(self) -> list[dict[str, Any]]:
        return self.body["messages"]

    @property
    def text(self) -> str:
        """What the user's message holds between its lines, as JSON text."""
        found = _DATA.search(self.messages[1]["content"])
        assert found is not None
        return found[2]

    @property
    def data(self) -> Any:
        """The same, read."""
        return json.loads(self.text)

    @property
    def criteria(self) -> list[str]:
        """The ids of the rubric's criteria."""
        found = _CRITERIA.search(self.messages[0]["content"])
        assert found is not None
        return [criterion["id"] for criterion in json.loads(found[1])]

    @property
    def asked_again(self) -> str | None:
        """What it was told to be wrong with its earlier answer; None the first time."""
        return self.messages[-1]["content"] if len(self.messages) > 2 else None

    @property
    def ranks(self) -> bool:
        """Whether it is asked for an order."""
        return "Put the attempts in order" in self.messages[0]["content"]


@dataclass(frozen=True)
class Scripted:
    """What the server does with a call.

    body: JSON, or bytes to send as they are. until: it answers when this is set, or it is stopped. delay: seconds.
    """

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict[str, str])
    delay: float = 0.0
    until: threading.Event | None = None


Script = Callable[[JudgeCall], Scripted]


def said(text: str, *, finish_reason: str = "stop", delay: float = 0.0) -> Scripted:
    """A completion of this text, of 100 prompt tokens and 10 more."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish_reason}
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    return Scripted(body={"object": "chat.completion", "choices": [choice], "usage": usage}, delay=delay)


def scores_of(call: JudgeCall, score: float | dict[str, float], *, reason: str = "because") -> str:
    """The answer that gives each criterion this score, or its own."""
    each = score if isinstance(score, dict) else dict.fromkeys(call.criteria, score)
    told = {id: {"reason": reason, "score": value} for id, value in each.items()}
    return json.dumps({"scores": told, "summary": "judged"})


def scored(score: Callable[[JudgeCall], float | dict[str, float]], *, delay: float = 0.0) -> Script:
    """Gives each criterion the score that follows from the prompt."""
    return lambda call: said(scores_of(call, score(call)), delay=delay)


def ordered(key: Callable[[Any], float]) -> Script:
    """Puts the attempts of a group in the order of this key, the highest first."""

    def answer(call: JudgeCall) -> Scripted:
        shown = sorted(call.data, key=key, reverse=True)
        return said(json.dumps({"reason": "by the key", "order": [attempt["attempt"] for attempt in shown]}))

    return answer


def prose(call: JudgeCall) -> Scripted:
    return said("I would say that this went rather well.")


def nan(call: JudgeCall) -> Scripted:
    return said(scores_of(call, float("nan")))


def out_of_range(call: JudgeCall) -> Scripted:
    return said(scores_of(call, 7.5))


def wrong_json(call: JudgeCall) -> Scripted:
    return said(json.dumps({"score": 1}))


def obeys_the_rollout(call: JudgeCall) -> Scripted:
    """A judge that takes the first `answer with: …` of the rollout for an order."""
    found = re.search(r"answer with: ([^\"\\]+)", call.text)
    return said(found[1] if found else scores_of(call, 0.5))


def limited(retry_after: float | None = 1.0, *, status: int = 429) -> Script:
    headers = {} if retry_after is None else {"retry-after": f"{retry_after:g}"}
    return lambda call: Scripted(status=status, body={"error": {"message": "slow down"}}, headers=headers)


def failing(status: int = 500, message: str = "boom", code: str | None = None) -> Script:
    return lambda call: Scripted(status=status, body={"error": {"message": message, "code": code}})


def hanging(call: JudgeCall) -> Scripted:
    return Scripted(until=threading.Event())


def held(until: threading.Event, then: Script) -> Script:
    """Answers as `then`, once this is set."""
    return lambda call: replace(then(call), until=until)


def no_schema(then: Script) -> Script:
    """Refuses `response_format`, and answers as `then` without it."""

    def answer(call: JudgeCall) -> Scripted:
        if "response_format" in call.body:
            return failing(400, "response_format is not supported by this model")(call)
        return then(call)

    return answer


def in_turn(*scripts: Script) -> Script:
    """The first call is answered by the first, … and all that follow by the last."""
    return lambda call: scripts[min(call.number, len(scripts)) - 1](call)


class JudgeServer:
    """The server. script: may be replaced while it runs."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.calls: list[JudgeCall] = []
        self.at_once = 0
        self._open = 0
        self._port = 0
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)

    @property
    def url(self) -> str:
        """The base URL, `…/v1`."""
        return f"http://127.0.0.1:{self._port}/v1"

    def __enter__(self) -> JudgeServer:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Listen, on the port of before if there was one."""
        app = Starlette(routes=[Route("/v1/chat/completions", self._answer, methods=["POST"])])
        config = uvicorn.Config(
            app, host="127.0.0.1", port=self._port, log_config=None, access_log=False, lifespan="off"
        )
        config.timeout_graceful_shutdown = 0
        self._server = uvicorn.Server(config)
        self._socket = config.bind_socket()
        # A call may come before the thread has begun.
        self._socket.listen(128)
        self._port = self._socket.getsockname()[1]
        self._stopping = False
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Be gone: calls under way are broken off, later ones find nobody."""
        self._stopping = True
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join(10)
        self._socket.close()

    def wait_for_calls(self, count: int, *, timeout: float = 20.0) -> None:
        """Return once so many calls have come in all."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.calls) >= count, timeout), f"{len(self.calls)} calls"

    def busiest_second(self) -> int:
        """The most calls that came within any one second."""
        moments = sorted(call.at for call in self.calls)
        return max((i + 1 - bisect_left(moments, at - 1.0 + 1e-9) for i, at in enumerate(moments)), default=0)

    async def _answer(self, request: Request) -> Response:
        at, body = time.time(), await request.json()
        with self._changed:
            call = JudgeCall(len(self.calls) + 1, at, body, dict(request.headers))
            self.calls.append(call)
            self._open += 1
            self.at_once = max(self.at_once, self._open)
            self._changed.notify_all()
        try:
            scripted = self.script(call)
            ends = time.monotonic() + scripted.delay
            while (scripted.until is not None and not scripted.until.is_set()) or time.monotonic() < ends:
                await asyncio.sleep(0.01)
                if self._stopping:
                    return Response("stopping", 500)
            content = scripted.body if isinstance(scripted.body, bytes) else json.dumps(scripted.body)
            return Response(content, scripted.status, headers=scripted.headers, media_type="application/json")
        finally:
            with self._changed:
                self._open -= 1
                self._changed.notify_all()
