"""The bytes of single tokens, which need not be whole characters."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

_BYTE_PIECE = re.compile("<0x([0-9A-F]{2})>")


def _byte_characters() -> dict[str, int]:
    """Return the characters that byte-level BPE writes for bytes: printable ones as themselves, others from 256 on.

    https://github.com/openai/gpt-2/blob/master/src/encoder.py, `bytes_to_unicode`.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


#: The byte that each character of a byte-level vocabulary stands for.
BYTES = _byte_characters()


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """Finds the bytes of a token of one tokenizer.

    added: the text of tokens beside the model's own vocabulary, such as marks of a turn. piece: from the vocabulary's
    spelling of a token to its bytes; None for a decoder that is not known, whose tokens are decoded one by one.
    """

    backend: Any
    added: dict[int, bytes]
    piece: Callable[[str], bytes] | None

    def __call__(self, token_id: int) -> bytes:
        if (known := self.added.get(token_id)) is not None:
            return known
        piece = self.backend.id_to_token(token_id)
        if piece is None:
            return b""
        if self.piece is None:
            return self.backend.decode([token_id], skip_special_tokens=False).encode()
        return self.piece(piece)


def token_bytes(backend: Any) -> TokenBytes:
    """Read a fast tokenizer's decoder: byte-level, or of SentencePiece with or without single bytes."""
    added = {id: str(token.content).encode() for id, token in backend.get_added_tokens_decoder().items()}
    steps = list(_steps(json.loads(backend.decoder.__getstate__()))) if backend.decoder is not None else []
    kinds = {str(step.get("type")) for step in steps}
    if "ByteLevel" in kinds:
        return TokenBytes(backend, added, _byte_level)
    if kinds and kinds <= {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}:
        # `Strip` takes the space off the beginning of a whole text, which one token does not show.
        replaced = [pair for step in steps if (pair := _replacement(step)) is not None]
        if replaced:
            return TokenBytes(backend, added, lambda piece: _sentencepiece(piece, replaced))
    return TokenBytes(backend, added, None)


def _steps(decoder: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if decoder.get("type") != "Sequence":
        yield decoder
    for step in cast(list[dict[str, Any]], decoder.get("decoders") or []):
        yield from _steps(step)


def _replacement(step: dict[str, Any]) -> tuple[str, str] | None:
    if step["type"] == "Metaspace":
        return step["replacement"], " "
    pattern = step.get("pattern")
    if step["type"] == "Replace" and isinstance(pattern, dict) and "String" in pattern:
        return cast(dict[str, str], pattern)["String"], step["content"]
    return None


def _byte_level(piece: str) -> bytes:
    try:
        return bytes(map(BYTES.__getitem__, piece))
    except KeyError:  # a piece that was added to the vocabulary as plain text
        return piece.encode()


def _sentencepiece(piece: str, replaced: list[tuple[str, str]]) -> bytes:
    if single := _BYTE_PIECE.fullmatch(piece):
        return bytes([int(single[1], 16)])
    for old, new in replaced:
        piece = piece.replace(old, new)
    return piece.encode()
