"""Product code has one function for lines, which ends them at CR, LF and CRLF only."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

#: These also end lines at U+0085, U+2028, U+2029 and six control characters.
_SPLIT_MORE = {"splitlines", "iter_lines", "aiter_lines"}
_THE_ONE = "shared/synth/runtime/lines.py"


def splits_more(source: str) -> list[int]:
    """Return the lines of a module that use a method which ends lines at more than CR, LF and CRLF."""
    nodes = ast.walk(ast.parse(source))
    return [node.lineno for node in nodes if isinstance(node, ast.Attribute) and node.attr in _SPLIT_MORE]


def test_only_the_module_of_lines_splits_into_lines():
    using: list[str] = []
    for root in ("shared", "services", "task_apps", "examples", "demo"):
        for file in (ROOT / root).rglob("*.py"):
            name = file.relative_to(ROOT).as_posix()
            using += [f"{name}:{line}" for line in splits_more(file.read_text()) if name != _THE_ONE]
    assert not using, f"use synth.runtime.lines (for server-sent events synth.api.sse) at {', '.join(using)}"


@pytest.mark.parametrize(
    "text",
    [
        "text.splitlines()",
        "path.read_text().splitlines(keepends=True)",
        "for line in reply.iter_lines(): ...",
        "async def f(r):\n    async for line in r.aiter_lines(): ...",
        "split = str.splitlines",
    ],
)
def test_each_way_to_split_at_more_is_found(text: str):
    assert splits_more(text)
