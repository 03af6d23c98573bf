"""A stream of events reaches the client whole, and half an event never does."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from synth.gateway.chat_proxy.proxy import _relay_chunks  # pyright: ignore[reportPrivateUsage]

EVENTS = b"data: 1\n\ndata: 22\n\ndata: 333\n\n"


class Pieces(httpx.AsyncByteStream):
    """The body in pieces of a size; with `breaks`, the connection ends after them."""

    def __init__(self, body: bytes, size: int, *, breaks: bool) -> None:
        self._pieces = [body[i : i + size] for i in range(0, len(body), size)]
        self._breaks = breaks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece
        if self._breaks:
            raise httpx.ReadError("gone")


async def relayed(body: bytes, size: int, *, breaks: bool) -> bytes:
    headers = {"content-type": "text/event-stream"}
    request = httpx.Request("POST", "http://replica/v1/chat/completions")
    upstream = httpx.Response(200, headers=headers, stream=Pieces(body, size, breaks=breaks), request=request)
    return b"".join([chunk async for chunk in _relay_chunks(upstream, b"data: cut\n\n")])


@pytest.mark.parametrize("size", range(1, len(EVENTS) + 1))
async def test_events_pass_whole_however_they_are_cut(size: int) -> None:
    assert await relayed(EVENTS, size, breaks=False) == EVENTS
    assert await relayed(EVENTS + b"data: ha", size, breaks=False) == EVENTS + b"data: ha"
    assert await relayed(EVENTS + b"data: ha", size, breaks=True) == EVENTS + b"data: cut\n\n"
