"""Task apps for the whole cluster: small ones made with the SDK, on real sockets, that can go wrong when told to."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import httpx
import uvicorn
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from synth.bus.server.embedded import free_port
from synth.taskapp.sdk import Episode, TaskApp
from tests.e2e.cli.conftest import eventually

Fault = Literal["hang", "500", "nan", "garbage", "die"]
KEY = "env_of_the_tests"
_ROOT = Path(__file__).parents[2]


def letters(key: str = KEY, *, paid: int | None = None) -> TaskApp:
    """One turn; paid by how many different characters the reply has, so that any model's rollouts differ.

    paid: how many rollouts are; those after them earn 0. All of them, if it is None.
    """
    app = TaskApp("letters", name="Letters", description="Many letters.", keys=[key])
    rollouts = itertools.count()

    @app.episode
    async def play(ep: Episode) -> None:
        reply = await ep.chat([{"role": "user", "content": f"Letters, please: {ep.seed % 10}"}])
        earned = len(set(reply.content)) / 32 if paid is None or next(rollouts) < paid else 0.0
        ep.step(obs=reply.content, reward=earned, done=True)

    return app


def paying(reward: float, rubric: dict[str, Any] | None = None) -> TaskApp:
    """One turn; paid the same whatever the reply."""
    app = TaskApp("paying", name="Paying", description="The same reward for all.", rubric=rubric, keys=[KEY])

    @app.episode
    async def play(ep: Episode) -> None:
        reply = await ep.chat([{"role": "user", "content": f"Anything, please: {ep.seed % 10}"}])
        ep.step(obs=reply.content, reward=reward, done=True)

    return app


def one_letter(easy_below: int = 0, easy_after: int | None = None) -> TaskApp:
    """One turn; paid 1 for a reply of at most one character, whatever its length, and less for more of them.

    easy_below: seeds below it pay 1 for any reply. easy_after: so do all, after so many rollouts.
    """
    app = TaskApp("one_letter", name="One letter", description="The fewer characters the better.", keys=[KEY])
    rollouts = itertools.count()

    @app.episode
    async def play(ep: Episode) -> None:
        reply = await ep.chat([{"role": "user", "content": f"One letter, please: {ep.seed % 10}"}])
        easy = ep.seed < easy_below or (easy_after is not None and next(rollouts) >= easy_after)
        reward = 1.0 if easy else 1 / max(1, len(set(reply.content)))
        ep.step(obs=reply.content, reward=reward, done=True)

    return app


def verdicts() -> TaskApp:
    """One turn, whose reply is JSON by a schema; paid where it says that the sum is right."""
    app = TaskApp("verdicts", name="Verdicts", description="JSON alone.", keys=[KEY])
    answers = {"right": {"type": "boolean"}, "why": {"enum": ["the sum", "the carry", "a guess"]}}
    schema = {"type": "object", "properties": answers, "required": list(answers), "additionalProperties": False}

    @app.episode
    async def play(ep: Episode) -> None:
        asked = {"type": "json_schema", "json_schema": {"name": "verdict", "strict": True, "schema": schema}}
        messages = [{"role": "user", "content": f"Is 12 + 3{ep.seed % 10} = 46?"}]
        reply = await ep.chat(messages, response_format=asked, max_tokens=60)
        ep.step(obs=reply.content, reward=float(json.loads(reply.content)["right"]), done=True)

    return app


def countdown(pause_s: float = 0.0) -> TaskApp:
    """Three turns, each of which goes on from the reply before. pause_s: how long the environment takes for each."""
    app = TaskApp("countdown", name="Countdown", description="Three turns.", max_turns=3, keys=[KEY])

    @app.episode
    async def play(ep: Episode) -> None:
        messages: list[dict[str, Any]] = [{"role": "system", "content": "Count down."}]
        for left in (3, 2, 1):
            messages.append({"role": "user", "content": f"{left} left, seed {ep.seed % 10}"})
            await asyncio.sleep(pause_s)
            reply = await ep.chat(messages)
            messages.append(reply.message)
            ep.step(obs=reply.content, reward=len(set(reply.content)) / 96, done=left == 1)

    return app


class Served:
    """A task app on a port of its own.

    fault: what its n-th rollout (from 0) suffers, None for nothing. door: what every other request suffers.
    bears: rollouts at a time; it answers 429 to more.
    """

    def __init__(
        self, app: TaskApp, fault: Callable[[int], Fault | None], door: Fault | None, bears: int = 10_000
    ) -> None:
        self.rollouts = 0
        self._bears = bears
        self._running = 0
        self._app = app.asgi()
        self._fault = fault
        self._door: Fault | None = door
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        config = uvicorn.Config(
            self._answer,
            interface="asgi3",
            lifespan="off",
            http="httptools",
            log_level="critical",
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._listener]})
        self._thread.start()

    def stop(self) -> None:
        """End it, as a crash would: open connections are cut."""
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(10)
        self._listener.close()
        assert not self._thread.is_alive()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        fault = self._door
        if scope["path"] == "/rollout":
            if self._running == self._bears:
                await _reply(send, 429, b"too many")
                return
            fault = self._fault(self.rollouts)
            self.rollouts += 1
        self._running += 1
        try:
            await self._suffer(fault, scope, receive, send)
        finally:
            self._running -= 1

    async def _suffer(self, fault: Fault | None, scope: Scope, receive: Receive, send: Send) -> None:
        match fault:
            case "hang":
                await _disconnected(receive)
            case "die":
                self._server.should_exit = self._server.force_exit = True
                for connection in list(self._server.server_state.connections):
                    assert isinstance(connection, HttpToolsProtocol)
                    connection.transport.abort()
                await _disconnected(receive)
            case "500":
                await _reply(send, 500, b"out of letters")
            case "garbage":
                await _reply(send, 200, b"<html>hello</html>")
            case "nan":
                await self._app(scope, receive, _paying_nan(send))
            case _:
                await self._app(scope, receive, send)


async def _disconnected(receive: Receive) -> None:
    async with asyncio.timeout(60):
        while (await receive())["type"] != "http.disconnect":
            pass


async def _reply(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _paying_nan(send: Send) -> Send:
    async def edited(message: Message) -> None:
        if message["type"] == "http.response.body":
            answer = json.loads(message["body"])
            answer["metrics"] |= {"outcome_score": float("nan"), "mean_return": float("nan")}
            await _reply(send, 200, json.dumps(answer).encode())

    return edited


@contextmanager
def served(
    app: TaskApp,
    *,
    fault: Callable[[int], Fault | None] = lambda n: None,
    door: Fault | None = None,
    bears: int = 10_000,
) -> Iterator[Served]:
    """The app while the block runs."""
    running = Served(app, fault, door, bears)
    try:
        yield running
    finally:
        running.stop()


@contextmanager
def app_process(module: str, key: str = KEY) -> Iterator[str]:
    """Run the app of a module as a process that this environment key opens; yields its address."""
    port = free_port()
    env = {**os.environ, "PYTHONPATH": f"{_ROOT}/shared:{_ROOT}/services:{_ROOT}", "ENVIRONMENT_API_KEY": key}
    process = subprocess.Popen([sys.executable, "-m", module, "--port", str(port)], env=env)
    try:
        eventually(lambda: _answers(port))
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


def _answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/").status_code == 200
    except httpx.TransportError:
        return False
