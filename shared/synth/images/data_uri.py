"""Data URIs (RFC 2397), as clients write them: the one parser."""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

_BLANKS = re.compile(r"\s+")
_STANDARD = str.maketrans("-_", "+/")


class BadDataUri(ValueError):
    """The payload cannot be decoded."""


@dataclass(frozen=True, slots=True)
class DataUri:
    """A data URI whose payload is not decoded yet.

    media: the media type in lower case, "" if the URI names none. base64: whether the payload is base64; otherwise it
    is percent-encoded.
    """

    media: str
    base64: bool
    payload: str

    def decode(self) -> bytes:
        """Decode the payload. Raises `BadDataUri`.

        Base64 may be of either alphabet, percent-encoded, broken into lines, and without its padding.
        """
        if not self.base64:
            return unquote_to_bytes(self.payload)
        text = unquote_to_bytes(self.payload).decode(errors="replace") if "%" in self.payload else self.payload
        text = _BLANKS.sub("", text).translate(_STANDARD).rstrip("=")
        try:
            return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
        except (binascii.Error, ValueError) as error:
            raise BadDataUri(f"the data URI is not base64 ({error})") from error


def read_data_uri(text: str) -> DataUri | None:
    """Split a data URI at its comma; None for text that is no data URI."""
    start = len(text) - len(text.lstrip())
    if text[start : start + 5].lower() != "data:":
        return None
    comma = text.find(",", start)
    if comma < 0:
        return None
    media, *options = (part.strip().lower() for part in text[start + 5 : comma].split(";"))
    return DataUri(media, "base64" in options, text[comma + 1 :])
