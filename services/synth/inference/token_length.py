"""How much text one token of a tokenizer can stand for.

A text that has more than so much for every token of a context cannot fit it, and need not be tokenised to know that.

Byte-level BPE alone has a bound: every byte is in its vocabulary, so each byte of a text belongs to one token, whose
length is known. A pipeline in which a step removes text has none: other normalizers, pre-tokenizers that drop white
space, added tokens that take the blanks beside them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, cast

from synth.inference.token_bytes import BYTES

#: NFC composes up to three characters to one of two bytes (u, diaeresis and macron), and none to fewer bytes for each.
_CHARACTERS_PER_BYTE_OF_NFC = 1.5
#: Pre-tokenizers that cut a text and keep all of it; `Split` does so unless it removes its matches.
_CUTS = {"Split", "Digits", "ByteLevel"}


def most_characters_per_token(backend: Any) -> float | None:
    """Return the most characters that a token of a fast tokenizer's backend stands for; None without a bound."""
    cuts = list(_steps(backend.pre_tokenizer, "pretokenizers"))
    normalizers = list(_steps(backend.normalizer, "normalizers"))
    kinds = {step["type"] for step in cuts}
    if "ByteLevel" not in kinds or not kinds <= _CUTS or any(step.get("behavior") == "Removed" for step in cuts):
        return None
    if any(step["type"] != "NFC" for step in normalizers):
        return None
    model = backend.model
    if type(model).__name__ != "BPE" or model.continuing_subword_prefix or model.end_of_word_suffix:
        return None
    added = backend.get_added_tokens_decoder().values()
    if any(token.lstrip or token.rstrip for token in added):
        return None
    vocabulary: dict[str, int] = backend.get_vocab(with_added_tokens=False)
    if not vocabulary.keys() >= BYTES.keys():
        return None
    # A character of a piece stands for one byte.
    longest = max(max(map(len, vocabulary)), max((len(token.content.encode()) for token in added), default=0))
    return longest * (_CHARACTERS_PER_BYTE_OF_NFC if normalizers else 1.0)


def _steps(part: Any, listed: str) -> Iterator[dict[str, Any]]:
    """Yield the steps of a normalizer or pre-tokenizer, as its own JSON describes them."""
    if part is None:
        return
    waiting: list[dict[str, Any]] = [json.loads(part.__getstate__())]
    while waiting:
        step = waiting.pop()
        if step["type"] == "Sequence":
            waiting += cast(list[dict[str, Any]], step[listed])
        else:
            yield step
