"""Our errors in OpenAI's format, `{"error": {message, type, param, code}}`, with the fields that the gateway adds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec
from starlette.responses import Response

from synth.errors import InvalidKey, Problem, SynthError, Transient, UserError
from synth.http_server.body import BodyTooLarge
from synth.inference.engines.limits import ContextOverflow
from synth.inference.recording.recorder import CallBudgetExceeded, CidClosed
from synth.inference.tokenizers import NoChatTemplate

Rename = Callable[[str], str]

# error -> (status, type, code); the first that fits.
_KINDS: list[tuple[type[SynthError], tuple[int, str, str]]] = [
    (InvalidKey, (401, "authentication_error", "invalid_api_key")),
    (CidClosed, (401, "authentication_error", "rollout_closed")),
    (CallBudgetExceeded, (429, "rate_limit_error", "call_budget_spent")),
    (BodyTooLarge, (413, "invalid_request_error", "body_too_large")),
    (Transient, (503, "service_unavailable", "not_ready")),
    (ContextOverflow, (400, "invalid_request_error", "context_length_exceeded")),
    (UserError, (400, "invalid_request_error", "invalid_request")),
    (NoChatTemplate, (409, "invalid_request_error", "no_chat_template")),
    (SynthError, (500, "server_error", "internal_error")),
]


def error_body(error: SynthError, rename: Rename = str) -> dict[str, Any]:
    """Return the JSON of an error. Several problems make one message; `param` is the field of the first.

    rename: changes texts that name fields of a chat, for an API with other names.
    """
    _, kind, code = _classify(error)
    problems = error.problems if isinstance(error, UserError) else []
    message = str(error)
    if rename is not str and problems:
        problems = [renamed(problem, rename) for problem in problems]
        message = message if isinstance(error, ContextOverflow) else str(UserError(problems))
    param = (problems[0].where or None) if problems else None
    fields = {"message": message, "type": kind, "param": param, "code": code, "problems": problems}
    return {"error": fields, "detail": message}


def renamed(problem: Problem, rename: Rename) -> Problem:
    """Return a problem whose texts are changed."""
    texts = {name: rename(getattr(problem, name)) for name in Problem.__struct_fields__}
    return Problem(**texts)


def error_response(error: SynthError, rename: Rename = str) -> Response:
    """Return the HTTP response for an error."""
    status, _, _ = _classify(error)
    headers: dict[str, str] = {}
    if isinstance(error, Transient):
        headers["retry-after"] = str(math.ceil(error.delay or 1))
    if isinstance(error, CallBudgetExceeded):
        headers["x-should-retry"] = "false"  # the openai SDK retries a 429, and this one stays
    return Response(
        msgspec.json.encode(error_body(error, rename)), status, headers=headers, media_type="application/json"
    )


def _classify(error: SynthError) -> tuple[int, str, str]:
    if isinstance(error, UserError) and error.problems[0].where == "model":
        return 404, "invalid_request_error", "model_not_found"
    return next(answer for kind, answer in _KINDS if isinstance(error, kind))
