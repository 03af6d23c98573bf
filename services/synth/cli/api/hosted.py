"""An OpenAI-compatible API: one origin, the user's own key, and requests that are sent again while it is busy."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable
from typing import IO, Any, cast

import httpx

from synth.base_url import base_url_fault
from synth.cli.api.task_app import excerpt
from synth.cli.confirmation import confirm, remember
from synth.client.connections.clients import open_http
from synth.client.connections.config import ENVIRONMENT, ConfigValue, without_password
from synth.client.retries import backoff, retry_after
from synth.console.errors import CliError, NotAuthorised, NotFound, Unreachable, UsageProblem

Json = dict[str, Any]

#: Answers after which the same request may succeed.
_BUSY = frozenset({408, 409, 429, 500, 502, 503, 504})
#: Codes of a 429 that no waiting helps.
_SPENT = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
_PIECE = 1 << 20


class RequestRefused(CliError):
    """The API does not accept this one request."""


class NoAnswer(CliError):
    """A request has no answer that can be read, and may have been billed: it timed out, or the answer is broken."""


class HostedApi:
    """Sends requests to an API, from any number of threads.

    name: of the service, for messages. patience_s: how long a request is sent again, from its first failure.
    timeout_s: of one request; None for no limit.
    """

    def __init__(
        self,
        address: ConfigValue,
        key: ConfigValue | None,
        *,
        name: str,
        patience_s: float,
        timeout_s: float | None = 60.0,
        fix: str = "try again later",
    ) -> None:
        """Raises `UnconfirmedOrigin` for a key that may not be sent there."""
        self._http = open_http(address, key=key, timeout=httpx.Timeout(timeout_s, connect=10.0))
        self.root = address.text.rstrip("/")
        self._key = key
        self._name = name
        self._patience_s = patience_s
        self._fix = fix
        self._answered = False
        self._pause = _Pause()
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Send no request again. Requests under way go on to their end."""
        self._stopped.set()

    def get(self, path: str, params: dict[str, str] | None = None) -> Json:
        """Read one object."""
        url = self.root + path
        return self._object(self._request(lambda: self._http.get(url, params=params), url), url)

    def post(self, path: str, body: Json) -> tuple[Json, float]:
        """Send a body. Returns the object of the answer, and the seconds of this one request, pauses not counted.

        Raises `RequestRefused` if the API does not accept this body, and `NoAnswer` if the connection breaks or times
        out after the body was sent. Raises `NotAuthorised`, `NotFound`, `Unreachable` or `CliError` if no other body
        would be answered.
        """
        url = self.root + path

        def send() -> httpx.Response:
            try:
                return self._http.post(url, json=body)
            except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout):
                raise
            except httpx.TransportError as error:
                raise NoAnswer(
                    f"{self._name} has not answered ({self._http.route.reason(error)})", where=url
                ) from error

        reply = self._request(send, url)
        return self._object(reply, url), reply.elapsed.total_seconds()

    def download(self, path: str, to: IO[bytes]) -> None:
        """Write a content to a file. A download that breaks off begins again."""
        url = self.root + path

        def send() -> httpx.Response:
            to.seek(0)
            to.truncate()
            with self._http.stream("GET", url) as reply:
                if reply.status_code == 200:
                    for piece in reply.iter_bytes(_PIECE):
                        to.write(piece)
                else:
                    reply.read()
            return reply

        self._request(send, url)

    def _request(self, send: Callable[[], httpx.Response], url: str) -> httpx.Response:
        """Send, and repeat while the API is busy or away. Raises the `CliError` of the last answer."""
        deadline: float | None = None
        for attempt in itertools.count():
            self._pause.wait(self._stopped)
            pause = backoff(attempt)
            try:
                reply = send()
            except httpx.TransportError as error:
                failure: CliError = self._away(error, url)
                # An address at which nothing has answered yet is wrong, or its server is not running.
                if isinstance(error, httpx.ConnectError) and not self._answered:
                    raise failure from error
            else:
                self._answered = True
                if reply.status_code == 200:
                    return reply
                failure = self._failure(reply, url)
                if reply.status_code not in _BUSY or _error(reply).get("code") in _SPENT:
                    raise failure
                pause = max(pause, retry_after(reply) or 0.0)
                if reply.status_code == 429:
                    # The limit holds for the other threads, too.
                    self._pause.extend(pause)
            deadline = deadline or time.monotonic() + self._patience_s
            if time.monotonic() + pause > deadline or self._stopped.wait(pause):
                raise failure
        raise AssertionError("unreachable")

    def _object(self, reply: httpx.Response, url: str) -> Json:
        try:
            value = reply.json()
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise NoAnswer(f"{self._name} returns no JSON object: {excerpt(reply.text)}", where=url)
        return cast(Json, value)

    def _away(self, error: httpx.TransportError, url: str) -> CliError:
        return Unreachable(
            f"{self._name} cannot be reached ({self._http.route.reason(error)})",
            fix=self._http.route.fix(self._fix if self._answered else "is this its address, and is it running?", error),
            where=url,
        )

    def _failure(self, reply: httpx.Response, url: str) -> CliError:
        error, status = _error(reply), reply.status_code
        reason = str(error.get("message") or excerpt(reply.text))[:300]
        label = self._key.label if self._key else "a request without a key"
        if status == 401:
            fix = (
                "the key may be revoked: create another one" if self._key else "set OPENAI_API_KEY to a key of this API"
            )
            return NotAuthorised(f"{self._name} refuses {label}: {reason}", fix=fix, where=url)
        if status == 403:
            return NotAuthorised(
                f"{label} may not do this: {reason}", fix="use a key with the permission for it", where=url
            )
        if status == 404:
            return NotFound(f"{self._name} does not have it: {reason}", where=url)
        if status in (400, 413, 422):
            return RequestRefused(f"{self._name} refuses the request: {reason}")
        fix = self._fix if status in _BUSY and error.get("code") not in _SPENT else ""
        return CliError(f"{self._name} answers HTTP {status}: {reason}", fix=fix, where=url)


class _Pause:
    """A moment before which no thread sends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until = 0.0

    def extend(self, seconds: float) -> None:
        with self._lock:
            self._until = max(self._until, time.monotonic() + seconds)

    def wait(self, stopped: threading.Event) -> None:
        while (left := self._until - time.monotonic()) > 0 and not stopped.wait(left):
            pass


def model_endpoint(address: ConfigValue, *, trusted: bool) -> ConfigValue | None:
    """Check the address of an API of models. Returns OPENAI_API_KEY, None if it is not set.

    trusted: the user has confirmed the address for the key with --trust-model-url. Raises `UsageProblem` for an address
    that is no base URL, and `UnconfirmedOrigin`.
    """
    if fault := base_url_fault(address.text):
        raise UsageProblem(
            f"{without_password(address.text)!r} is no address of a model: it {fault}",
            expected="the base URL of an OpenAI-compatible endpoint, such as http://127.0.0.1:11434/v1",
            where=address.label,
        )
    text = os.environ.get("OPENAI_API_KEY")
    key = ConfigValue(text, ENVIRONMENT, "OPENAI_API_KEY") if text else None
    if trusted:
        remember("OPENAI_API_KEY", address.text)
    elif key is not None:
        confirm(key, address)
    return key


def _error(reply: httpx.Response) -> Json:
    """Return the error object of an answer; {} if it has none."""
    try:
        error = reply.json()["error"]
    except (ValueError, KeyError, TypeError):
        return {}
    return cast(Json, error) if isinstance(error, dict) else {"message": str(error)}
