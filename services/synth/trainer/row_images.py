"""Which images a chat row shows, by the blobs that the files service stored them as."""

from __future__ import annotations

import re
from collections.abc import Iterable

from synth.chat.messages import Message, image_address, image_parts
from synth.errors import UserError

_BLOB = re.compile(r"blob://\S+/([0-9a-f]{64})")


def shown_blobs(messages: Iterable[Message], *, most: int) -> list[str]:
    """Return the blobs of the first `most` images of each message, in order.

    Raises `UserError` for an image that is no blob: a row that no files service has rewritten.
    """
    return [_blob(image_address(part)) for message in messages for part in image_parts(message)[:most]]


def digest_of(uri: str) -> str:
    """Return the sha256 of the image of a blob, which is the last part of its name."""
    return uri.rpartition("/")[2]


def _blob(address: str) -> str:
    if _BLOB.fullmatch(address) is None:
        shown = address if len(address) <= 80 else f"{address[:77]}..."
        raise UserError(
            f"an image at {shown!r}",
            expected="the address of a blob, blob://.../<sha256>",
            fix="upload the file again: its images are stored then",
            where="messages",
        )
    return address
