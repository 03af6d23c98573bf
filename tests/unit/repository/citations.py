"""What a text says is there: paths, modules, identifiers, events, commands and decisions, and what really is."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import typer

from synth import synthd
from synth.cli.app import app
from synth.events.catalogue import CATALOGUE

ROOT = Path(__file__).parents[3]
#: Written by `make contracts`, or from the clients' own files: their text is somebody's docstring.
GENERATED = ("events.md", "configs.md", "settings.md", "sdk.md", "client.md", "client-examples.md")
#: The folders of the repository: what is hidden, as .venv, belongs to the machine.
_FOLDERS = [p.name for p in sorted(ROOT.iterdir()) if p.is_dir() and p.name[0] not in "._"] + [".ci", ".github"]
SOURCES = [folder for folder in _FOLDERS if any((ROOT / folder).rglob("*.py"))]
#: Packages whose modules are named with dots.
PACKAGES = ["synth", *(folder for folder in SOURCES if folder not in ("shared", "services"))]
_ENTITIES = "|".join(sorted({name.split(".")[0] for name in CATALOGUE}))

_CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_URL = re.compile(r"\w+://\S+")
_PATH = re.compile(r"(?<![\w/.<>*{}@$-])((?:[\w.<>*-]+/)*[\w.<>*-]*[\w>*])(/?)(?![\w/{]|:\d|\.\w)")
_DOTTED = re.compile(rf"(?<![\w./-])((?:{'|'.join(PACKAGES)})(?:\.\w+)+)(?![\w/(-])")
_EVENT = re.compile(rf"(?<![\w./[-])((?:{_ENTITIES})\.[a-z][a-z_]*)(?![\w/.(=-])")
#: What a reader of the pages writes himself.
_OF_USERS = (".py", "guess.py", "sums.py")
_FILE_ENDS = (".py", ".toml", ".md", ".json", ".jsonl", ".yaml", ".db", ".svg")
#: CamelCase, snake_case, a constant: not a plain word.
_IDENTIFIER = re.compile(r"_?[A-Z]\w+|_?[a-z0-9]+(?:_\w+)+")
_DECISION = re.compile(r"\b[dD]ecisions? (\d+)")


# What a text cites.


def quoted(text: str) -> list[str]:
    """What stands between backticks, in text or Markdown."""
    return _CODE.findall(text)


def cited_paths(text: str) -> list[str]:
    """Paths of the repository: whatever is a Python file or a page, and whatever begins with one of our folders."""
    found: list[str] = []
    for path, slash in _PATH.findall(_URL.sub(" ", text)):
        ours = "/" in path + slash and path.split("/")[0] in _FOLDERS
        if ours or ("/" in path and path.endswith(".md")) or (path.endswith(".py") and path not in _OF_USERS):
            found.append(path)
    return found


def cited_modules(text: str) -> list[str]:
    return [name for name in _DOTTED.findall(_URL.sub(" ", text)) if not name.endswith(_FILE_ENDS)]


def cited_events(text: str) -> list[str]:
    return [name for name in _EVENT.findall(text) if not name.endswith(_FILE_ENDS)]


def cited_identifiers(code: str) -> list[str]:
    """The names in one quoted piece of code, where it is a name, a call of it, or an attribute."""
    whole = re.fullmatch(r"([\w.]+)(?:\(.*\))?", code)
    return [part for part in whole[1].split(".") if _IDENTIFIER.fullmatch(part)] if whole else []


def cited_decisions(text: str) -> list[int]:
    return [int(number) for number in _DECISION.findall(text)]


# What is there.


@cache
def paths() -> frozenset[str]:
    """Every file and folder of the repository."""
    tops = [p for p in ROOT.iterdir() if p.name in _FOLDERS or p.is_file()]
    below = [p for top in tops if top.is_dir() for p in top.rglob("*") if "__pycache__" not in p.parts]
    return frozenset(str(p.relative_to(ROOT)) for p in [*tops, *below])


@cache
def _ends() -> frozenset[str]:
    """Every path, and each of its ends that follows a slash."""
    return frozenset("/".join(parts[n:]) for path in paths() if (parts := path.split("/")) for n in range(len(parts)))


@cache
def is_path(path: str) -> bool:
    """Whether this is the path, or the end of the path, of something in the repository; `<…>` and `*` are any name."""
    pattern = re.sub(r"<[^>]*>", "*", path)
    if "*" not in pattern:
        return pattern in _ends()
    return any(fnmatch(known, pattern) or fnmatch(known, f"*/{pattern}") for known in paths())


def is_module(name: str) -> bool:
    """Whether a dotted name is a module, or what a module of ours defines or imports."""
    roots = [ROOT / "shared", ROOT / "services"] if name.startswith("synth.") else [ROOT]
    parts = name.split(".")
    for root in roots:
        for n in range(len(parts), 0, -1):
            place = root.joinpath(*parts[:n])
            file = place.with_suffix(".py") if place.with_suffix(".py").is_file() else place / "__init__.py"
            if n == len(parts) and (file.is_file() or place.is_dir()):
                return True
            if file.is_file() and parts[n] in _defined(file):
                return True
    return False


@cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


@cache
def _defined(file: Path) -> frozenset[str]:
    found: set[str] = set()
    for node in _tree(file).body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                found |= {alias.asname or alias.name for alias in names}
            case ast.Assign() | ast.AnnAssign():
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found |= {t.id for t in targets if isinstance(t, ast.Name)}
            case _:
                pass
    return frozenset(found)


@cache
def command_line(program: str) -> Any:
    """`synthctl` or `synthd` as one command of click; it takes a third of a second to build."""
    return typer.main.get_command(app) if program == "synthctl" else synthd.build("")


def python_files(*folders: str) -> list[Path]:
    return sorted(file for folder in folders for file in (ROOT / folder).rglob("*.py"))


@cache
def prose_of(file: Path) -> str:
    """The docstrings and comments of a Python file."""
    text = file.read_text()
    # Python's own tokenizer takes as long as everything else here.
    tokens = tokenize.generate_tokens(io.StringIO(text).readline) if "#" in text else ()
    comments = [token.string.lstrip("#: ") for token in tokens if token.type == tokenize.COMMENT]
    return "\n".join([*(str(docstring.value) for docstring in _docstrings(_tree(file))), *comments])


def _docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    """The strings that stand by themselves: of modules, classes, functions and fields."""
    blocks: list[ast.AST] = [tree]
    while blocks:
        block = blocks.pop()
        # Expressions, most of a tree, have none.
        for name in ("body", "orelse", "handlers", "finalbody", "cases"):
            for statement in getattr(block, name, ()):
                if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                    yield statement.value
                elif hasattr(statement, "body"):
                    blocks.append(statement)


class Vocabulary:
    """Every name that the code has: identifiers, files, words of its strings, and words that its f-strings make."""

    def __init__(self, files: Iterable[Path], others: Iterable[Path] = ()) -> None:
        """files: Python. others: files all of whose words count."""
        self._words: set[str] = set()
        self._strings: set[str] = set()
        made: set[str] = set()
        for file in files:
            self._words.add(file.stem)
            prose = {id(text) for text in _docstrings(_tree(file))}
            for node in ast.walk(_tree(file)):
                match node:
                    case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
                        self._words.add(name)
                    case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                        self._words.add(name)
                    case ast.alias(name=name):
                        self._words.update(name.split("."))
                    case ast.Constant(value=str(text)) if id(node) not in prose:
                        self._strings.add(text)
                        self._words.update(re.findall(r"\w+", text))
                    case ast.JoinedStr(values=values):
                        made.add("".join(str(p.value) if isinstance(p, ast.Constant) else "\0" for p in values))
                    case _:
                        pass
        for file in others:
            self._words.update(re.findall(r"\w+", file.read_text()))
        # Of an f-string with a hole, as `concurrency_halved_{cause}`; not one that is hardly more than the hole.
        holed = {word for text in made for word in re.findall(r"[\w\0]+", text) if "\0" in word and len(word) > 6}
        self._made = re.compile("|".join(sorted(word.replace("\0", r"\w+") for word in holed)))

        self._prefixes = {text.removesuffix("\0") for text in made if re.fullmatch(r"\w+\.\0", text)}

    def __contains__(self, name: str) -> bool:
        return name in self._words or self._made.fullmatch(name) is not None

    def has_dotted(self, name: str) -> bool:
        """Whether this is a whole string of the code, or what an f-string such as `train.{figure}` makes of a word."""
        head, _, tail = name.rpartition(".")
        return name in self._strings or (f"{head}." in self._prefixes and tail in self._words)
