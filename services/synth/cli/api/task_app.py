"""The client of a running task app: one environment at an address, opened by the environment key."""

from __future__ import annotations

from types import TracebackType
from typing import Any, cast

import httpx

from synth.base_url import base_url_fault
from synth.client.connections.clients import open_http
from synth.client.connections.config import ConfigValue, without_password
from synth.console.errors import CliError, UsageProblem

#: Seconds for a question that takes no rollout.
_PATIENCE_S = 10.0
_REFUSALS = (400, 401, 403)
#: The headers that task apps read the environment key from.
_KEY_HEADERS = ("X-API-Key", "X-API-Keys", "Authorization")


class TaskAppError(CliError):
    """The task app does not answer, or its answer does not follow the task-app contract."""


class RefusedByTaskApp(TaskAppError):
    """The task app does not take the environment key."""


class NotAnAddress(UsageProblem):
    """The value for a task app's address is no valid address."""


class TaskAppConnection:
    """Calls one task app. key: the environment key, if any. transport: of an app in this process."""

    def __init__(
        self, address: ConfigValue, key: ConfigValue | None, *, transport: httpx.BaseTransport | None = None
    ) -> None:
        require_address(address)
        self.url = address.text.rstrip("/")
        self._key = key
        self._http = open_http(address, key=key, headers=_KEY_HEADERS, timeout=_PATIENCE_S, transport=transport)

    def __enter__(self) -> TaskAppConnection:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._http.close()

    def task_info(self) -> dict[str, Any]:
        """Return the app's description. Raises `TaskAppError`."""
        return self.answer("GET", "/task_info")

    def answer(self, method: str, path: str, *, json: Any = None, timeout: float | None = None) -> dict[str, Any]:
        """Return the JSON object of an answer of status 200. timeout: seconds for all of it. Raises `TaskAppError`."""
        reply = self.reply(method, path, json=json, timeout=timeout)
        if reply.status_code in _REFUSALS:
            raise self.refused(path, reply.status_code)
        if reply.status_code != 200:
            raise TaskAppError(f"answers HTTP {reply.status_code}: {excerpt(reply.text)}", where=self.url + path)
        return self.json_of(path, reply)

    def reply(self, method: str, path: str, *, json: Any = None, timeout: float | None = None) -> httpx.Response:
        """Whatever the app answers. Raises `TaskAppError` when it does not."""
        try:
            return self._http.request(method, self.url + path, json=json, timeout=timeout or _PATIENCE_S)
        except httpx.TimeoutException as error:
            what = f"does not answer within {timeout or _PATIENCE_S:g} s"
            raise TaskAppError(
                what, fix=self._http.route.fix("is it running?", error), where=self.url + path
            ) from error
        except httpx.TransportError as error:
            fix = self._http.route.fix("is it running, and is this its address?", error)
            raise TaskAppError(
                f"cannot be reached ({self._http.route.reason(error)})", fix=fix, where=self.url + path
            ) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise TaskAppError(f"cannot be read ({error or type(error).__name__})", where=self.url + path) from error

    def json_of(self, path: str, reply: httpx.Response) -> dict[str, Any]:
        """Return the object in an answer. Raises `TaskAppError`."""
        try:
            body = reply.json()
        except ValueError:
            body = None
        if not isinstance(body, dict):
            what = f"does not answer a JSON object: {excerpt(reply.text)}"
            raise TaskAppError(what, fix="is it a task app?", where=self.url + path)
        return cast(dict[str, Any], body)

    def refused(self, path: str, status: int) -> RefusedByTaskApp:
        """Return the error for a key that does not open the app."""
        if self._key is None:
            what, fix = "requires a key, and no ENVIRONMENT_API_KEY is set here", "set it to the key of the app"
        else:
            what = f"refuses the environment key, {self._key.label}"
            fix = "start it with this key, or set the one that it was started with"
        return RefusedByTaskApp(f"{what} (HTTP {status})", fix=fix, where=self.url + path)


def require_address(address: ConfigValue) -> None:
    """Raise `NotAnAddress` if no task app can be at this address."""
    if fault := base_url_fault(address.text):
        what = f"{without_password(address.text)!r} is not the address of a task app: it {fault}"
        raise NotAnAddress(what, expected="a URL such as http://127.0.0.1:8001", where=address.label)


def turns_of(info: dict[str, Any]) -> int | None:
    """Return the turns of an app's task, from its answer about itself; None if it has no such limit."""
    limits = info.get("limits")
    turns = cast(dict[str, Any], limits).get("max_turns") if isinstance(limits, dict) else None
    return turns if isinstance(turns, int) and not isinstance(turns, bool) and turns > 0 else None


def excerpt(text: str) -> str:
    """Return the beginning of an answer, on one line."""
    line = " ".join(text[:400].split())
    return repr(line if len(line) <= 120 else line[:117] + "...") if line else "nothing"
