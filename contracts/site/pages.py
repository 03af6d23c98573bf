"""Arranges the pages of the repository for the site: sections as pages, and links that lead to them.

A repository's host shows a page as it is. The site differs in four ways: a page of several subjects is a page for each
section; a link to a file or folder of the code leads to a page with it; a Mermaid diagram is drawn; and the comments
that mark how a block is tested are left out.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contracts.site.sequence import draw

ROOT = Path(__file__).parents[2]
#: The navigation: each group with its pages, by their paths in the repository.
GROUPS: dict[str, tuple[str, ...]] = {
    "Tutorials": ("docs/quickstart.md", "docs/crafter.md", "docs/from-openai.md", "docs/gpu.md"),
    "How-to": (
        "docs/python.md",
        "docs/task-apps.md",
        "docs/agents.md",
        "docs/datasets.md",
        "docs/rewards.md",
        "docs/graders.md",
        "docs/judging.md",
        "docs/read-your-run.md",
        "docs/traces.md",
        "docs/vision.md",
        "docs/qlora.md",
        "docs/scale.md",
        "docs/operations.md",
        "docs/security.md",
    ),
    "Reference": (
        "docs/configs.md",
        "docs/settings.md",
        "docs/api.md",
        "docs/responses.md",
        "docs/client.md",
        "docs/sdk.md",
        "docs/events.md",
        "docs/models.md",
        "docs/client-examples.md",
    ),
    "Explanation": (
        "docs/concepts.md",
        "docs/architecture.md",
        "docs/losses.md",
        "docs/performance.md",
        "docs/decisions.md",
    ),
    "Project": ("CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md"),
}
HOME = "docs/index.md"
#: Pages of several subjects: the site has a page for each section.
SPLIT = (
    "docs/operations.md",
    "docs/security.md",
    "docs/configs.md",
    "docs/settings.md",
    "docs/api.md",
    "docs/decisions.md",
)
#: Paths of the site that differ from the path below docs/.
_ELSEWHERE = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/README.md": "benchmarks.md",
}
_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$", re.DOTALL | re.MULTILINE)
#: A code span, which is left as it is, or the end of a link, with its text if that is only the name of a page.
_LINK = re.compile(r"`[^`\n]*`|(?:\[(?:docs/)?[\w-]+\.md)?\]\((?P<link>[^)\s]+)\)")
_HEADING = re.compile(r"^(?P<level>#+) (?P<title>.+)$", re.MULTILINE)
_COMMENT = re.compile(r"^ *<!--[^\n]*-->\n", re.MULTILINE)
_LANGUAGES = {".py": "python", ".toml": "toml", ".yaml": "yaml", ".yml": "yaml", ".md": "markdown", ".json": "json"}


class BrokenLink(Exception):
    """A page links to a file or a heading that does not exist."""


@dataclass
class Part:
    """One page of the site. path: its place in the site. anchors: its headings, by their anchors."""

    path: str
    title: str
    text: str
    anchors: dict[str, str]


def slug(heading: str) -> str:
    """Return the anchor of a heading, as hosts of repositories make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def sources() -> list[str]:
    """Return every page that the site has, by its path in the repository."""
    return [HOME, *(page for group in GROUPS.values() for page in group)]


