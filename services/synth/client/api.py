"""Requests of the backend's HTTP API: typed answers, typed errors, retries within a budget, and pages."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import httpx
import msgspec

from synth.api.limits import MAX_PAGE
from synth.client.connections.config import Config
from synth.client.errors import error_of, gave_no_score
from synth.client.retries import backoff, is_refusal, retry_after
from synth.client.transports import Transport
from synth.console.errors import Unreachable

T = TypeVar("T")

_RETRY_BUDGET_S = 5.0  # without --retry-for
_REQUEST_TIMEOUT_S = 30.0  # without --request-timeout
#: To find the worst of half a million rollouts, the backend reads all of them.
LONG_TIMEOUT_S = 300.0
_CONNECT_TIMEOUT_S = 5.0
_LONGEST_PAUSE_S = 30.0
_RETRIED = frozenset({429, 502, 503, 504})


class _Page(msgspec.Struct):
    """One page of a list. next: the cursor of the next one, if the list has cursors of its own."""

    data: msgspec.Raw
    has_more: bool = False
    next: str | None = None


class Api:
    """Sends requests to one backend with one key. Idempotent requests are retried when they fail."""

    def __init__(
        self, config: Config, open: Callable[..., Transport], *, retry_budget: float | None, timeout: float | None
    ) -> None:
        """Open the connections. open: makes their transport.

        Raises `NotAuthorised` without a key, `UnconfirmedOrigin` and `UnusableProxy`.
        """
        self.config = config
        self.root = config.backend.text
        self._backend, self._key = config.backend, config.require_api_key()
        self.retry_budget = _RETRY_BUDGET_S if retry_budget is None else retry_budget
        self._timeout = timeout
        self.transport = open(self._backend, key=self._key, timeout=self._limit(_REQUEST_TIMEOUT_S))

    async def request(self, method: str, path: str, type: type[T], **options: Any) -> T:
        """Return the answer to a request; options: as `send` takes them."""
        return self.decode((await self.send(method, path, **options)).content, type)

    async def list_of(self, path: str, type: type[T], **options: Any) -> list[T]:
        """Return the items of a list that has one page."""
        body = await self.request("GET", path, dict[str, msgspec.Raw], **options)
        if "data" not in body:
            raise self._not_a_backend("an answer without 'data'")
        return self.decode(bytes(body["data"]), list[type])

    async def pages(
        self, path: str, type: type[T], *, limit: int | None = None, params: dict[str, Any], **options: Any
    ) -> AsyncGenerator[T]:
        """Yield the first `limit` items of a list, read page by page; all of them without a limit.

        A list without cursors continues after the id of its last item.
        """
        after: Any = None
        while limit is None or limit > 0:
            size = MAX_PAGE if limit is None else min(limit, MAX_PAGE)
            page = await self.request("GET", path, _Page, params=params | {"limit": size, "after": after}, **options)
            items = self.decode(bytes(page.data), list[type])
            for item in items:
                yield item
            limit = None if limit is None else limit - len(items)
            if not page.has_more:
                return
            after = page.next or getattr(items[-1], "id", None) if items else page.next

    async def send(
        self,
        method: str,
        path: str,
        *,
        stream: bool = False,
        budget: float | None = None,
        usual: float | None = _REQUEST_TIMEOUT_S,
        limit: httpx.Timeout | None = None,
        headers: dict[str, str] | None = None,
        **options: Any,
    ) -> httpx.Response:
        """Send a request, and retry passing errors until the budget is spent. Raises the error of the last answer.

        stream: the body of the reply is still to be read. budget: seconds for all tries; None for the client's own.
        usual: seconds for one try, if the client sets none; None for no limit. limit: in place of both.
        """
        deadline = time.monotonic() + (self.retry_budget if budget is None else budget)
        if "params" in options:
            options["params"] = {name: value for name, value in options["params"].items() if value is not None}
        trace = secrets.token_hex(16)
        options["headers"] = {"traceparent": f"00-{trace}-{secrets.token_hex(8)}-01"} | (headers or {})
        options["timeout"] = limit or self._limit(usual)
        for attempt in itertools.count():
            delay = backoff(attempt)
            request = self.transport.http.build_request(method, self.root + path, **options)
            try:
                reply = await self.transport.send(request)
                if not stream or is_refusal(reply):
                    await self.transport.read(reply)
            except httpx.TransportError as error:
                if time.monotonic() + delay > deadline:
                    raise self._unreachable(error) from error
            else:
                if not is_refusal(reply):
                    return reply
                delay = min(_LONGEST_PAUSE_S, retry_after(reply) or delay)
                if reply.status_code not in _RETRIED or gave_no_score(reply) or time.monotonic() + delay > deadline:
                    raise error_of(reply, key=self._key, request_id=trace)
            await self.transport.sleep(delay)
        raise AssertionError("unreachable")

    @asynccontextmanager
    async def stream(self, method: str, path: str, **options: Any) -> AsyncIterator[httpx.Response]:
        """Open an answer whose body is read in pieces; options: as `send` takes them."""
        reply = await self.send(method, path, stream=True, **options)
        try:
            yield reply
        finally:
            await self.transport.end(reply)

    def decode(self, text: bytes | str, type: type[T]) -> T:
        """Decode the backend's JSON. Raises `Unreachable` if it is not JSON, or has another shape."""
        try:
            return msgspec.json.decode(text, type=type)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise self._not_a_backend(str(error)) from error

    def _limit(self, usual: float | None) -> httpx.Timeout:
        """Return the timeout of one request: the client's own if set, else `usual`; None for no limit."""
        seconds = usual if self._timeout is None else self._timeout
        connect = _CONNECT_TIMEOUT_S if seconds is None else min(seconds, _CONNECT_TIMEOUT_S)
        return httpx.Timeout(seconds, connect=connect)

    def _unreachable(self, error: httpx.TransportError) -> Unreachable:
        route = self.transport.http.route
        fix = route.fix("is the cluster running? `synthctl status` shows it, `synthctl up` starts it", error)
        return Unreachable(f"cannot reach the backend ({route.reason(error)})", fix=fix, where=self._where)

    def _not_a_backend(self, what: str) -> Unreachable:
        return Unreachable(
            f"what answers is not a Synth backend that this client understands ({what})",
            fix="check BACKEND_BASE_URL, and that client and cluster are of one version",
            where=self._where,
        )

    @property
    def _where(self) -> str:
        return f"{self.root} ({self._backend.origin})"
