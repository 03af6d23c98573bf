"""A foreign value as plain JSON: images as their digest, and nothing that an encoder or a reader would choke on."""

from __future__ import annotations

import hashlib
from typing import Any, cast

from synth.images.data_uri import BadDataUri, DataUri, read_data_uri

#: A deeper value is shown as a word: encoders and readers of JSON recurse.
_MAX_NESTING = 64
#: How the base64 of an image file begins, by its type.
_IMAGES = {
    "iVBORw0KGgo": "image/png",
    "/9j/": "image/jpeg",
    "R0lGOD": "image/gif",
    "UklGR": "image/webp",
}
#: A shorter text is not an image.
_MIN_IMAGE_CHARS = 64
_INT_MIN, _INT_MAX = -(1 << 63), (1 << 64) - 1


def to_plain(value: Any, *, depth: int = 0) -> Any:
    """Return a copy of JSON data with valid Unicode, and images' payloads as `{"image", "bytes", "sha256"}`.

    Other values become their text.
    """
    if isinstance(value, str):
        return _plain_text(value)
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if _INT_MIN <= value <= _INT_MAX else str(value)
    if depth >= _MAX_NESTING and isinstance(value, dict | list | tuple):
        return f"[nested more than {_MAX_NESTING} deep]"
    if isinstance(value, dict):
        items = cast(dict[Any, Any], value).items()
        return {_valid(str(key)): to_plain(item, depth=depth + 1) for key, item in items}
    if isinstance(value, list | tuple):
        return [to_plain(item, depth=depth + 1) for item in cast(list[Any], value)]
    return _valid(str(value))


def _plain_text(text: str) -> Any:
    if len(text) < _MIN_IMAGE_CHARS:
        return _valid(text)
    uri = read_data_uri(text)
    if uri is not None and uri.base64:
        return _digest(uri) or _valid(text)
    for begin, kind in _IMAGES.items():
        if text.startswith(begin) and " " not in text:
            return _digest(DataUri(kind, True, text))
    return _valid(text)


def _digest(uri: DataUri) -> dict[str, Any] | None:
    """Return a file's digest; the length of an image that cannot be decoded; None for other such text."""
    try:
        body = uri.decode()
    except BadDataUri:
        return {"image": uri.media, "chars": len(uri.payload)} if uri.media.startswith("image/") else None
    return {"image": uri.media or "data", "bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()}


def _valid(text: str) -> str:
    """Return valid text: JSON may spell half of a surrogate pair, which UTF-8 cannot hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="replace").decode()
    return text
