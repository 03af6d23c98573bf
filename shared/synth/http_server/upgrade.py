"""Refuses WebSockets, in a way that clients of the Responses API take as a sign to go on with POST."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response


async def refuse_socket(request: Request) -> Response:
    """Answer a GET of a path that takes only POST: 426 for a WebSocket, otherwise 405."""
    if request.headers.get("upgrade"):
        return Response(status_code=426, headers={"upgrade": "HTTP/1.1"})
    return Response(status_code=405, headers={"allow": "POST"})
