"""Describe errors in the keys and values of a job file: the place, the value, the expected form and the fix."""

from __future__ import annotations

import difflib
import functools
import json
import tomllib
import types
from collections.abc import Iterable
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from synth.errors import Problem
from synth.jobs.parse.toml import Document, Path
from synth.jobs.schema.sections import description_of, keys_of

_SIMILARITY = 0.7
_WORDS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text in quotes",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "string_too_short": "text that is not empty",
}
_BOUNDS = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}


def nearest(key: str, names: Iterable[str], *, cutoff: float = _SIMILARITY) -> str | None:
    """Return the name that a misspelt key most resembles, or None. cutoff: the least similarity, of 1."""
    matches = difflib.get_close_matches(key.lower(), list(names), n=1, cutoff=cutoff)
    return matches[0] if matches else None


@functools.cache
def table_of(annotation: Any) -> type[BaseModel] | None:
    """Return the model of the table that a key holds; None if the key holds a value."""
    if get_origin(annotation) in (Union, types.UnionType):
        return next((m for a in get_args(annotation) if (m := table_of(a))), None)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return None


def unknown_key(
    key: str, near: str | None, table: type[BaseModel], path: Path, document: Document, config: type[BaseModel]
) -> Problem:
    """Describe a key that its table does not have. near: the key that it resembles. config: the file's schema."""
    elsewhere = None if near else _section_with(key, config)
    if near:
        fix = f"did you mean {near!r}?"
    elif elsewhere:
        fix = f"did you mean to put it into [{elsewhere}]?"
    else:
        fix = "remove it"
    thing = "section" if not path and isinstance(document.get((key,)), dict) else "key"
    return Problem(
        what=f"unknown {thing} {key!r}",
        expected="" if near or elsewhere else f"one of {', '.join(keys_of(table))}",
        fix=fix,
        where=document.where((*path, key)),
    )


def bad_value(error: ErrorDetails, config: type[BaseModel], document: Document) -> Problem:
    """Describe a value that its key cannot have, or a missing key."""
    path: Path = error["loc"]
    description = _description(config, path)
    where = document.where(path)
    name = next((part for part in reversed(path) if isinstance(part, str)), "the file")
    if error["type"] == "missing":
        return Problem(what=f"the key {name!r} is missing", expected=description or "", where=where)
    what, fix = f"{name} = {_shown(error['input'])} is not valid", _without_quotes(name, error) or description
    return Problem(what=what, expected=_expected(error), fix=fix or "", where=where)


def _without_quotes(name: str, error: ErrorDetails) -> str | None:
    """Return the fix of a number or a truth value that is written as text."""
    text = error["input"]
    if error["type"] not in ("int_type", "float_type", "bool_type") or not isinstance(text, str) or "\n" in text:
        return None
    try:
        value = tomllib.loads(f"value = {text.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        return None
    fits = {"int_type": (int,), "float_type": (int, float), "bool_type": (bool,)}[error["type"]]
    return f"write it without quotes: {name} = {text.strip()}" if type(value) in fits else None


def _section_with(key: str, config: type[BaseModel]) -> str | None:
    for name, info in keys_of(config).items():
        table = table_of(info.annotation)
        if table is not None and key in keys_of(table):
            return name
    return None


def _expected(error: ErrorDetails) -> str:
    kind = error["type"]
    context = error.get("ctx", {})
    if kind in _WORDS:
        return _WORDS[kind]
    if kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        return f"a number of {words} {context[key]:g}"
    if kind == "literal_error":
        return str(context["expected"])
    if kind == "too_short":
        return f"a list of at least {context['min_length']}"
    if kind == "too_long":
        return f"a list of at most {context['max_length']}"
    if kind == "value_error":
        return str(context["error"])
    return error["msg"][:1].lower() + error["msg"][1:]


def _description(config: type[BaseModel], path: Path) -> str | None:
    current: type[BaseModel] | None = config
    description: str | None = None
    for part in path:
        if current is None or not isinstance(part, str) or part not in keys_of(current):
            break
        info = keys_of(current)[part]
        description = description_of(current, part)
        default = info.get_default(call_default_factory=True)
        if description and not info.is_required() and default not in (None, {}) and table_of(info.annotation) is None:
            description += f"; default {json.dumps(default)}"
        current = table_of(info.annotation)
    name = next((part for part in reversed(path) if isinstance(part, str)), "")
    return f"{name}: {description}" if description else None


def _shown(value: Any) -> str:
    text = {True: "true", False: "false"}.get(value) if isinstance(value, bool) else repr(value)
    text = text or ""
    return text if len(text) <= 60 else text[:57] + "..."
