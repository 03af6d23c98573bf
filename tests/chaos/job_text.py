"""The job files of the demo, with other numbers."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]


def demo(name: str, **changes: int) -> str:
    """A job file of the demo with other numbers."""
    lines = (ROOT / "configs" / "demo" / f"{name}.toml").read_text().splitlines()
    for key, value in changes.items():
        at = next(i for i, line in enumerate(lines) if line.startswith(f"{key} = "))
        lines[at] = f"{key} = {value}"
    return "\n".join(lines) + "\n"
