"""An answer of the backend that is an error, as the error of synthctl that has the right exit code."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec

from synth.cli.errors import CliError, NotAuthorised, NotFound, Unreachable, UsageProblem
from synth.errors import Problem


def error_of(reply: httpx.Response) -> CliError:
    """The error to raise for an answer whose status is one of an error."""
    problems = _problems(reply)
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
            if not any(p.fix or "SYNTH_API_KEY" in p.what for p in problems):
                problems[0] = msgspec.structs.replace(problems[0], fix="check SYNTH_API_KEY (environment, then .env)")
            return NotAuthorised.of(problems)
        case 404:
            return NotFound.of(problems)
        case 400 | 413 | 415 | 422:
            return UsageProblem.of(problems)
        case _:
            return CliError.of(problems)


def _problems(reply: httpx.Response) -> list[Problem]:
    """The problems in an error of the backend; none when the body is not one of the backend's errors."""
    try:
        body = msgspec.json.decode(reply.content, type=dict[str, Any])
        error = body.get("error") or {}
        listed = msgspec.convert(error.get("problems") or [], list[Problem])
        text = str(error.get("message") or "")
    except (msgspec.DecodeError, msgspec.ValidationError, AttributeError):
        listed, text = [], ""
    return listed or ([Problem(what=text)] if text else [])
