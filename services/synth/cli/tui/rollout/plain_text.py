"""Foreign text made safe for a terminal: what a model or an environment wrote must not move the cursor."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text with its control characters shown as symbols; line breaks and tabs stay."""
    return "".join(_shown(char) for char in text.replace("\r\n", "\n"))


def _shown(char: str) -> str:
    code = ord(char)
    if char in "\n\t" or (code >= 0x20 and code != 0x7F and not 0x80 <= code < 0xA0 and not _reorders(code)):
        return char
    return "␡" if code == 0x7F else chr(0x2400 + code) if code < 0x20 else "\ufffd"


def _reorders(code: int) -> bool:
    """Marks that write text from right to left, which can make a line read otherwise than it is."""
    return 0x202A <= code <= 0x202E or 0x2066 <= code <= 0x2069
