"""The single gate of the API, which checks the caller and its rate, then the size of the body, and only then reads it.

A route reads no body of a caller that may not send it. Chats and uploads pass with unread bodies: their routes check
the caller first, and then use the same reader, or write the body piece by piece into a file.
"""

from __future__ import annotations

from contextlib import ExitStack

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from synth.gateway.api.sse import wants_stream
from synth.gateway.auth import HANDSHAKE_PATH, authenticate_early
from synth.gateway.chat_proxy.paths import is_model_call
from synth.gateway.errors import KNOWN_ERRORS, respond
from synth.gateway.limits.headers import begin_request, limit_headers
from synth.gateway.passage import PASSAGE, Passage
from synth.gateway.streams.pace import Pace
from synth.http_server.body import BodyMemory, read_body
from synth.runtime.json_bodies import check_json_values
from synth.runtime.off_loop import OffLoop

_STREAMED = "/files"
#: The largest body of a caller without a key.
_OPEN_BYTES = 4096
_FIX = "put data into files, and name them"


class Gate:
    """ASGI middleware that passes a request with a body after checking its key and the size of its body."""

    def __init__(
        self, app: ASGIApp, *, max_bytes: int, max_values: int, memory: BodyMemory, off_loop: OffLoop, pace: Pace
    ) -> None:
        self._app = app
        self._pace = pace
        self._max_bytes = max_bytes
        self._max_values = max_values
        self._memory = memory
        self._off_loop = off_loop

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if len(scope["path"]) > 1 and scope["path"].endswith("/") and not is_model_call(scope["method"], scope["path"]):
            scope["path"] = scope["path"].rstrip("/") or "/"
        scope[PASSAGE], limits_met = Passage(), begin_request()
        request, opening = Request(scope, receive), ExitStack()
        if _opens_stream(request):
            opening.enter_context(self._pace.opening())

        async def send_with_limits(message: Message) -> None:
            opening.close()
            if message["type"] == "http.response.start" and limits_met:
                named = {name for name, _ in message["headers"]}
                added = [(name.lower().encode(), value.encode()) for name, value in limit_headers(limits_met).items()]
                message["headers"] = [*message["headers"], *(pair for pair in added if pair[0] not in named)]
            await send(message)

        with opening:
            if not _has_body(request) or is_model_call(scope["method"], scope["path"]):
                await self._app(scope, receive, send_with_limits)
            else:
                await self._with_body(request, scope, receive, send_with_limits)

    async def _with_body(self, request: Request, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"].rstrip("/")
        open_to_all = path.startswith(f"{HANDSHAKE_PATH}/")
        try:
            org = "" if open_to_all else (await authenticate_early(request)).org
        except KNOWN_ERRORS as error:
            await respond(request, error)(scope, receive, send)
            return
        limit = min(self._max_bytes, _OPEN_BYTES) if open_to_all else self._max_bytes
        if path.endswith(_STREAMED):
            await self._app(scope, receive, send)
            return
        with self._memory.hold(org) as held:
            try:
                body = await read_body(
                    request, self._memory, held, limit=limit, setting="SYNTH_MAX_JSON_BYTES", fix=_FIX
                )
                await check_json_values(
                    body, self._off_loop, limit=self._max_values, setting="SYNTH_MAX_JSON_VALUES", org=org
                )
            except KNOWN_ERRORS as error:
                await respond(request, error)(scope, receive, send)
                return
            await self._app(scope, _replay(body, receive), send)


def _opens_stream(request: Request) -> bool:
    return request.method == "GET" and request.scope["path"].endswith("/events") and wants_stream(request)


def _has_body(request: Request) -> bool:
    headers = request.headers
    return "transfer-encoding" in headers or headers.get("content-length", "0") != "0"


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `Receive` that gives the body as one message, and then the messages after it."""
    whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return whole.pop() if whole else await receive()

    return receive_again
