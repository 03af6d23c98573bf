"""The paths of model calls. Each has its own route, because clients derive different paths from a base URL."""

from __future__ import annotations

import re

from synth.rollout_credential import is_joined_responses

CHAT, RESPONSES = "chat/completions", "responses"
_PREFIXES = ("/v1", "/api/v1", "/api/inference/v1", "/api/api/v1")
_SECRETS = ("/rollouts/{credential}", "/keys/{url_key}")
# An openai client whose base_url is `…/v1?cid=…` joins the rest of the path to the query, and posts to these.
_BASES = tuple(f"{prefix}/" for prefix in _PREFIXES)


def _paths(end: str) -> tuple[str, ...]:
    places = [f"{prefix}/{end}" for prefix in ("", *_PREFIXES)]
    places += [f"{secret}{prefix}/{end}" for secret in _SECRETS for prefix in ("/v1", "")]
    # An openai client whose base_url has a query adds the slash.
    return tuple(path for path in (*places, *(f"{p}/" for p in places)) if path != f"/v1/{end}")


#: Every path but the documented `/v1/chat/completions` and `/v1/responses`.
CALL_PATHS = (*_paths(CHAT), *_paths(RESPONSES), *_BASES)


_FIXED = frozenset((f"/v1/{CHAT}", f"/v1/{RESPONSES}", *(path for path in CALL_PATHS if "{" not in path)))
# A wrong path below a secret matches too, so that its response is 404, not a request for another key.
_WITH_SECRET = re.compile(rf"/(?:rollouts|keys)/[^/]+/(?:.*/)?(?:{CHAT}|{RESPONSES})/?")


def is_model_call(method: str, path: str) -> bool:
    """Return whether a request for this path, with or without a slash at its end, is a call of a model.

    The whole path is compared, because names that users choose may have the same endings as these paths.
    """
    if path in _BASES:
        return method == "POST"
    return path in _FIXED or _WITH_SECRET.fullmatch(path) is not None


def called_api(path: str, query: str) -> str:
    """Return which API a call of a model is for: `CHAT` or `RESPONSES`."""
    joined = is_joined_responses(query)
    return RESPONSES if joined or path.rstrip("/").endswith(f"/{RESPONSES}") else CHAT
