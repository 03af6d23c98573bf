"""Looking at a task app from this machine: for `doctor`, and before a job on it is submitted."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import httpx
import msgspec

from synth.cli.api.client import Client
from synth.cli.api.task_app import TaskAppConnection, TaskAppError, excerpt
from synth.cli.config import Config, ConfigValue
from synth.cli.errors import UsageProblem
from synth.cli.origins import is_loopback
from synth.cli.tui import output

#: What an app answers to a key that it does not take.
_KEY_REFUSED = (400, 401, 403)
#: What stands between this machine and an app may answer so in its place, or it is busy: nothing is known of it then.
_NOT_ITS_WORD = (407, 408, 425, 429)
_PATHS = ("/health", "/task_info")
#: Seconds for the cluster's own look: it answers within less, also where it has no answer.
_CLUSTER_S = 60.0


class Seen(StrEnum):
    """What came of looking: it is well, it says no, or what it says is no word on it."""

    WELL = "well"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class AppLook:
    """What one task app showed. found: in words."""

    seen: Seen
    found: str
    fix: str = ""


class _ClusterLook(msgspec.Struct):
    """What the cluster says of a task app, which it asked with every key that it has."""

    any_ok: bool
    detail: str = ""


def look_at(address: ConfigValue, key: ConfigValue | None) -> AppLook:
    """Request an app's health and its task. Raises `UsageProblem` for an address that cannot be called."""
    with TaskAppConnection(address, key) as app:
        for path in _PATHS:
            try:
                reply = app.reply("GET", path)
            except TaskAppError as error:
                [problem] = error.problems
                return AppLook(Seen.UNKNOWN, f"{app.url}{path} {problem.what}", problem.fix)
            if trouble := _trouble(app, path, reply):
                return trouble
    return AppLook(Seen.WELL, f"{address.text} answers /health and /task_info")


def _trouble(app: TaskAppConnection, path: str, reply: httpx.Response) -> AppLook | None:
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
        return AppLook(Seen.REFUSED, f"{where} says that it is not healthy", "see its log")
    return None


def preflight(address: ConfigValue, config: Config, client: Client) -> None:
    """Look at a job's task app before the job is submitted, and say on stderr what was seen.

    What this machine cannot see may be there for the cluster, so that it is told and nothing more: the cluster looks,
    too. What an app refuses here is asked of the cluster, which may have another key, or another way to the app.
    Raises `UsageProblem` where both say no, and `CliError` where the cluster cannot be asked.
    """
    url, key = address.text, config.environment_key
    if is_loopback(url) and not config.is_on_this_machine:
        output.warn(f"the task app {url} is at the cluster's own loopback: it was not looked at from this machine")
        return
    with output.status(f"looking at {url}"):
        look = look_at(address, key)
    if look.seen is Seen.WELL:
        takes = f", and takes {key.label}" if key else "; no ENVIRONMENT_API_KEY is set"
        output.hint(f"task app: {look.found}{takes}")
        return
    if look.seen is Seen.UNKNOWN:
        output.warn(f"the task app was not seen from this machine: {look.found}; the cluster looks at it, too")
        return
    if key is not None:
        # As a submission does it: this key is then among those that the cluster tries.
        client.add_environment_key(key.text, url)
    with output.status("asking the cluster to look at it"):
        other = client.request(
            "POST", "/rl/verify_task_app", _ClusterLook, json={"endpoint_base_url": url}, timeout=_CLUSTER_S
        )
    if other.any_ok:
        output.hint(f"task app: {look.found}; {other.detail}, says the cluster")
        return
    fix = f"{other.detail}; {look.fix}; or submit it all the same with --no-preflight"
    raise UsageProblem(look.found, expected="a task app that the cluster can use", fix=fix)
