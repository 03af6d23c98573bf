"""How many tokens a file will be, about: from a sample of its rows, and without a tokenizer.

A byte-pair tokenizer of a current vocabulary (150k) makes of English text 4.2 characters a token, of other alphabets
2.4, of Chinese, Japanese and Korean 1.5, of punctuation 2, and of each digit a token. The same file has always the
same estimate.
"""

from __future__ import annotations

import re

#: The tokens that a chat template writes around a message: its beginning, role, end and newlines.
_AROUND_A_MESSAGE = 5
_FIRST_ROWS = 64
#: Prime, so that a file that repeats a pattern of rows is not sampled at the same place of it each time.
_THEN_EVERY = 61
_CHARACTERS_A_TEXT = 4096

_LATIN, _OTHER, _EAST_ASIAN, _PUNCTUATION, _DIGIT = 1 / 4.2, 1 / 2.4, 1 / 1.5, 1 / 2, 1.0
_DIGITS = re.compile(r"[0-9]")
_MARKS = re.compile(r"[!-/:-@\[-`{-~\n]")
_EAST = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uff00-\uffef]")
_BEYOND = re.compile(r"[\u0250-\U0010ffff]")


class TokenEstimate:
    """Takes each row's texts in order, and samples the first 64 rows and every 61st one after them."""

    def __init__(self) -> None:
        self._row = 0
        self._sampled = 0
        self._tokens = 0.0

    def add(self, texts: list[str]) -> None:
        """Add one row."""
        if self._row < _FIRST_ROWS or self._row % _THEN_EVERY == 0:
            for text in texts:
                seen = text[:_CHARACTERS_A_TEXT]
                self._sampled += len(seen)
                self._tokens += tokens_in(seen)
        self._row += 1

    def total(self, *, characters: int, messages: int) -> int:
        """Return the whole file's tokens, from its characters and messages."""
        rate = self._tokens / self._sampled if self._sampled else 0.0
        return round(characters * rate) + _AROUND_A_MESSAGE * messages


def tokens_in(text: str) -> float:
    """Estimate the tokens of a text."""
    digits, marks = len(_DIGITS.findall(text)), len(_MARKS.findall(text))
    east = beyond = 0
    if not text.isascii():
        east = len(_EAST.findall(text))
        beyond = len(_BEYOND.findall(text)) - east
    latin = len(text) - digits - marks - east - beyond
    return latin * _LATIN + beyond * _OTHER + east * _EAST_ASIAN + marks * _PUNCTUATION + digits * _DIGIT
