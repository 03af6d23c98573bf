"""The environment key, which decides the callers of a task app."""

from __future__ import annotations

import hmac
import os
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

#: The variables that a task app's keys are read from.
KEY_VARIABLES = ("ENVIRONMENT_API_KEY", "DEV_ENVIRONMENT_API_KEY", "ENVIRONMENT_API_KEY_ALIASES")


def configured_keys() -> list[str]:
    """Return ENVIRONMENT_API_KEY (or DEV_ENVIRONMENT_API_KEY) and the keys of ENVIRONMENT_API_KEY_ALIASES."""
    primary = os.environ.get("ENVIRONMENT_API_KEY") or os.environ.get("DEV_ENVIRONMENT_API_KEY") or ""
    return _split(primary) + _split(os.environ.get("ENVIRONMENT_API_KEY_ALIASES", ""))


def refusal(request: Request, keys: list[str]) -> JSONResponse | None:
    """Return None, and keep the key in the request's state, if it carries one of the keys; else an error."""
    if not keys:
        return error(503, "key_not_configured", "ENVIRONMENT_API_KEY is not set on this task app")
    for given in _given(request):
        # Every key is compared, in constant time.
        if sum(hmac.compare_digest(given.encode(), key.encode()) for key in keys):
            request.state.environment_key = given
            return None
    return error(400, "unauthorised", "send the environment key in X-API-Key")


def error(status: int, code: str, message: str, **beside: Any) -> JSONResponse:
    """Return an error in the contract's shape: `{"detail": {"error": {"code", "message"}}}`.

    beside: fields beside `detail`; readers search `detail` for words that distinguish the policy's failures.
    """
    return JSONResponse({"detail": {"error": {"code": code, "message": message}}, **beside}, status_code=status)


def _given(request: Request) -> list[str]:
    keys = _split(request.headers.get("x-api-key", "")) + _split(request.headers.get("x-api-keys", ""))
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        keys += _split(token)
    return keys


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
