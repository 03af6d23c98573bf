"""`.env` files, which hold a user's keys and addresses."""

from __future__ import annotations

import secrets
from pathlib import Path

from synth.runtime.lines import split_lines


def read_env_file(path: Path) -> dict[str, str]:
    """Return the `KEY=value` lines, without `export` and quotes; other lines and comments are skipped."""
    if not path.is_file():
        return {}
    result: dict[str, str] = {}
    for line in split_lines(path.read_text(encoding="utf-8", errors="replace")):
        key, equals, value = line.strip().removeprefix("export ").partition("=")
        key, value = key.strip(), value.strip()
        if not equals or not key or key.startswith("#"):
            continue
        if value[:1] in ("'", '"') and value[:1] in value[1:]:
            value = value[1 : value.index(value[0], 1)]
        else:
            value = value.split(" #")[0].strip()
        result[key] = value
    return result


def new_environment_key() -> str:
    """Return a new key for the user's task app."""
    return f"env_{secrets.token_hex(20)}"
