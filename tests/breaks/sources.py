"""Lines of the product, found by their text, so that a module may move."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ("shared", "services")


def read_sources(root: Path) -> dict[Path, str]:
    """Return the text of each module of the product, by its path."""
    return {path: path.read_text() for source in SOURCES for path in sorted((root / source).rglob("*.py"))}


def place_of(text: str, modules: Mapping[Path, str]) -> Path:
    """Return the module that has this text, once. Raises `LookupError` if it occurs elsewhere too, or nowhere."""
    places = [path for path, module in modules.items() for _ in range(module.count(text))]
    if len(places) != 1:
        where = ", ".join(path.name for path in places) or "no module"
        raise LookupError(f"{where} has this text; expected one place; change tests/breaks/table.py: {text}")
    return places[0]


def has_test(root: Path, test: str) -> bool:
    """Return whether a file of tests exists, with the function that follows `::`, if any."""
    path, _, function = test.partition("::")
    return (root / path).exists() and (not function or f"def {function}(" in (root / path).read_text())
