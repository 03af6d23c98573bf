"""A TCP proxy on loopback whose link can be cut, frozen, slowed, or made to answer nonsense, while connections last."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from enum import StrEnum

_PIECE = 64 << 10
#: Of a slow link: seconds that each piece of at most `_SLOW_PIECE` bytes takes.
_SLOW_S = 0.05
_SLOW_PIECE = 16 << 10


class Link(StrEnum):
    """What a link does. CUT: connections end, new ones too. FROZEN: bytes wait, as when the cable is out.

    ONE_WAY: what is said arrives, and what is answered waits. SLOW: each piece is late. FAILING, NONSENSE: what is
    posted on new connections is answered with an HTTP 500, or with a body that is no JSON; what is only asked for is
    passed on, as who verifies an app may refuse it for either.
    """

    OPEN = "open"
    CUT = "cut"
    FROZEN = "frozen"
    ONE_WAY = "one way"
    SLOW = "slow"
    FAILING = "failing"
    NONSENSE = "nonsense"


_ANSWERS = {
    Link.FAILING: b"HTTP/1.1 500 Oops\r\n",
    Link.NONSENSE: b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n",
}
_NONSENSE = b"[" * 20_000


class TcpProxy:
    """Listens on a port of its own and passes everything on to `target`, in the way that `link` says."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self._link = Link.OPEN
        self._changed = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._pumps: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> TcpProxy:
        """Begin to listen."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def close(self) -> None:
        """End every connection and stop listening."""
        if self._server is not None:
            self._server.close()
        self._end_all()
        for pump in list(self._pumps):
            pump.cancel()
        if self._pumps:
            await asyncio.wait(list(self._pumps), timeout=5)

    @property
    def link(self) -> Link:
        return self._link

    @link.setter
    def link(self, link: Link) -> None:
        self._link = link
        self._changed.set()
        self._changed = asyncio.Event()
        if link is Link.CUT or link in _ANSWERS:
            # What is kept alive would not notice.
            self._end_all()

    def _end_all(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pump = asyncio.current_task()
        assert pump is not None
        self._pumps.add(pump)
        pump.add_done_callback(self._pumps.discard)
        self._writers.add(writer)
        # A connection that breaks is what a proxy is for; its ends see it.
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await self._serve(reader, writer)
        self._writers.discard(writer)
        writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._link is Link.CUT:
            return
        answer = _ANSWERS.get(self._link)
        head = b""
        if answer is not None:
            head = await reader.readuntil(b"\r\n\r\n")
        if answer is not None and head.startswith(b"POST"):
            writer.write(answer + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(_NONSENSE) + _NONSENSE)
            await writer.drain()
            return
        while self._link is Link.FROZEN:
            await self._changed.wait()
        there, back = await asyncio.open_connection("127.0.0.1", self.target)
        self._writers.add(back)
        back.write(head)
        ways = [
            asyncio.create_task(self._pump(reader, back, {Link.FROZEN})),
            asyncio.create_task(self._pump(there, writer, {Link.FROZEN, Link.ONE_WAY})),
        ]
        try:
            await asyncio.wait(ways)
        finally:
            for way in ways:
                way.cancel()
            self._writers.discard(back)
            back.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, waits: set[Link]) -> None:
        with suppress(OSError):
            while piece := await reader.read(_SLOW_PIECE if self._link is Link.SLOW else _PIECE):
                while self._link in waits:
                    await self._changed.wait()
                if self._link is Link.SLOW:
                    await asyncio.sleep(_SLOW_S)
                writer.write(piece)
                await writer.drain()
            if writer.can_write_eof():
                writer.write_eof()
