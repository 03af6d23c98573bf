"""Chat rows to fine-tune on."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec

from synth.chat.messages import TrainingRow
from synth.trainer.learner.data.token_cache import TokenCache


def addition_rows(count: int) -> list[dict[str, Any]]:
    """Additions, each with its answer."""
    return [
        {
            "messages": [
                {"role": "user", "content": f"What is {10 + i % 90} + {11 + i % 83}?"},
                {"role": "assistant", "content": f"answer {21 + i % 90 + i % 83}"},
            ]
        }
        for i in range(count)
    ]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


def token_cache(folder: Path, **changes: Any) -> TokenCache:
    """A cache of tokens in a folder."""
    return TokenCache(folder, **{"max_bytes": 1 << 40, "processes": 1, **changes})


def data_file(path: Path) -> dict[str, str]:
    """A file as the message `start` names it."""
    return {"path": str(path), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def training_rows(rows: list[dict[str, Any]]) -> list[TrainingRow]:
    """The rows as the trainer reads them from a file."""
    return msgspec.convert(rows, list[TrainingRow])
