"""The errors of the client: one tree, below `ClientError`.

    ClientError
    ├── UsageProblem      a value, a file or the configuration is wrong
    │   └── UnconfirmedOrigin   the key may not be sent to the address
    ├── NotAuthorised     no key, or one that may not do this
    ├── NotFound          no object has this id
    ├── Unreachable       no Synth backend answers at the address
    ├── TimedOut          the deadline of a wait is over
    ├── FailedJob         a job ended without success
    └── NoScore           a judge gave no score that can be read

Each has `problems`, a list of `Problem(what, expected, fix, where)`. An error that the backend returned also has its
HTTP `status` and a `request_id`, which is part of the `traceparent` of the request: the gateway logs it with an error
of its own (5xx). No error contains a key.
"""

from __future__ import annotations

from typing import Any, cast

import httpx
import msgspec

from synth.api.schemas import JobWithConfig
from synth.client.connections.config import ConfigValue
from synth.console.errors import (
    CliError,
    ExitCode,
    NotAuthorised,
    NotFound,
    TimedOut,
    Unreachable,
    UsageProblem,
)
from synth.errors import Problem

__all__ = [
    "ClientError",
    "FailedJob",
    "NoScore",
    "NotAuthorised",
    "NotFound",
    "TimedOut",
    "Unreachable",
    "UsageProblem",
    "error_of",
    "gave_no_score",
]

#: The class of every error of the client, which the command line gives an exit code.
ClientError = CliError
#: The type of the error of a judge that answered, and gave no score.
_NO_SCORE = "judge_unreadable"


class NoScore(CliError):
    """A judge answered as often as it may, and gave no score that can be read."""


class FailedJob(CliError):
    """A job that was waited for ended without success.

    job: as it ended: its `state` is failed, rejected or cancelled, and its `code` a stable word for why.
    """

    def __init__(self, job: JobWithConfig) -> None:
        code = f" ({job.code})" if job.code else ""
        super().__init__(f"{job.id} {job.state}{code}")
        if job.problems:
            self.problems = job.problems
            self.args = (f"{self.args[0]}: " + "\n".join(p.text() for p in job.problems),)
        self.job = job
        self.code = ExitCode.JOB_CANCELLED if job.state == "cancelled" else ExitCode.JOB_FAILED


def gave_no_score(reply: httpx.Response) -> bool:
    """Return whether an error is the judge's, who answered: the same request again would cost the same calls again."""
    return reply.status_code == 503 and _error(reply).get("type") == _NO_SCORE


def error_of(reply: httpx.Response, *, key: ConfigValue, request_id: str) -> CliError:
    """Return the error to raise for an answer whose status is an error's. key: the one that was sent."""
    error = _error_of(reply, key)
    error.status, error.request_id = reply.status_code, request_id
    return error


def _error_of(reply: httpx.Response, key: ConfigValue) -> CliError:
    if reply.has_redirect_location:
        return Unreachable(
            f"the backend's address leads to {reply.headers['location'][:200]!r}, and a key follows no redirect",
            fix="if this address is yours, set it with --backend or BACKEND_BASE_URL",
            where=f"{reply.request.method} {reply.request.url}",
        )
    problems = _problems(reply)
    if gave_no_score(reply):
        return NoScore.of(problems)
    if not problems and reply.status_code < 500 and reply.status_code not in (401, 403):
        return Unreachable(
            f"what answers here is not a Synth backend: {reply.status_code} without a reason",
            fix="check BACKEND_BASE_URL, or --backend",
            where=f"{reply.request.method} {reply.request.url}",
        )
    if not problems:
        what = f"the backend answered {reply.status_code} and no reason"
        problems = [Problem(what=what, where=f"{reply.request.method} {reply.request.url.path}")]
    match reply.status_code:
        case 401 | 403:
            # Of several places that may hold a key, the user must know which one was read.
            first = problems[0]
            where = f"{first.where}: {key.label}" if first.where else key.label
            fix = first.fix or f"check {key.label}"
            problems[0] = msgspec.structs.replace(first, where=where, fix=fix)
            return NotAuthorised.of(problems)
        case 404:
            return NotFound.of(problems)
        case 400 | 413 | 415 | 422:
            return UsageProblem.of(problems)
        case _:
            return CliError.of(problems)


def _problems(reply: httpx.Response) -> list[Problem]:
    """Return the problems in an error of the backend; none when the body is not one of the backend's errors."""
    try:
        error = _error(reply)
        listed = msgspec.convert(error.get("problems") or [], list[Problem])
        text = str(error.get("message") or "")
    except msgspec.ValidationError:
        listed, text = [], ""
    return listed or ([Problem(what=text)] if text else [])


def _error(reply: httpx.Response) -> dict[str, Any]:
    """Return the error object of an answer; {} if it has none."""
    try:
        error = msgspec.json.decode(reply.content, type=dict[str, Any]).get("error")
    except (msgspec.DecodeError, msgspec.ValidationError):
        return {}
    return cast(dict[str, Any], error) if isinstance(error, dict) else {}
