"""Read the body of an answer from outside, up to a limit on both its received and its decompressed bytes.

httpx decompresses a whole chunk at once, a bomb to a thousand times its size, before anyone can count it.
"""

from __future__ import annotations

import asyncio
import zlib

import httpx

from synth.errors import SynthError
from synth.outbound.answer_memory import AnswerRoom

# Bytes of output at a time: few in relation to any limit, so that an exceeded limit is noticed soon.
_STEP = 1 << 20
#: Of a Content-Length; more digits are no size.
_SIZE_DIGITS = 18
#: Bytes that one byte of DEFLATE decompresses to, at most.
_LARGEST_RATIO = 1032
# As zlib counts: 16 for the header of gzip, the negative for none at all.
_WINDOWS = {"gzip": zlib.MAX_WBITS | 16, "x-gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}


class ReplyTooLarge(httpx.TransportError, SynthError):
    """The answer is larger than the caller takes."""


class ReplyUndecodable(httpx.DecodingError, SynthError):
    """The answer has a Content-Encoding that is not read here, or is not encoded as it declares."""


async def read_body(reply: httpx.Response, limit: int, room: AnswerRoom | None = None) -> bytes:
    """Read a streamed answer, of at most `limit` bytes before and after decompression.

    room: of the answer, if it shares the memory of its process. Raises `ReplyTooLarge`, `ReplyUndecodable`,
    `AnswerMemoryFull`, and httpx.HTTPError where the connection breaks.
    """
    encodings = [name.strip().lower() for name in reply.headers.get("content-encoding", "").split(",")]
    encodings = [name for name in encodings if name not in ("", "identity")]
    if encodings and (len(encodings) > 1 or encodings[0] not in _WINDOWS):
        raise ReplyUndecodable(
            f"the answer has Content-Encoding {', '.join(encodings)[:60]!r}; expected gzip, deflate or none"
        )
    inflater = _Inflater(encodings[0], limit) if encodings else None
    body, received = bytearray(), 0
    # Answers that take their room bit by bit could wait for each other.
    declared = 0 if inflater is not None else min(_declared_size(reply), limit)
    if room is not None:
        await room.resize(declared)
    async for chunk in reply.aiter_raw():
        received += len(chunk)
        if received > limit:
            raise _too_large(limit)
        if room is not None:
            # What a chunk decompresses to is known only once it is in memory.
            grown = len(chunk) * (1 if inflater is None else _LARGEST_RATIO)
            await room.resize(max(declared, min(len(body) + grown, limit)))
        # zlib releases the interpreter's lock: other requests go on while a large chunk is decompressed.
        body += chunk if inflater is None else await asyncio.to_thread(inflater.feed, chunk)
        if room is not None:
            await room.resize(max(declared, len(body)))
    if inflater is not None:
        inflater.finish()
    return bytes(body)


def _declared_size(reply: httpx.Response) -> int:
    """The size that an answer declares; 0 if it declares none."""
    declared = reply.headers.get("content-length", "")
    return int(declared) if declared.isascii() and declared.isdigit() and len(declared) <= _SIZE_DIGITS else 0


class _Inflater:
    """Decompresses a body that arrives in pieces. limit: bytes of the decompressed body."""

    def __init__(self, encoding: str, limit: int) -> None:
        self._encoding = encoding
        self._left = limit
        self._limit = limit
        self._decompressor = zlib.decompressobj(_WINDOWS[encoding])
        self._started = False

    def feed(self, chunk: bytes) -> bytes:
        if not self._started and chunk:
            self._started = True
            if self._encoding == "deflate" and chunk[0] & 0x0F != 8:
                # Some servers send the bare format, without the header of zlib that RFC 9110 requires.
                self._decompressor = zlib.decompressobj(-zlib.MAX_WBITS)
        out, more = bytearray(), True
        while more:
            if self._decompressor.eof:
                chunk = chunk.lstrip(b"\0")
                if not chunk:
                    break
                # A body of gzip may have several members (RFC 1952, 2.2), and zeros that fill it up.
                self._decompressor = zlib.decompressobj(_WINDOWS[self._encoding])
            room = min(_STEP, self._left + 1)
            try:
                piece = self._decompressor.decompress(chunk, room)
            except zlib.error as error:
                raise self._broken(str(error)) from error
            self._left -= len(piece)
            if self._left < 0:
                raise _too_large(self._limit)
            out += piece
            chunk = self._decompressor.unconsumed_tail or self._decompressor.unused_data
            # A full piece may leave output behind although no input is left.
            more = bool(chunk) or len(piece) == room
        return bytes(out)

    def finish(self) -> None:
        """Raise `ReplyUndecodable` unless the compressed body is whole; one of no bytes is."""
        if self._started and not self._decompressor.eof:
            raise self._broken("it ends early")

    def _broken(self, why: str) -> ReplyUndecodable:
        return ReplyUndecodable(f"the answer is not the {self._encoding} that its Content-Encoding declares: {why}")


def _too_large(limit: int) -> ReplyTooLarge:
    return ReplyTooLarge(f"the answer is larger than {limit} bytes")
