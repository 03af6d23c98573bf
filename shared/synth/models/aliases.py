"""The local models that stand in for bases: one small file in the models folder, read at each look-up."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from synth.errors import UserError

#: Beside the models.
ALIASES_FILE = "aliases.json"


def read_aliases(models_dir: Path) -> dict[str, str]:
    """Return base id → id of the local model that stands in for it. Raises UserError when the file was damaged."""
    file = models_dir / ALIASES_FILE
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, str])
    except FileNotFoundError:
        return {}
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UserError(
            f"the list of stand-ins cannot be read ({error})",
            expected='JSON such as {"Qwen/Qwen3-0.6B": "tiny-qwen3"}',
            fix="mend the file, or remove it and run `synthctl models alias` again",
            where=str(file),
        ) from error


def write_aliases(models_dir: Path, aliases: dict[str, str]) -> None:
    """Replace the list in one move, so that a concurrent reader gets the old one or the new one."""
    text = msgspec.json.format(msgspec.json.encode(aliases, order="sorted"), indent=2) + b"\n"
    part = models_dir / f".{ALIASES_FILE}.{os.getpid()}"
    part.write_bytes(text)
    part.replace(models_dir / ALIASES_FILE)