class Site:
    """The pages of a repository as the site has them."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._parts = {source: parts_of(source, (root / source).read_text()) for source in sources()}
        self._linked: set[str] = set()

    def write(self, target: Path) -> list[dict[str, Any]]:
        """Write the pages and pictures into `target`, and return the navigation as mkdocs takes it.

        Raises BrokenLink, with the page and the link.
        """
        for source, parts in self._parts.items():
            for part in parts:
                text = _prose(part.text, lambda prose, part=part, source=source: self._relink(prose, part, source))
                if part is parts[0]:
                    text += "".join(f"- [{p.title}]({Path(p.path).name})\n" for p in parts[1:])
                _write(target / part.path, _FENCE.sub(_diagram, text))
        for file in sorted((self._root / "docs").rglob("*")):
            if file.is_file() and file.suffix != ".md":
                copy = target / file.relative_to(self._root / "docs")
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, copy)
        for path in sorted(self._linked):
            _write(target / self._code_page(path), _code(self._root / path, path))
        groups = [{name: [_entry(self._parts[page]) for page in pages]} for name, pages in GROUPS.items()]
        return [{"Home": "index.md"}, *groups]

    def _relink(self, prose: str, part: Part, source: str) -> str:
        def replaced(match: re.Match[str]) -> str:
            link = match["link"]
            if link is None or "://" in link:
                return match[0]
            path, _, anchor = link.partition("#")
            named = os.path.normpath(Path(source).parent / path) if path else source
            aim, title = self._aim(named, anchor)
            if not aim:
                raise BrokenLink(f"{source} links to {link}")
            place = os.path.relpath(aim, Path(part.path).parent)
            text = f"[{title}" if match[0].startswith("[") else ""
            return f"{text}]({place}#{anchor})" if anchor else f"{text}]({place})"

        # A table's cell must escape a bar on a host of repositories; here a code span would show the backslash.
        lines = [
            re.sub(r"`[^`]*`", lambda code: code[0].replace(r"\|", "|"), line) if line.startswith("|") else line
            for line in prose.split("\n")
        ]
        return _LINK.sub(replaced, "\n".join(lines))

    def _aim(self, named: str, anchor: str) -> tuple[str, str]:
        """Return the site's page behind a link to a path of the repository, and the title there; "" if none exists."""
        if named == "README.md":
            named = HOME
        if named in self._parts:
            for part in self._parts[named]:
                if not anchor or anchor in part.anchors:
                    return part.path, part.anchors.get(anchor, part.title)
            return "", ""
        if not (self._root / named).exists():
            return "", ""
        if named.startswith("docs/"):
            return named.removeprefix("docs/"), named.removeprefix("docs/")
        self._linked.add(named)
        return self._code_page(named), named

    def _code_page(self, path: str) -> str:
        return f"code/{path}/index.md" if (self._root / path).is_dir() else f"code/{path}.md"


def parts_of(source: str, text: str) -> list[Part]:
    """Return the pages of the site that a page of the repository becomes: one, or an overview and one a section."""
    text = _COMMENT.sub("", text)
    headings = [*_headings(text)]
    title = headings[0]["title"].replace("`", "")
    path = _ELSEWHERE.get(source) or source.removeprefix("docs/")
    starts = [heading for heading in headings if heading["level"] == "##"]
    if source not in SPLIT:
        return [Part(path, title, text, _anchors(text))]
    folder = path.removesuffix(".md")
    ends = [*(start.start() for start in starts[1:]), len(text)]
    rest = [
        _section(folder, start["title"], text[start.start() : end]) for start, end in zip(starts, ends, strict=True)
    ]
    overview = text[: starts[0].start()]
    return [Part(f"{folder}/index.md", title, overview, _anchors(overview)), *rest]


def _section(folder: str, title: str, text: str) -> Part:
    raised = _prose(text, lambda prose: _HEADING.sub(lambda h: f"{h['level'][1:]} {h['title']}", prose))
    return Part(f"{folder}/{slug(title)}.md", title.replace("`", ""), raised, _anchors(raised))


def _anchors(text: str) -> dict[str, str]:
    return {slug(heading["title"]): heading["title"] for heading in _headings(text)}


def _headings(text: str) -> Iterator[re.Match[str]]:
    fences = [fence.span() for fence in _FENCE.finditer(text)]
    for heading in _HEADING.finditer(text):
        if not any(start <= heading.start() < end for start, end in fences):
            yield heading


def _prose(text: str, change: Callable[[str], str]) -> str:
    """Return the text with everything outside its fenced blocks changed."""
    pieces: list[str] = []
    at = 0
    for fence in _FENCE.finditer(text):
        pieces += [change(text[at : fence.start()]), fence[0]]
        at = fence.end()
    return "".join([*pieces, change(text[at:])])


def _diagram(fence: re.Match[str]) -> str:
    return draw(fence["text"]) if fence["language"] == "mermaid" else fence[0]


def _code(place: Path, path: str) -> str:
    """Return a page with a file of the repository, or with the list of a folder's files."""
    head = f"---\nsearch:\n  exclude: true\n---\n\n# {path}\n\n"
    if place.is_file():
        text = place.read_text()
        ticks = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", text) or [""]))
        return f"{head}{ticks}{_LANGUAGES.get(place.suffix, 'text')}\n{text.rstrip()}\n{ticks}\n"
    rows = [
        f"| `{file.relative_to(place)}` | {_summary(file)} |"
        for file in sorted(place.rglob("*"))
        if file.is_file() and "__pycache__" not in file.parts
    ]
    return f"{head}| file | about |\n|---|---|\n" + "\n".join(rows) + "\n"


def _summary(file: Path) -> str:
    """Return the first line of a module's docstring; "" for any other file."""
    text = ast.get_docstring(ast.parse(file.read_text())) if file.suffix == ".py" else None
    return (text or "").partition("\n")[0].replace("|", "\\|")


def _entry(parts: list[Part]) -> Any:
    first, *rest = parts
    return {first.title: [first.path, *({part.title: part.path} for part in rest)] if rest else first.path}


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
