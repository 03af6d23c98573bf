"""The two ways to send a request: a transport that blocks, and one of asyncio.

The client's logic is written once, as coroutines. On the blocking transport nothing in them ever suspends: `run` ends
such a coroutine in one step, and the synchronous client is made of these steps.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import httpx

from synth.client.connections.clients import AsyncOriginClient, OriginClient, open_async_http, open_http
from synth.client.connections.config import ConfigValue

P = ParamSpec("P")
T = TypeVar("T")


class Transport(Protocol):
    """Sends requests to one origin, and waits."""

    @property
    def http(self) -> OriginClient | AsyncOriginClient: ...

    async def send(self, request: httpx.Request) -> httpx.Response:
        """Send a request; the body of the reply is still to be read."""
        ...

    async def read(self, reply: httpx.Response) -> None: ...

    def pieces(self, reply: httpx.Response) -> AsyncIterator[bytes]: ...

    async def end(self, reply: httpx.Response) -> None: ...

    async def sleep(self, seconds: float) -> None: ...

    async def close(self) -> None: ...


class BlockingTransport:
    """Blocks the thread until a step is done."""

    def __init__(self, http: OriginClient) -> None:
        self.http = http

    @classmethod
    def of(cls, address: ConfigValue, *, key: ConfigValue, timeout: httpx.Timeout) -> BlockingTransport:
        """Open the connections. Raises `UnconfirmedOrigin` for a key that may not be sent there."""
        return cls(open_http(address, key=key, timeout=timeout))

    async def send(self, request: httpx.Request) -> httpx.Response:
        return self.http.send(request, stream=True)

    async def read(self, reply: httpx.Response) -> None:
        reply.read()

    async def pieces(self, reply: httpx.Response) -> AsyncIterator[bytes]:
        for piece in reply.iter_bytes():
            yield piece

    async def end(self, reply: httpx.Response) -> None:
        reply.close()

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - it blocks on purpose

    async def close(self) -> None:
        self.http.close()


class AsyncioTransport:
    """Lets other tasks run until a step is done."""

    def __init__(self, http: AsyncOriginClient) -> None:
        self.http = http

    @classmethod
    def of(cls, address: ConfigValue, *, key: ConfigValue, timeout: httpx.Timeout) -> AsyncioTransport:
        """Open the connections, as `BlockingTransport.of` does."""
        return cls(open_async_http(address, key=key, timeout=timeout))

    async def send(self, request: httpx.Request) -> httpx.Response:
        return await self.http.send(request, stream=True)

    async def read(self, reply: httpx.Response) -> None:
        await reply.aread()

    def pieces(self, reply: httpx.Response) -> AsyncIterator[bytes]:
        return reply.aiter_bytes()

    async def end(self, reply: httpx.Response) -> None:
        await reply.aclose()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        await self.http.aclose()


def run(step: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine on the blocking transport."""
    try:
        step.send(None)
    except StopIteration as ended:
        return ended.value
    step.close()
    raise AssertionError("a coroutine of the synchronous client was suspended")


class Blocking:
    """A part of the synchronous client. Its methods run the asynchronous part's."""

    def __init__(self, part: Any) -> None:
        self._part = part


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Blocking, P], T]:
    """Return the synchronous form of a method, with its signature and its docstring."""

    @functools.wraps(method)
    def call(self: Blocking, *args: P.args, **kwargs: P.kwargs) -> T:
        return run(method(self._part, *args, **kwargs))

    return call


def blocking_iterator(
    method: Callable[Concatenate[Any, P], AsyncGenerator[T]],
) -> Callable[Concatenate[Blocking, P], Iterator[T]]:
    """Return the synchronous form of an asynchronous generator."""

    @functools.wraps(method)
    def call(self: Blocking, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        items = method(self._part, *args, **kwargs)
        try:
            while True:
                try:
                    item = run(items.__anext__())
                except StopAsyncIteration:
                    return
                yield item
        finally:
            run(items.aclose())

    return call
