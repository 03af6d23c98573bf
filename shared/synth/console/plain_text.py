"""Foreign text made safe for a terminal: what others wrote must not move the cursor, or read as something else."""

from __future__ import annotations

import re

#: Control characters (C0 but for line break and tab, DEL, C1), marks that change the direction of what follows,
#: separators of lines that only some readers take for one, and halves of characters, which cannot be written.
_UNSAFE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)

#: A joiner of characters that has none before it.
_LONE_JOINER = re.compile(r"(?<!\S)\u200d")


def printable(text: str) -> str:
    """Return the text with such characters shown as symbols; line breaks and tabs stay."""
    return _UNSAFE.sub(_symbol, text.replace("\r\n", "\n"))


def printable_json(text: str) -> str:
    """Return equal JSON, with such characters as escapes."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def visible_joiners(text: str) -> str:
    """Return the text, as long as before, with each joiner that joins nothing shown as a symbol.

    Rich counts the columns of a joiner at the start of a word in two ways, and fails when it wraps such a word.
    """
    return _LONE_JOINER.sub("\ufffd", text)


def _symbol(found: re.Match[str]) -> str:
    code = ord(found[0])
    return "␡" if code == 0x7F else chr(0x2400 + code) if code < 0x20 else "\ufffd"
