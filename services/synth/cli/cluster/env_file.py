"""The `.env` of the user's project: our keys are added, nothing in it is ever changed."""

from __future__ import annotations

import os
from pathlib import Path

from synth.runtime.environment.env_file import read_env_file


def merge_env_file(path: Path, values: dict[str, str]) -> list[str]:
    """Append the keys that are not there yet; returns them. Lines, comments and values in the file stay."""
    present = read_env_file(path)
    missing = {key: value for key, value in values.items() if key not in present}
    if not missing:
        return []
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    if before and not before.endswith("\n"):
        before += "\n"
    text = before + "".join(f"{key}={value}\n" for key, value in missing.items())
    part = path.with_name(f"{path.name}.{os.getpid()}")
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    # A linked .env stays a link.
    part.replace(path.resolve())
    return list(missing)
