"""The API's errors, in one JSON shape for every cause."""

from __future__ import annotations

import sqlite3
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from nats.errors import Error as NatsError
from nats.js.errors import Error as JetStreamError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from synth.blobs import BlobCorrupt, BlobMissing
from synth.errors import MOST_PROBLEMS, Conflict, InvalidKey, Problem, Transient, UserError, shorten_problems
from synth.http_server.body import BodyTooLarge
from synth.keys import masked
from synth.runtime import logs

log = logs.get("api")

_TYPES = {
    400: "invalid_request",
    401: "authentication",
    403: "permission",
    404: "not_found",
    405: "method_not_allowed",
    408: "invalid_request",
    409: "conflict",
    413: "invalid_request",
    429: "rate_limit",
}
#: The kinds of items that the command line can list.
_LISTED = ("job", "file", "model", "key", "org")
#: The delay before a client reads a damaged item again, which only an operator can repair.
_DAMAGED_S = 60
#: Below these paths an invalid request is a 400, as a client of the OpenAI API expects.
_OPENAI = ("/v1/", "/api/v1/fine_tuning/")


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """An error. type: a stable word; problems: each with what, expected, fix and where.

    param: the invalid field of the request; code: a name for its problem. Either may be null.
    """

    message: str
    type: str
    param: str | None = None
    code: str | None = None
    problems: list[Problem] = []


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """The body of every error. detail: the message again, for clients that read this field."""

    error: ErrorBody
    detail: str


class ApiError(Exception):
    """An exception for which the API returns an error with this status."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str | None = None,
        param: str | None = None,
        code: str | None = None,
        problems: list[Problem] | None = None,
        retry_after: int | None = None,
        allow: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type or _TYPES.get(status, "error")
        self.param = param
        self.code = code
        self.problems = problems or []
        self.retry_after = retry_after
        self.allow = allow
        self.headers = headers or {}


class InvalidBody(RequestValidationError):
    """A body that does not fit the model of its route. count: of all errors, of which `errors()` has the first ones."""

    def __init__(self, errors: list[dict[str, Any]], count: int) -> None:
        super().__init__(errors)
        self.count = count


def not_found(kind: str, id: str) -> ApiError:
    """Return a 404 for an item that does not exist or is another organisation's: the caller cannot tell which."""
    fix = f"`synthctl {kind}s ls` shows yours" if kind in _LISTED else ""
    problem = Problem(what=f"there is no {kind} {id[:120]!r}", fix=fix)
    return ApiError(404, problem.text(), code=f"{kind}_not_found", problems=[problem])


def unavailable(message: str, *, retry_after: int = 2) -> ApiError:
    """Return a 503 with the time of the next try."""
    return ApiError(503, message, type="unavailable", retry_after=retry_after)


def error_response(error: ApiError) -> Response:
    """Return the response for an error."""
    body = ErrorBody(
        message=error.message, type=error.type, param=error.param, code=error.code, problems=error.problems
    )
    headers = dict(error.headers)
    if error.retry_after is not None:
        headers["Retry-After"] = str(error.retry_after)
    if error.status == 409:
        headers["X-Should-Retry"] = "false"  # the openai SDK retries a 409, and this one stays
    if error.allow is not None:
        headers["Allow"] = error.allow
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    content = msgspec.json.encode(Failure(error=body, detail=error.message))
    return Response(content, error.status, headers=headers, media_type="application/json")


#: The exceptions of request handlers that have their own response; any other exception is our fault.
KNOWN_ERRORS: tuple[type[Exception], ...] = (
    ApiError,
    UserError,
    Transient,
    Conflict,
    InvalidKey,
    BlobMissing,
    BlobCorrupt,
    BodyTooLarge,
    RequestValidationError,
    HTTPException,
    ClientDisconnect,
    UnicodeEncodeError,
    RecursionError,
    NatsError,
    JetStreamError,
    TimeoutError,
)


def respond(request: Request, error: Exception) -> Response:
    """Return the response for an exception in a request's handler."""
    failure = _to_api_error(error, request)
    if isinstance(error, RequestValidationError) and request.url.path.startswith(_OPENAI):
        failure.status = 400
    if failure.status >= 500:
        trace, path = request.headers.get("traceparent"), masked(request.url.path)
        log.error("request failed", method=request.method, path=path, traceparent=trace, error=repr(error))
    return error_response(failure)


