"""httpx over the connections of aiohttp, which cost a tenth of the CPU time of httpx's own pool.

With each call in flight, a call by httpx's pool costs more: for each request the pool goes through its connections. Its
HTTP parser is Python code. Clients keep httpx's interface, errors and time limits. A GET whose connection the server
closes without an answer is sent once more.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterable, Mapping
from typing import Any

import aiohttp
import httpx
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from synth.outbound.tls import tls_context

#: Below the 5 s after which uvicorn closes an idle connection: a request must not meet the end of its connection.
_KEEP_ALIVE_S = 4.0
#: Bytes of one line of an answer's head.
_MAX_HEAD_LINE = 64 << 10

# A host that is gone sends no packet, not even a reset: TCP keepalive detects it within half a minute.
_PROBES = [
    (getattr(socket, name), seconds)
    for name, seconds in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)
]

#: Returns the IP addresses of a host and port to connect to. Raises `httpx.ConnectError`.
Resolve = Callable[[str, int], Awaitable[list[str]]]
#: Raises if no connection to an IP address may be opened. It gets the address of every connection.
CheckAddress = Callable[[str], None]
_Timeout = Mapping[str, float | None]


class AiohttpTransport(httpx.AsyncBaseTransport):
    """A transport of `httpx.AsyncClient`. It belongs to the event loop of its first request."""

    def __init__(
        self,
        *,
        max_connections: int | None = None,
        resolve: Resolve | None = None,
        check_address: CheckAddress | None = None,
    ) -> None:
        """Make a transport. max_connections: further requests wait for a free connection; None: no limit."""
        self._max_connections = max_connections
        self._resolver = _Resolver(resolve) if resolve is not None else None
        self._check_address = check_address
        self._session: aiohttp.ClientSession | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request. The body of the returned response is read from the connection."""
        timeout: dict[str, float | None] = request.extensions.get("timeout", {})
        headers = [(name.decode("ascii"), value.decode("ascii")) for name, value in request.headers.raw]
        with _httpx_errors():
            url = URL(str(request.url), encoded=True)
        return await self.send(request.method, url, headers, await request.aread(), timeout)

    async def send(
        self, method: str, url: URL, headers: Iterable[tuple[str, str]], body: bytes, timeout: _Timeout
    ) -> httpx.Response:
        """Send a request; otherwise as `handle_async_request`. timeout: seconds of each phase, by httpx's names."""
        pool, connect = timeout.get("pool"), timeout.get("connect")
        limits = aiohttp.ClientTimeout(
            total=None,
            # aiohttp counts the wait for a free connection, the lookup of the name and the connection together.
            connect=None if pool is None or connect is None else pool + connect,
            sock_connect=connect,
            sock_read=timeout.get("read"),
        )
        with _httpx_errors():
            reply = await (self._session or self._open()).request(
                method, url, headers=headers, data=body or None, allow_redirects=False, timeout=limits
            )
        reason = (reply.reason or "").encode("ascii", "ignore")
        extensions = {"http_version": b"HTTP/1.1", "reason_phrase": reason}
        return httpx.Response(
            reply.status, headers=reply.raw_headers, stream=_StreamedBody(reply), extensions=extensions
        )

    async def aclose(self) -> None:
        """Close the connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _open(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            ssl=tls_context(),
            limit=self._max_connections or 0,
            keepalive_timeout=_KEEP_ALIVE_S,
            use_dns_cache=False,
            resolver=self._resolver,
            socket_factory=self._open_socket,
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent", "Content-Type"),
            max_line_size=_MAX_HEAD_LINE,
            max_field_size=_MAX_HEAD_LINE,
        )
        return self._session

    def _open_socket(self, address: tuple[int, int, int, str, tuple[Any, ...]]) -> socket.socket:
        family, kind, protocol, _, (host, *_) = address
        if self._check_address is not None:
            self._check_address(str(host))
        opened = socket.socket(family, kind, protocol)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, seconds in _PROBES:
            opened.setsockopt(socket.IPPROTO_TCP, option, seconds)
        return opened


async def post(
    transport: httpx.AsyncBaseTransport, url: str, content: bytes, *, headers: Mapping[str, str], timeout: float | None
) -> httpx.Response:
    """Return the whole answer to a POST. timeout: seconds of each phase. Raises `httpx.TransportError`.

    It has no cookies, redirects or authentication, which cost `httpx.AsyncClient` CPU time at each call.
    """
    async with open_post(transport, url, content, headers=headers, timeout=timeout) as reply:
        await reply.aread()
    return reply


@contextlib.asynccontextmanager
async def open_post(
    transport: httpx.AsyncBaseTransport, url: str, content: bytes, *, headers: Mapping[str, str], timeout: float | None
) -> AsyncGenerator[httpx.Response]:
    """Open the answer to a POST: its body is read as a stream within the block. Otherwise as `post`."""
    limits: _Timeout = dict.fromkeys(("connect", "read", "write", "pool"), timeout)
    if isinstance(transport, AiohttpTransport):
        with _httpx_errors():
            address = URL(url)
        reply = await transport.send("POST", address, headers.items(), content, limits)
    else:
        try:
            request = httpx.Request("POST", url, content=content, headers=headers, extensions={"timeout": limits})
        except (httpx.InvalidURL, UnicodeError) as error:
            raise httpx.LocalProtocolError(f"the request cannot be sent: {error}") from error
        reply = await transport.handle_async_request(request)
    try:
        yield reply
    finally:
        await reply.aclose()


class _Resolver(AbstractResolver):
    """Resolves names. aiohttp connects to a host that is an IP address without it."""

    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST,
            )
            for address in await self._resolve(host, port)
        ]

    async def close(self) -> None:
        pass


class _StreamedBody(httpx.AsyncByteStream):
    def __init__(self, reply: aiohttp.ClientResponse) -> None:
        self._reply = reply

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _httpx_errors():
            async for chunk in self._reply.content.iter_any():
                yield chunk

    async def aclose(self) -> None:
        # If the body was read to its end, its connection is in the pool again, and stays open.
        self._reply.close()


@contextlib.contextmanager
def _httpx_errors() -> Generator[None]:
    """Raise aiohttp's errors as those of httpx, with the error of the connection as their cause."""
    try:
        yield
    except aiohttp.ConnectionTimeoutError as error:
        raise httpx.ConnectTimeout("no connection within the time limit") from error
    except TimeoutError as error:
        raise httpx.ReadTimeout("no answer within the time limit") from error
    except aiohttp.ClientConnectorError as error:
        raise httpx.ConnectError(str(error.os_error)) from error.os_error
    except aiohttp.InvalidURL as error:
        raise httpx.UnsupportedProtocol(f"no address of HTTP: {error}") from error
    except aiohttp.ServerDisconnectedError as error:
        raise httpx.RemoteProtocolError("the server closed the connection without an answer") from error
    except (aiohttp.ClientResponseError, aiohttp.ClientPayloadError) as error:
        raise httpx.RemoteProtocolError(str(error)) from error
    except (aiohttp.ClientError, OSError) as error:
        raise httpx.ReadError(str(error)) from error
    except ValueError as error:
        raise httpx.LocalProtocolError(f"the request cannot be sent: {error}") from error
