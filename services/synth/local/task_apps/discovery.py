"""The task apps of a folder, found by reading its Python files: none of them is imported.

It finds the apps of our SDK (`TaskApp`), the entries of the published clients (`TaskAppEntry`) and Modal's own
(`modal.App`), each only at a module's top level, since another program can import it only from there.
"""

from __future__ import annotations

import ast
import difflib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from synth.console.errors import UsageProblem

_NEVER_LOOKED_INTO = frozenset({"__pycache__", "node_modules", "site-packages", "build", "dist"})
_SHOWN = 8


class Maker(StrEnum):
    """Whose task app it is."""

    SDK = "synth"
    CLIENT = "synth-ai"
    MODAL = "modal"


#: The constructors of task apps: the module that it is imported from, its name there, the argument with its id.
_MAKERS: dict[tuple[str, str], tuple[Maker, str]] = {
    ("synth.taskapp.sdk", "TaskApp"): (Maker.SDK, "id"),
    ("synth_ai.task.apps", "TaskAppEntry"): (Maker.CLIENT, "app_id"),
    ("modal", "App"): (Maker.MODAL, "name"),
}


@dataclass(frozen=True)
class FoundApp:
    """A task app in a file. id: "" if the source computes it. variable: "" if it has no name of its own."""

    id: str
    kind: Maker
    file: Path
    line: int
    variable: str = ""
    aliases: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Found:
    """The task apps of a folder. unread: files that name a task app and cannot be parsed, as "file:line: why"."""

    apps: list[FoundApp] = field(default_factory=list[FoundApp])
    unread: list[str] = field(default_factory=list[str])


def find_apps(folder: Path) -> Found:
    """Read every Python file below a folder, hidden folders and environments left out. Raises `UsageProblem`."""
    if not folder.is_dir():
        raise UsageProblem("there is no such folder", expected="a folder with task apps", where=str(folder))
    apps = Found()
    for file in _python_files(folder):
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            apps.unread.append(f"{file}: cannot be read ({error})")
            continue
        if not any(name in text for _, name in _MAKERS):
            continue
        try:
            apps.apps.extend(apps_of(file, ast.parse(text)))
        except SyntaxError as error:
            apps.unread.append(f"{file}:{error.lineno or 1}: cannot be parsed ({error.msg})")
        except ValueError as error:
            apps.unread.append(f"{file}: cannot be parsed ({error})")
    apps.apps.sort(key=lambda app: (app.id, app.file, app.line))
    return apps


def choose_app(id: str, found: Found) -> FoundApp | None:
    """Return the task app that has this id, or this alias, ours before others; None if there is none.

    Raises `UsageProblem` for several.
    """
    several = [app for app in found.apps if app.id == id] or [app for app in found.apps if id in app.aliases]
    several = [app for app in several if app.kind is Maker.SDK] or several
    if len(several) > 1:
        places = ", ".join(app.place for app in several)
        raise UsageProblem(f"{len(several)} task apps have the id {id!r}: {places}", fix="name the file of one instead")
    return several[0] if several else None


def no_such_app(id: str, found: Found, folder: Path) -> UsageProblem:
    """Make the error for an unknown id, with the ids in the folder and the files that could not be read."""
    ids = sorted({app.id for app in found.apps if app.id})
    expected = (
        "an id of those here: " * bool(ids)
        + ", ".join(ids[:_SHOWN])
        + (f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else "")
    )
    near = difflib.get_close_matches(id, ids, n=1)
    unread = f"; not looked into: {'; '.join(found.unread)}" if found.unread else ""
    fix = f"is it {near[0]}?" if near else "`synthctl apps ls FOLDER` lists a folder's task apps; or name a file"
    where = "" if folder == Path() else str(folder)
    return UsageProblem(f"there is no task app {id!r} here{unread}", expected=expected, fix=fix, where=where)


def apps_of(file: Path, tree: ast.Module) -> Iterator[FoundApp]:
    """Yield the task apps that a module makes at its top level."""
    names, texts = _imported(tree), dict(_constant_texts(tree))
    for statement in _top_level(tree.body):
        for call in _calls(statement):
            maker = _MAKERS.get(_full_name(call.func, names))
            if maker is None:
                continue
            kind, argument = maker
            yield FoundApp(
                id=_text(_argument(call, argument), texts),
                kind=kind,
                file=file,
                line=call.lineno,
                variable=_variable(statement, call),
                aliases=_aliases(call, texts) if kind is Maker.CLIENT else (),
            )


def _python_files(folder: Path) -> Iterator[Path]:
    for here, folders, files in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if name not in _NEVER_LOOKED_INTO
            and not name.startswith(".")
            and not Path(here, name, "pyvenv.cfg").exists()
        )
        yield from (Path(here, name) for name in sorted(files) if name.endswith(".py"))


def _top_level(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that run when the module is imported."""
    for statement in body:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                continue
            case ast.If():
                yield from _top_level([*statement.body, *statement.orelse])
            case ast.With():
                yield from _top_level(statement.body)
            case ast.Try():
                yield from _top_level([*statement.body, *statement.orelse, *statement.finalbody])
            case _:
                yield statement


def _calls(statement: ast.stmt) -> Iterator[ast.Call]:
    return (node for node in ast.walk(statement) if isinstance(node, ast.Call))


def _imported(tree: ast.Module) -> dict[str, tuple[str, str]]:
    """Return for each imported name of the module its source module and its name there, "" for a module itself."""
    names: dict[str, tuple[str, str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    names[alias.asname] = (alias.name, "")
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = (node.module, alias.name)
    return names


def _full_name(function: ast.expr, names: dict[str, tuple[str, str]]) -> tuple[str, str]:
    """Return the module and the name in it of the called function; ("", "") if it was not imported."""
    if isinstance(function, ast.Name):
        return _published(names.get(function.id, ("", "")))
    if not isinstance(function, ast.Attribute):
        return "", ""
    module = ast.unparse(function.value)
    first, _, rest = module.partition(".")
    if first in names:
        origin = ".".join(filter(None, names[first]))
        module = f"{origin}.{rest}" if rest else origin
    return _published((module, function.attr))


def _published(name: tuple[str, str]) -> tuple[str, str]:
    """Return the published clients offer their entry in several modules, which all begin alike."""
    module, attribute = name
    return ("synth_ai.task.apps", attribute) if module.split(".")[0] == "synth_ai" else name


def _argument(call: ast.Call, name: str) -> ast.expr | None:
    return next((k.value for k in call.keywords if k.arg == name), call.args[0] if call.args else None)


def _constant_texts(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant):
            for target in statement.targets:
                if isinstance(target, ast.Name) and isinstance(statement.value.value, str):
                    yield target.id, statement.value.value


def _text(value: ast.expr | None, texts: dict[str, str]) -> str:
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        return value.value
    return texts.get(value.id, "") if isinstance(value, ast.Name) else ""


def _aliases(call: ast.Call, texts: dict[str, str]) -> tuple[str, ...]:
    aliases = next((k.value for k in call.keywords if k.arg == "aliases"), None)
    listed = aliases.elts if isinstance(aliases, ast.Tuple | ast.List) else []
    return tuple(filter(None, (_text(value, texts) for value in listed)))


def _variable(statement: ast.stmt, call: ast.Call) -> str:
    """Return the name that the statement gives to the app."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name), *_], value=value) if value is call:
            return name
        case ast.AnnAssign(target=ast.Name(id=name), value=value) if value is call:
            return name
    return ""
