"""The fenced blocks of the pages, and what becomes of each: it runs, it is a file, it is output, or it says why not.

How a block is marked stands in CONTRIBUTING.md, under *The blocks of the pages*.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
#: What is run in a shell, or by Python.
COMMANDS = frozenset({"bash", "sh"})
CODE = frozenset({"python"})
#: What a job file is, which is checked wherever it stands.
CONFIGS = frozenset({"toml"})
#: What only shows something.
OUTPUT = frozenset({"text", "json", "mermaid"})

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[\w-]*)\n(?P<text>.*?)^(?P=indent)```$", re.DOTALL | re.MULTILINE)
_MARK = re.compile(r"<!-- (?P<name>not run|run by|file|second terminal)(?:: (?P<value>[^\n]+))? -->\n\Z")


@dataclass(frozen=True)
class Block:
    """A block. line: of its fence, from 1. mark, value: of the comment right before it, "" where there is none."""

    page: Path
    line: int
    language: str
    text: str
    mark: str = ""
    value: str = ""

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def runs(self) -> bool:
        """Whether the page's session runs it."""
        return self.language in COMMANDS | CODE and self.mark in ("", "second terminal")

    @property
    def is_file(self) -> bool:
        """Whether the page's session saves it."""
        return self.mark == "file"


def blocks_of(page: Path) -> Iterator[Block]:
    """The blocks of a page in their order."""
    text = page.read_text()
    for fence in _FENCE.finditer(text):
        indent = fence["indent"]
        body = re.sub(rf"^{indent}", "", fence["text"], flags=re.MULTILINE)
        before = text[: fence.start()]
        mark = _MARK.search(re.sub(r"[ \t]*\Z", "", before))
        yield Block(
            page,
            before.count("\n") + 1,
            fence["language"],
            body,
            mark["name"] if mark else "",
            (mark["value"] or "") if mark else "",
        )


def session_pages() -> list[Path]:
    """The pages that have something to run."""
    return [page for page in PAGES if any(block.runs for block in blocks_of(page))]
