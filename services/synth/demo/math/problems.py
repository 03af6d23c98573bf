"""Sums of two numbers from 10 to 99, by seed: 8100 pairs, split by a fixed hash into training and held out."""

from __future__ import annotations

import functools
import random
import re
import zlib

HELD_OUT_FROM = 1_000_000
_LOW, _HIGH = 10, 99
_NUMBER = re.compile(r"-?\d+")


def is_held_out(a: int, b: int) -> bool:
    """Return whether the pair is kept out of the dataset and of training seeds; a + b goes where b + a goes."""
    return zlib.crc32(f"{min(a, b)}+{max(a, b)}".encode()) % 6 == 0


@functools.cache
def pairs(*, held_out: bool) -> list[tuple[int, int]]:
    """Return every pair of one side of the split, in an order that is always the same and looks random."""
    numbers = range(_LOW, _HIGH + 1)
    sums = [(a, b) for a in numbers for b in numbers if is_held_out(a, b) == held_out]
    random.Random(0).shuffle(sums)
    return sums


def operands(seed: int) -> tuple[int, int]:
    """Return the pair of a seed: from 1000000 on a held-out one. Seeds in a row give different pairs."""
    side = pairs(held_out=seed >= HELD_OUT_FROM)
    return side[seed % len(side)]


def question(a: int, b: int) -> str:
    """Return the user's question."""
    return f"What is {a} + {b}?"


def is_exact(text: str, a: int, b: int) -> bool:
    """Return whether the last whole number of the text is the sum."""
    numbers = _NUMBER.findall(text)
    # Digits, not int(): a model may write more of them than Python converts.
    return bool(numbers) and numbers[-1].lstrip("0") == str(a + b)
