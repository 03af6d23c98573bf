"""Limits the size of the bodies that routes read whole."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from synth.gateway.chat_proxy.paths import is_chat_path
from synth.gateway.errors import ApiError, error_response

#: These, and chat completions, read their bodies piece by piece, and have limits of their own.
_STREAMED = "/files"


class BodyLimit:
    """ASGI middleware: a 413 for a body that is larger, by its header before it is read, else where it passes.

    What the client still sends is thrown away as it comes: a connection that is closed under it loses the answer.
    """

    def __init__(self, app: ASGIApp, *, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _limits_itself(scope["method"], scope["path"]):
            await self._app(scope, receive, send)
            return
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
        if declared.isdigit() and int(declared) > self._limit:
            await error_response(ApiError(413, self._message, type="invalid_request"))(scope, receive, send)
            return
        passed = 0

        async def limited() -> Message:
            nonlocal passed
            message = await receive()
            passed += len(message.get("body", b""))
            if passed > self._limit:
                # The kind of error that FastAPI lets through where it reads a body.
                raise HTTPException(413, self._message)
            return message

        await self._app(scope, limited, send)

    @property
    def _message(self) -> str:
        limit = f"{self._limit:,} bytes (SYNTH_MAX_JSON_BYTES)"
        return f"the body is larger than {limit}; put data into files, and name them"


def _limits_itself(method: str, path: str) -> bool:
    return path.rstrip("/").endswith(_STREAMED) or is_chat_path(method, path)
