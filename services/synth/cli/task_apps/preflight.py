"""Looking at a task app from this machine: for `doctor`, and before a job on it is submitted."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import httpx
import msgspec

from synth.cli.api.task_app import TaskAppConnection, TaskAppError, excerpt
from synth.cli.tui import output
from synth.client import Client
from synth.client.connections.config import Config, ConfigValue
from synth.client.connections.origins import is_loopback
from synth.console.errors import CliError, NotAuthorised, Unreachable, UsageProblem
from synth.taskapp.env_names import env_names, wrong_env_name

#: The statuses with which an app refuses a key.
_KEY_REFUSED = (400, 401, 403)
#: The statuses of a proxy in front of the app, or of a busy app: they show nothing about the app.
_NOT_ITS_WORD = (407, 408, 425, 429)
_PATHS = ("/health", "/task_info")
#: Seconds for the cluster's own check, which always answers within less.
_CLUSTER_S = 60.0


class Seen(StrEnum):
    """The result of a check: the app is well, it refuses, or its answer decides nothing."""

    WELL = "well"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class AppLook:
    """The result of checking one task app. found: in words. env_names: the environments that it lists."""

    seen: Seen
    found: str
    fix: str = ""
    env_names: tuple[str, ...] = ()


class _ClusterLook(msgspec.Struct):
    """The cluster's result for a task app, which it called with each of its keys."""

    any_ok: bool
    detail: str = ""


def look_at(address: ConfigValue, key: ConfigValue | None) -> AppLook:
    """Request an app's health and its task. Raises `UsageProblem` for an address that cannot be called."""
    names: tuple[str, ...] = ()
    with TaskAppConnection(address, key) as app:
        for path in _PATHS:
            try:
                reply = app.reply("GET", path)
            except TaskAppError as error:
                [problem] = error.problems
                return AppLook(Seen.UNKNOWN, f"{app.url}{path} {problem.what}", problem.fix)
            answer = _read(app, path, reply)
            if isinstance(answer, AppLook):
                return answer
            names = env_names(answer)
    return AppLook(Seen.WELL, f"{address.text} answers /health and /task_info", env_names=names)


def _read(app: TaskAppConnection, path: str, reply: httpx.Response) -> AppLook | dict[str, Any]:
    """Return the answer of an app that is well; else its problem."""
    where, status = app.url + path, reply.status_code
    if status in _KEY_REFUSED:
        [problem] = app.refused(path, status).problems
        return AppLook(Seen.REFUSED, f"{where} {problem.what}", problem.fix)
    fix = "is it a task app, and is this its address?"
    if status != 200:
        seen = Seen.REFUSED if 400 <= status < 500 and status not in _NOT_ITS_WORD else Seen.UNKNOWN
        return AppLook(seen, f"{where} answers HTTP {status}: {excerpt(reply.text)}", fix)
    try:
        body = app.json_of(path, reply)
    except TaskAppError as error:
        return AppLook(Seen.UNKNOWN, f"{where} {error.problems[0].what}", fix)
    if path == "/health" and body.get("healthy") is False:
        return AppLook(Seen.REFUSED, f"{where} reports that it is not healthy", "see its log")
    if path == "/task_info" and not body.keys() & {"taskset", "task"}:
        return AppLook(Seen.REFUSED, f"{where} answers without a task: {excerpt(reply.text)}", fix)
    return body


def preflight(address: ConfigValue, config: Config, client: Client, *, env_name: ConfigValue | None = None) -> None:
    """Check a job's task app before the job is submitted, and print the result on stderr.

    env_name: the environment that the job names, if any. If the check fails from here, the cluster checks the app: it
    may have another key, or another route to the app, so its result decides. Raises `UsageProblem` if the app refuses,
    and if it has no such environment.
    """
    url, key = address.text, config.environment_key
    if is_loopback(url) and not config.is_on_this_machine:
        look = AppLook(Seen.UNKNOWN, f"{url} is at the cluster's own loopback", "serve it where the cluster reaches it")
    else:
        with output.status(f"looking at {url}"):
            look = look_at(address, key)
    if look.seen is Seen.WELL:
        takes = f", and takes {key.label}" if key else "; no ENVIRONMENT_API_KEY is set"
        output.hint(f"task app: {look.found}{takes}")
        if env_name is not None and (
            wrong := wrong_env_name(env_name.text or None, look.env_names, where=env_name.origin, url=url)
        ):
            raise UsageProblem.of([wrong])
        return
    if key is not None:
        # A submission stores this key too, so the cluster must try it here as well.
        client.keys.add_environment_key(key.text, url)
    try:
        with output.status("waiting for the cluster to check it"):
            body, limit = {"endpoint_base_url": url}, httpx.Timeout(_CLUSTER_S)
            other = client.request("POST", "/rl/verify_task_app", _ClusterLook, json=body, limit=limit)
    except UsageProblem:
        raise
    except CliError as error:
        if look.seen is Seen.REFUSED or isinstance(error, NotAuthorised | Unreachable):
            raise
        output.warn(f"task app: {look.found}; the cluster looks at it later ({error.problems[0].what})")
        return
    if other.any_ok:
        output.hint(f"task app: {look.found}; {other.detail}, says the cluster")
        return
    anyway = "--no-preflight submits it all the same"
    raise UsageProblem(
        look.found,
        expected=f"a task app that the cluster can use; the cluster reports: {other.detail}",
        fix=f"{look.fix}{' ' if look.fix.endswith('?') else '; '}{anyway}" if look.fix else anyway,
        where=address.label,
    )
