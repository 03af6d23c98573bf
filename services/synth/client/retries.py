"""When a request is sent again."""

from __future__ import annotations

import random

import httpx


def backoff(attempt: int) -> float:
    """Return the seconds before try `attempt` + 1 (from 0): doubling from 0.2 to 5, jittered to spread clients."""
    return min(5.0, 0.2 * 2**attempt) * random.uniform(0.5, 1.0)


def is_refusal(reply: httpx.Response) -> bool:
    """Return whether an answer is an error; a redirect is one, because the key does not follow it."""
    return reply.status_code >= 400 or reply.has_redirect_location


def retry_after(reply: httpx.Response) -> float | None:
    """Return the seconds after which the server wants the request again, at least 0.1; None if it names none."""
    try:
        return max(0.1, float(reply.headers["Retry-After"]))
    except (KeyError, ValueError):
        return None
