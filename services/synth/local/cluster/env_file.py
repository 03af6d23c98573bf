"""The `.env` of the user's project: keys are added, and nothing in it is changed but the address that `up` wrote."""

from __future__ import annotations

import os
from pathlib import Path

from synth.runtime.environment.env_file import read_env_file

ADDRESS = "BACKEND_BASE_URL"
#: The comment above the address that `synthctl up` wrote, and writes again when its port changes.
_OURS = "# The address of the last `synthctl up` here, which keeps it up to date while this comment stands above it."


def merge_env_file(path: Path, values: dict[str, str]) -> list[str]:
    """Append the keys that are not there yet; returns them. Lines, comments and values in the file stay."""
    present = read_env_file(path)
    missing = {key: value for key, value in values.items() if key not in present}
    if missing:
        _write(path, _text(path) + "".join(f"{key}={value}\n" for key, value in missing.items()))
    return list(missing)


def write_address(path: Path, address: str) -> bool:
    """Write a cluster's address, or change the one that was written here; returns whether the file changed.

    An address that the user wrote stays.
    """
    before = _text(path)
    lines = before.split("\n")
    ours = [n for n, line in enumerate(lines[1:], start=1) if line.startswith(f"{ADDRESS}=") and lines[n - 1] == _OURS]
    for n in ours:
        lines[n] = f"{ADDRESS}={address}"
    text = "\n".join(lines)
    if not ours and ADDRESS not in read_env_file(path):
        text = f"{before}{_OURS}\n{ADDRESS}={address}\n"
    if text == before:
        return False
    _write(path, text)
    return True


def _text(path: Path) -> str:
    """Return the file's text with a line's end at its end; "" without a file."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return text if not text or text.endswith("\n") else f"{text}\n"


def _write(path: Path, text: str) -> None:
    part = path.with_name(f"{path.name}.{os.getpid()}")
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    # A linked .env stays a link.
    part.replace(path.resolve())
