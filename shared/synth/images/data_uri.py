"""Data URIs (RFC 2397), as clients write them: the one parser."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from dataclasses import dataclass

_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_BLANKS = re.compile(r"\s+")
_STANDARD = str.maketrans("-_", "+/")
#: Characters before the comma: a media type and its parameters.
_MOST_BEFORE_COMMA = 1024
#: Characters that one call decodes. It holds the GIL until it returns: some milliseconds.
_PIECE = 1 << 16


class BadDataUri(ValueError):
    """The payload cannot be decoded."""


class DataUriTooLarge(ValueError):
    """The payload has more bytes than it may have."""


@dataclass(frozen=True, slots=True)
class DataUri:
    """A data URI whose payload is not decoded yet.

    media: the media type in lower case, "" if the URI names none. base64: whether the payload is base64; otherwise it
    is percent-encoded.
    """

    media: str
    base64: bool
    payload: str

    def decode(self, *, most: int | None = None) -> bytes:
        """Decode the payload, piece by piece: other threads go on between the pieces.

        Base64 may be of either alphabet, percent-encoded, broken into lines, and without its padding. most: bytes that
        the payload may have. Raises `BadDataUri` and `DataUriTooLarge`.
        """
        decoded = bytearray()
        for piece in self._decoded_base64() if self.base64 else map(_unquote, _pieces(self.payload)):
            decoded += piece
            if most is not None and len(decoded) > most:
                raise DataUriTooLarge
        return bytes(decoded)

    def _decoded_base64(self) -> Iterator[bytes]:
        rest, padded = "", False
        for piece in _pieces(self.payload):
            text = _unquote(piece).decode(errors="replace") if "%" in piece else piece
            text = _BLANKS.sub("", text).translate(_STANDARD)
            body = text.rstrip("=")
            if padded and body:
                raise BadDataUri("the data URI is not base64 (text behind its padding)")
            padded = padded or len(body) < len(text)
            rest += body
            whole = len(rest) - len(rest) % 4
            yield _decode_base64(rest[:whole])
            rest = rest[whole:]
        yield _decode_base64(rest + "=" * (-len(rest) % 4))


def _pieces(payload: str) -> Iterator[str]:
    """Cut a payload into pieces, and through no percent-encoded byte."""
    start = 0
    while start < len(payload):
        end = start + _PIECE
        cut = payload.find("%", max(start, end - 2), end)
        end = cut if cut > start else end
        yield payload[start:end]
        start = end


def _unquote(piece: str) -> bytes:
    """Decode percent-encoded bytes as quoted-printable, in one call of C; `urllib` takes a second for each megabyte."""
    text = piece.encode(errors="replace")
    if _BAD_ESCAPE.search(text):
        raise BadDataUri(
            "the data URI is not base64 or percent-encoded (a percent sign without two hexadecimal digits)"
        )
    return binascii.a2b_qp(text.replace(b"=", b"=3D").replace(b"%", b"="))


def _decode_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadDataUri(f"the data URI is not base64 ({error})") from error


def read_data_uri(text: str) -> DataUri | None:
    """Split a data URI at its comma; None for text that is no data URI, or has more than a media type before it."""
    start = len(text) - len(text.lstrip())
    if text[start : start + 5].lower() != "data:":
        return None
    comma = text.find(",", start, start + _MOST_BEFORE_COMMA)
    if comma < 0:
        return None
    media, *options = (part.strip().lower() for part in text[start + 5 : comma].split(";"))
    return DataUri(media, "base64" in options, text[comma + 1 :])
