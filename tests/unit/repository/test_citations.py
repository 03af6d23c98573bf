"""What pages and comments name is there: files, modules, identifiers, events, commands, settings and decisions."""

from __future__ import annotations

import gc
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from synth.events.catalogue import CATALOGUE
from tests.unit.repository.citations import (
    GENERATED,
    ROOT,
    SOURCES,
    Vocabulary,
    cited_decisions,
    cited_events,
    cited_identifiers,
    cited_modules,
    cited_paths,
    command_line,
    is_module,
    is_path,
    prose_of,
    python_files,
    quoted,
)

DECISIONS = ROOT / "docs/decisions.md"
PAGES = [
    page
    for page in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "benchmarks").rglob("*.md")])
    if page.name not in GENERATED
]
FILES = python_files(*SOURCES)
_MERMAID = re.compile(r"```mermaid\n(.*?)```", re.DOTALL)
_SHELL = re.compile(r"```bash\n(.*?)```", re.DOTALL)


@pytest.fixture(scope="module", autouse=True)
def _without_the_collector() -> Iterator[None]:
    """The trees of all files stay: the collector would go through them again and again, for a third of the time."""
    gc.disable()
    yield
    gc.enable()


def name(file: Path) -> str:
    return str(file.relative_to(ROOT))


@cache
def vocabulary() -> Vocabulary:
    """The names of the code; tests do not count, for they may name what is gone."""
    code = python_files(*(folder for folder in SOURCES if folder != "tests"))
    named = ("pyproject.toml", "docker-compose.yml", ".importlinter", "Makefile", "docs/settings.md", "docs/configs.md")
    deploy = [file for file in (ROOT / "deploy").iterdir() if file.is_file()]
    return Vocabulary(code, [*(ROOT / other for other in named), *deploy])


def unknown_in_code(texts: list[str]) -> list[str]:
    """What is cited in these texts, pages or prose of the code, and is not there."""
    text = "\n".join(texts)
    missing = [path for path in cited_paths(text) if not is_path(path)]
    missing += [module for module in cited_modules(text) if not is_module(module)]
    missing += [f"decision {n}" for n in cited_decisions(text) if n not in decisions()]
    return missing


def unknown_events(text: str) -> list[str]:
    return [event for event in cited_events(text) if event not in CATALOGUE and not vocabulary().has_dotted(event)]


def unknown_identifiers(text: str) -> list[str]:
    known = vocabulary()
    names = [identifier for code in quoted(text) for identifier in cited_identifiers(code)]
    # Prometheus names a counter so by itself.
    return [n for n in names if n not in known and n.removesuffix("_total") not in known]


