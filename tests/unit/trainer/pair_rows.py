"""Preference pairs to train on."""

from __future__ import annotations

from typing import Any

import msgspec

from synth.chat.messages import PreferenceRow


def preference_pairs(count: int, *, first: int = 0) -> list[dict[str, Any]]:
    """Questions with two sums, of which the chosen one is said in another word than the rejected one."""
    return [
        {
            "messages": [{"role": "user", "content": f"What is {10 + i % 90} + {11 + i % 83}?"}],
            "chosen": [{"role": "assistant", "content": f"answer {21 + i % 90 + i % 83}"}],
            "rejected": [{"role": "assistant", "content": f"it is {21 + i % 90 + i % 83}"}],
        }
        for i in range(first, first + count)
    ]


def pair_rows(rows: list[dict[str, Any]]) -> list[PreferenceRow]:
    """The pairs as the trainer reads them from a file."""
    return msgspec.convert(rows, list[PreferenceRow])