def install_handlers(app: FastAPI) -> None:
    """Register the handlers that return every kind of error in one shape."""

    async def handle(request: Request, error: Exception) -> Response:
        if _to_api_error(error, request).status == 500 and await _is_damage(error, request):
            error = unavailable("the gateway's read model is damaged and is made anew from the log; try again")
        return respond(request, error)

    for kind in (*KNOWN_ERRORS, sqlite3.Error, msgspec.DecodeError, Exception):
        app.add_exception_handler(kind, handle)


async def _is_damage(error: Exception, request: Request) -> bool:
    """Return whether an unexpected error comes from a read model that is damaged or was replaced since."""
    damage = await request.app.state.gateway.hub.find_damage_if_due()
    return damage is not None or isinstance(error, sqlite3.Error)


def _to_api_error(error: Exception, request: Request) -> ApiError:
    match error:
        case ApiError():
            return error
        case BodyTooLarge():
            return ApiError(413, str(error), problems=error.problems)
        case UserError():
            return ApiError(400, str(error), problems=error.problems)
        case RequestValidationError():
            errors = error.errors()
            count = error.count if isinstance(error, InvalidBody) else len(errors)
            problems = shorten_problems([_problem(e) for e in errors[:MOST_PROBLEMS]], of=count)
            message = "; ".join(p.text() for p in problems)
            param = problems[0].where.partition(".")[2] or None
            return ApiError(422, message, type="invalid_request", param=param, problems=problems)
        case UnicodeEncodeError():
            # Only text from a client can contain half of a surrogate pair.
            return ApiError(400, "the request holds text that is not Unicode: half of a surrogate pair")
        case ClientDisconnect():
            return ApiError(400, "the client hung up before the end of its body")
        case RecursionError():
            return ApiError(400, "the request is nested too deeply")
        case Conflict() | InvalidKey():
            return ApiError(409, str(error))
        case BlobMissing():
            return ApiError(410, str(error), type="gone")
        case BlobCorrupt():
            return unavailable(f"{error}: the operator can restore it from a backup", retry_after=_DAMAGED_S)
        case Transient():
            return unavailable(str(error), retry_after=max(1, round(error.delay or 2)))
        case NatsError() | JetStreamError() | TimeoutError():
            return unavailable(f"the event log does not answer ({error!r}); try again")
        case HTTPException():
            return _from_framework(error, request)
        case _:
            return ApiError(500, "this is our fault: the gateway's log has the details", type="internal")


def _from_framework(error: HTTPException, request: Request) -> ApiError:
    """Return the error for a request that Starlette refuses: an unknown route or method, an unreadable body."""
    allowed = (error.headers or {}).get("Allow")
    route = f"{request.method} {masked(request.url.path[:200])}"
    if error.status_code == 404:
        served = ", ".join(request.app.state.openai_paths)
        expected = f"of OpenAI's API one of {served}" if request.url.path.startswith("/v1/") else ""
        problem = Problem(what=f"there is no route {route}", expected=expected, fix="GET /openapi.json has all of them")
    elif error.status_code == 405:
        problem = Problem(what=f"there is no route {route}", expected=f"the method {allowed or 'of the route'}")
    else:
        return ApiError(error.status_code, str(error.detail))
    return ApiError(error.status_code, problem.text(), problems=[problem], allow=allowed)


def _problem(error: dict[str, Any]) -> Problem:
    where = ".".join(str(part) for part in error.get("loc", ())).encode(errors="backslashreplace").decode()
    given = error.get("input")
    # The input of a missing field is the whole body, which may be long and contain secrets.
    shown = f" (got {str(given)[:80]!r})" if isinstance(given, str | int | float | bool) else ""
    if error.get("type") == "json_invalid":
        reason, at = error.get("ctx", {}).get("error", ""), error["loc"][-1]
        return Problem(what=f"the body is not JSON: {reason} at character {at}", where="body")
    if where == "body" and error.get("type") in ("model_attributes_type", "missing"):
        return Problem(
            what="the body is no JSON object", expected="one, with `Content-Type: application/json`", where=where
        )
    if error.get("type") == "extra_forbidden":
        return Problem(what=f"there is no such field{shown}", fix="remove it", where=where)
    return Problem(what=f"{error.get('msg', 'not valid')}{shown}", where=where)
