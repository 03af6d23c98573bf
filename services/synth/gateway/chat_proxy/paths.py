"""The paths of chat completions: one route each, because clients differ in what they make of an address."""

from __future__ import annotations

_COMPLETIONS = ("/chat/completions", *(f"{p}/v1/chat/completions" for p in ("", "/api", "/api/inference", "/api/api")))
_OF_A_ROLLOUT = ("/rollouts/{credential}/v1/chat/completions", "/rollouts/{credential}/chat/completions")
_OF_A_KEY = ("/keys/{url_key}/v1/chat/completions", "/keys/{url_key}/chat/completions")
# An openai client whose base_url is `…/v1?cid=…` joins the rest of the path to the query, and posts to these.
_BASES = tuple(path.removesuffix("chat/completions") for path in _COMPLETIONS[1:])
_PLACES = (*_COMPLETIONS, *_OF_A_ROLLOUT, *_OF_A_KEY)

#: Every path but the documented `/v1/chat/completions`. An openai client whose base_url has a query adds the slash.
CHAT_PATHS = tuple(path for path in (*_PLACES, *(f"{p}/" for p in _PLACES), *_BASES) if path != "/v1/chat/completions")


def is_chat_path(method: str, path: str) -> bool:
    """Whether a request for this path, with or without a slash at its end, is a chat completion."""
    return path.rstrip("/").endswith("/chat/completions") or (method == "POST" and path in _BASES)
