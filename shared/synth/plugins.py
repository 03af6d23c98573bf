"""Functions of the operator's own, which a job names as `package.module:function`: which may be named, and loading one.

A job never brings code: a plugin's module is installed on the services' machines, and the operator has allowed it
(`SYNTH_PLUGINS`). Checking a name imports nothing; only the service that runs the function imports its module.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import re
from collections.abc import Callable, Collection
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Annotated, Any

from pydantic import field_validator
from pydantic_settings import NoDecode

from synth.errors import Permanent, Problem
from synth.settings import Settings

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
#: How a plugin is written, for errors.
FORM = '"package.module:function"'


class PluginSettings(Settings):
    """Settings of every service that reads the names of plugins, or runs them."""

    plugins: Annotated[tuple[str, ...], NoDecode] = ()
    """Modules whose functions jobs may name as their loss or advantage (`module:function`): `acme.losses,acme_rl`, each
    with the modules below it. They have to be installed for the validator, the rollouts service and the trainer, which
    run them with all of their own rights: allow what you would deploy. Set it for the three alike."""

    @field_validator("plugins", mode="before")
    @classmethod
    def _split_plugins(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def is_plugin(name: str) -> bool:
    """Return whether a name has the form of a plugin's."""
    return _NAME.fullmatch(name) is not None


def plugin_refused(name: str, allowed: Collection[str], *, where: str) -> Problem | None:
    """Return why a plugin may not be used, or cannot be; None if it can. name: one for which `is_plugin` is true.

    allowed: see `PluginSettings`. The module is not imported: its file is read, if it is written in Python.
    """
    module, _, function = name.partition(":")
    if not any(module == root or module.startswith(f"{root}.") for root in allowed):
        return Problem(
            what=f"{module!r} is no module that this cluster runs code of",
            expected=f"a module of {', '.join(sorted(allowed))}" if allowed else "one of ours: no plugins are allowed",
            fix="have the operator install it and add it to SYNTH_PLUGINS, or name one that is allowed",
            where=where,
        )
    spec = _find(module)
    if spec is None:
        what = f"the module {module!r} is allowed and is not installed here"
        fix = "have the operator install it for the validator, the rollouts service and the trainer"
        return Problem(what=what, expected="an installed module", fix=fix, where=where)
    there = _names(spec)
    if there is None or function in there:
        return None
    near = difflib.get_close_matches(function, there, n=1)
    return Problem(
        what=f"the module {module!r} has no function {function!r}",
        expected=f"one of {', '.join(sorted(n for n in there if not n.startswith('_')))[:300]}" if there else FORM,
        fix=f"did you mean {near[0]!r}?" if near else "correct the name after the colon",
        where=where,
    )


def load_plugin(name: str, allowed: Collection[str] | None) -> Callable[..., Any]:
    """Return the function. allowed: None if the name was checked before. Raises `Permanent` with the reason."""
    if allowed is not None and (refused := plugin_refused(name, allowed, where=name)) is not None:
        raise Permanent(refused.text())
    module, _, function = name.partition(":")
    try:
        loaded = getattr(importlib.import_module(module), function)
    except Exception as error:
        raise Permanent(f"the plugin {name!r} cannot be imported: {type(error).__name__}: {error}") from error
    if not callable(loaded):
        raise Permanent(f"the plugin {name!r} is a {type(loaded).__name__}; expected a function")
    return loaded


def _find(module: str) -> ModuleSpec | None:
    """Return the spec of a module; no package above it is imported."""
    path: list[str] | None = None
    spec: ModuleSpec | None = None
    for n in range(len(parts := module.split("."))):
        spec = PathFinder.find_spec(".".join(parts[: n + 1]), path)
        if spec is None:
            return None
        path = list(spec.submodule_search_locations or [])
    return spec


def _names(spec: ModuleSpec) -> set[str] | None:
    """Return the names that a module's own statements define; None if only running it would show them."""
    if spec.origin is None or not spec.origin.endswith(".py"):
        return None
    try:
        tree = ast.parse(Path(spec.origin).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    defined: set[str] = set()
    nodes: list[ast.AST] = [*tree.body]
    while nodes:
        match node := nodes.pop():
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                defined.add(name)  # and nothing that is defined inside
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                if any(alias.name == "*" for alias in names):
                    return None
                defined |= {alias.asname or alias.name for alias in names}
            case ast.Name(id=name, ctx=ast.Store()):
                defined.add(name)
            case _:
                nodes += ast.iter_child_nodes(node)
    return defined