def unknown_commands(text: str) -> list[str]:
    """Quoted commands, `make …`, `synthctl …` and `synthd …`, that do not exist, or lack an option that is named."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    missing: list[str] = []
    for code in quoted(text):
        if (made := re.match(r"make ([a-z][\w-]*)", code)) and made[1] not in targets:
            missing.append(code)
        if code.startswith(("synthctl ", "synthd ")) and not _is_command(*shlex.split(code)):
            missing.append(code)
    return missing


def _is_command(program: str, *words: str) -> bool:
    command = command_line(program)
    rest = iter(words)
    while hasattr(command, "commands"):
        word = next(rest, None)
        # In capitals: any of them.
        if word is None or word in ("…", "...") or word.isupper():
            return True
        if word not in command.commands:
            return False
        command = command.commands[word]
    options = {option for parameter in command.params for option in parameter.opts}
    return all(word.partition("=")[0] in {*options, "--help"} for word in rest if word.startswith("--"))


@cache
def decisions() -> frozenset[int]:
    return frozenset(map(int, re.findall(r"^### (\d+)\. ", DECISIONS.read_text(), re.MULTILINE)))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_what_a_page_names_is_there(page: Path):
    text = page.read_text()
    pieces = quoted(text)
    assert unknown_in_code([*pieces, *_SHELL.findall(text), *re.findall(r"decisions? \d+", text)]) == []
    assert unknown_events("\n".join([*pieces, *_MERMAID.findall(text)])) == []
    assert unknown_identifiers(text) == []
    assert unknown_commands(text) == []


@pytest.mark.parametrize("folder", SOURCES)
def test_what_docstrings_and_comments_name_is_there(folder: str):
    missing = {name(file): unknown_in_code([prose]) for file in python_files(folder) if (prose := prose_of(file))}
    assert {file: found for file, found in missing.items() if found} == {}


def test_events_that_docstrings_and_comments_quote_are_in_the_catalogue():
    missing = {name(file): unknown_events("\n".join(quoted(prose_of(file)))) for file in FILES}
    assert {file: found for file, found in missing.items() if found} == {}


def test_decisions_are_numbered_without_a_gap():
    assert decisions() == set(range(1, len(decisions()) + 1))


def test_the_tree_of_the_architecture_page_is_the_tree_of_the_code():
    (tree,) = re.findall(r"```text\n(shared/synth/\n.*?)```", (ROOT / "docs/architecture.md").read_text(), re.DOTALL)
    shown: list[str] = []
    above: list[str] = []
    for line in filter(str.strip, tree.splitlines()):
        indent, place = re.match(r"( *)(\S+)", line).groups()  # type: ignore[union-attr]
        if place.endswith("/"):
            above = [*above[: len(indent) // 2], place]
            shown.append("".join(above).rstrip("/"))
    rooms = [
        folder
        for root in (ROOT / "shared/synth", ROOT / "services/synth")
        for folder in [root, *root.glob("*/"), *root.glob("*/*/")]
        if any(folder.iterdir()) and folder.name != "__pycache__" and len(folder.relative_to(root).parts) < 3
    ]
    assert {name(room) for room in rooms} - set(shown) == set(), "rooms without a line"
    assert set(shown) - {name(room) for room in rooms} == set(), "lines without a room"


def test_the_legend_of_shapes_has_every_suffix_of_the_code():
    legend = set(re.findall(r"^\| `([A-Z])` \|", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE))
    folders = ("services/synth/trainer/learner", "services/synth/inference/engines", "shared/synth/images")
    used: set[str] = set()
    for file in python_files(*folders):
        # lora_A and lora_B are peft's names of two matrices.
        used.update("".join(re.findall(r"\b(?!lora_)[a-z]\w*_([A-Z]{1,5})\b", file.read_text())))
    assert used == legend


STALE = """\
see shared/synth/no_such.py
see bus/no_such.py
in docs/no_such.md
in tests/no_such/
design/training.md
synth.bus.no_such
synth.service.no_such
python -m contracts.no_such
decision 999
"""
SOUND = """\
shared/synth/work.py
bus/tasks/worker.py
tests/unit/
shared/synth/*.py
services/synth/<service>/app.py
the file services/synth/gateway/settings.py.
synth.bus.tasks.worker
synth.service.run
python -m contracts.layout
configs/rl.toml:14 is a place in a user's file
decision 24
https://example.com/docs/no_such.md
POST /rollout and/or GET /health
"""


@pytest.mark.parametrize("line", STALE.splitlines())
def test_a_stale_citation_in_prose_is_found(line: str):
    assert len(unknown_in_code([line])) == 1


@pytest.mark.parametrize("line", SOUND.splitlines())
def test_a_sound_citation_in_prose_is_left_alone(line: str):
    assert unknown_in_code([line]) == []


@pytest.mark.parametrize(
    ("finds", "stale", "sound"),
    [
        (unknown_events, "train.stepped_on", "train.step"),
        (unknown_events, "policy.publish", "policy.published in rollout.toml"),
        (unknown_identifiers, "`NoSuchClass`", "`TaskApp`"),
        (unknown_identifiers, "`no_such_function(x)`", "`on_event`"),
        (unknown_identifiers, "`NO_SUCH`", "`SERVICES`"),
        (unknown_commands, "`make no-such`", "`make lint`"),
        (unknown_commands, "`synthctl jobs vanish JOB`", "`synthctl jobs …` and `synthctl jobs pause JOB`"),
        (unknown_commands, "`synthctl up --no-such`", "`synthctl up --detach`"),
        (unknown_commands, "`synthd bus vanish`", "`synthd bus …` and `synthd NAME`"),
    ],
)
def test_a_stale_name_in_a_page_is_found(finds: Any, stale: str, sound: str):
    assert len(finds(stale)) == 1
    assert finds(sound) == []
