"""The client of a running task app: one environment at an address, opened by the environment key."""

from __future__ import annotations

from types import TracebackType
from typing import Any, cast
from urllib.parse import urlsplit

import httpx

from synth.cli.config import LOOPBACK
from synth.cli.errors import CliError, UsageProblem

#: Seconds for a question that takes no rollout.
_PATIENCE_S = 10.0
_REFUSALS = (400, 401, 403)


class TaskAppError(CliError):
    """The task app does not answer, or not what a task app answers."""


class RefusedByTaskApp(TaskAppError):
    """The task app does not take the environment key."""


class TaskAppConnection:
    """Asks one task app. transport: of an app in this process; None reaches the address."""

    def __init__(self, url: str, key: str | None, *, transport: httpx.BaseTransport | None = None) -> None:
        try:
            parts = urlsplit(url)
            host = parts.hostname
            _ = parts.port
        except ValueError:
            parts, host = urlsplit(""), None
        if parts.scheme not in ("http", "https") or not host:
            expected = "a URL such as http://127.0.0.1:8001"
            raise UsageProblem(f"{url!r} is not the address of a task app", expected=expected)
        self.url = url.rstrip("/")
        headers = {"X-API-Key": key, "X-API-Keys": key, "Authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.Client(headers=headers, transport=transport, trust_env=host not in LOOPBACK)

    def __enter__(self) -> TaskAppConnection:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._http.close()

    def task_info(self) -> dict[str, Any]:
        """What the app is about. Raises `TaskAppError`."""
        return self.answer("GET", "/task_info")

    def answer(self, method: str, path: str, *, json: Any = None, timeout: float | None = None) -> dict[str, Any]:
        """An answer of status 200, a JSON object. timeout: seconds for it all. Raises `TaskAppError`."""
        reply = self.reply(method, path, json=json, timeout=timeout)
        if reply.status_code in _REFUSALS:
            raise self.refused(path, reply)
        if reply.status_code != 200:
            raise TaskAppError(f"answers HTTP {reply.status_code}: {excerpt(reply.text)}", where=self.url + path)
        return self.json_of(path, reply)

    def reply(self, method: str, path: str, *, json: Any = None, timeout: float | None = None) -> httpx.Response:
        """Whatever the app answers. Raises `TaskAppError` when it does not."""
        try:
            return self._http.request(method, self.url + path, json=json, timeout=timeout or _PATIENCE_S)
        except httpx.TimeoutException as error:
            what = f"does not answer within {timeout or _PATIENCE_S:g} s"
            raise TaskAppError(what, fix="is it running?", where=self.url + path) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            what = f"cannot be reached ({error or type(error).__name__})"
            raise TaskAppError(what, fix="is it running, and is this its address?", where=self.url + path) from error

    def json_of(self, path: str, reply: httpx.Response) -> dict[str, Any]:
        """The object in an answer. Raises `TaskAppError`."""
        try:
            body = reply.json()
        except ValueError:
            body = None
        if not isinstance(body, dict):
            what = f"does not answer a JSON object: {excerpt(reply.text)}"
            raise TaskAppError(what, fix="is it a task app?", where=self.url + path)
        return cast(dict[str, Any], body)

    def refused(self, path: str, reply: httpx.Response) -> RefusedByTaskApp:
        """That the key does not open the app."""
        return RefusedByTaskApp(
            f"refuses the environment key (HTTP {reply.status_code})",
            fix="start it with the ENVIRONMENT_API_KEY that is set here",
            where=self.url + path,
        )


def excerpt(text: str) -> str:
    """The beginning of what was answered, on one line."""
    line = " ".join(text[:400].split())
    return repr(line if len(line) <= 120 else line[:117] + "...") if line else "nothing"
