"""The layout that every reader may rely on: small folders, short files, guarded rooms, one name for one class.

`python -m contracts.layout` prints what breaks a rule, one line each, and exits with 1 if anything does.
"""

from __future__ import annotations

import ast
import configparser
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: The source roots: portions of one namespace package.
ROOTS = ("shared", "services")

MOST_FILES = 14
MOST_LINES = 400
#: A boundary that names a folder also guards the file that is added to it; one that names a file does not.
MOST_SINGLE_MODULES = 5
#: Class names with two or more definitions. It may fall, and never rise.
MOST_SHARED_CLASS_NAMES = 0


def violations(root: Path = ROOT) -> list[str]:
    """Return every broken rule of the repository in `root`, as one line for a person."""
    checks = (_crowded, _long, _unguarded, _upward, _single_modules, _shared_names)
    return [line for check in checks for line in check(root)]


def _sources(root: Path) -> list[Path]:
    return sorted(file for top in ROOTS for file in (root / top).rglob("*.py"))


def _crowded(root: Path) -> Iterator[str]:
    folders: defaultdict[Path, int] = defaultdict(int)
    for file in _sources(root):
        folders[file.parent] += 1
    for folder, count in folders.items():
        if count > MOST_FILES:
            yield f"{folder.relative_to(root)} holds {count} Python files; at most {MOST_FILES}: make a folder of some"


def _long(root: Path) -> Iterator[str]:
    for file in _sources(root):
        lines = len(file.read_text().splitlines())
        if lines > MOST_LINES:
            yield f"{file.relative_to(root)} has {lines} lines; at most {MOST_LINES}: take a subject out of it"


def _boundaries(root: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read_string((root / ".importlinter").read_text())
    return parser


def _layers(boundaries: configparser.ConfigParser) -> set[str]:
    """Return the names below `synth` in the layers of the boundary file."""
    return {name for section in boundaries.values() for name in re.split(r"[\s|:]+", section.get("layers", "")) if name}


def _unguarded(root: Path) -> Iterator[str]:
    layers = _layers(_boundaries(root))
    for folder in sorted((root / "services/synth").iterdir()):
        if any(folder.glob("*.py")) and folder.name not in layers:
            yield f"{folder.relative_to(root)} is in no layer of .importlinter: name it among the services"


def _upward(root: Path) -> Iterator[str]:
    services = {f"synth.{path.stem}" for path in (root / "services/synth").iterdir()}
    for file in sorted((root / "shared").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                imported = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                imported = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            if any(".".join(name.split(".")[:2]) in services for name in imported):
                yield f"{file.relative_to(root)}:{node.lineno} imports a service: shared modules stand below them"


def _single_modules(root: Path) -> Iterator[str]:
    boundaries = _boundaries(root)
    named = {f"synth.{name}" for name in _layers(boundaries)}
    for section in boundaries.values():
        named |= set(section.get("source_modules", "").split())
    single: list[str] = []
    for name in sorted(named):
        paths = [root / top / name.replace(".", "/") for top in ROOTS]
        if any(path.with_suffix(".py").is_file() for path in paths):
            single.append(name)
        elif not any(path.is_dir() for path in paths):
            yield f".importlinter names {name}, which does not exist"
    if len(single) > MOST_SINGLE_MODULES:
        yield f".importlinter names {len(single)} single modules; at most {MOST_SINGLE_MODULES}: {', '.join(single)}"


def _shared_names(root: Path) -> Iterator[str]:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for file in _sources(root):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{file.relative_to(root)}:{node.lineno}")
    shared = {name: found for name, found in sorted(places.items()) if len(found) > 1}
    if len(shared) > MOST_SHARED_CLASS_NAMES:
        yield f"{len(shared)} class names have several definitions; at most {MOST_SHARED_CLASS_NAMES}:"
        for name, found in shared.items():
            yield f"  {name}: {', '.join(found)}"


def main() -> int:
    problems = violations()
    for line in problems:
        sys.stdout.write(f"{line}\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
