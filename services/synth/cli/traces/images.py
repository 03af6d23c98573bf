"""The images of a trace, which it names by digest, as data URLs: a file that holds them needs no cluster."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, cast

from synth.images.format import read_image_format

_BLOB = re.compile(r"blob://orgs/[^/]+/images/([0-9a-f]{64})", re.A)
#: Images in the cache, since a rollout shows the same ones turn after turn.
_HELD = 64


class ImageGone(Exception):
    """An image that a trace names is not on the cluster any more."""


class Images:
    """Reads images by their digests. fetch: returns None for one that is gone."""

    def __init__(self, fetch: Callable[[str], bytes | None]) -> None:
        self._url = lru_cache(maxsize=_HELD)(lambda digest: _data_url(fetch(digest), digest))

    def inline(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return the message with its images in it. Raises `ImageGone`. An image by another address stays as it is."""
        parts = message.get("content")
        if not isinstance(parts, list):
            return message
        return message | {"content": [self._part(part) for part in cast(list[Any], parts)]}

    def _part(self, part: Any) -> Any:
        if not isinstance(part, dict):
            return part
        fields = cast(dict[str, Any], part)
        shown = fields.get("image")
        blob = _BLOB.fullmatch(shown) if fields.get("type") == "image" and isinstance(shown, str) else None
        return fields if blob is None else {"type": "image_url", "image_url": {"url": self._url(blob[1])}}


def _data_url(body: bytes | None, digest: str) -> str:
    if body is None:
        raise ImageGone(digest)
    return f"data:image/{read_image_format(body).kind};base64,{base64.b64encode(body).decode()}"
