"""From a job file to its typed sections: the kind of job, and every problem with its keys at once."""

from __future__ import annotations

import difflib
import itertools
import re
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Union, cast, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from synth.errors import Problem, UserError
from synth.jobs.eval import Eval, EvalConfig
from synth.jobs.not_honoured import ignored_keys
from synth.jobs.rl import RlConfig
from synth.jobs.sections import PolicyConfig
from synth.jobs.sft import SftConfig
from synth.jobs.toml import Document, Path, read_data, read_toml

Kind = Literal["rl", "sft", "eval"]
Config = RlConfig | SftConfig | EvalConfig

_CONFIGS: dict[Kind, type[Config]] = {"rl": RlConfig, "sft": SftConfig, "eval": EvalConfig}
#: Unknown keys for which the nearest known one is looked for; comparing words is what costs.
_COMPARED = 100
_LINE = re.compile(r":(\d+)(?: |$)")
_WORDS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text in quotes",
    "bool_type": "true or false",
    "list_type": "a list",
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


@dataclass(frozen=True)
class ParsedJob:
    """A job file whose keys and types are right. warnings: its keys that have no effect."""

    kind: Kind
    config: Config
    document: Document
    warnings: list[str]


def load_job(text: str | bytes, *, name: str) -> ParsedJob:
    """Read a TOML job. Raises UserError with every problem, each with its `file:line [section].key`."""
    return parse_job(read_toml(text, name=name))


def load_job_data(data: dict[str, Any], *, name: str, kind: Kind | None = None) -> ParsedJob:
    """Read a job that came as JSON. kind: where the endpoint already says it."""
    return parse_job(read_data(data, name=name), kind=kind)


def parse_job(document: Document, *, kind: Kind | None = None) -> ParsedJob:
    """Check a document against the schema of its kind."""
    parsed, problems = parse_leniently(document, kind=kind)
    if parsed is None or problems:
        raise UserError(in_file_order(problems))
    return parsed


def in_file_order(problems: list[Problem]) -> list[Problem]:
    """Problems from the top of the file to its end; those without a line last."""
    return sorted(problems, key=lambda p: int(m[1]) if (m := _LINE.search(p.where)) else sys.maxsize)


def parse_leniently(document: Document, *, kind: Kind | None = None) -> tuple[ParsedJob | None, list[Problem]]:
    """As `parse_job`, but a file whose only problems are unknown keys is parsed without them.

    A key that looks misspelt is read as the key that it resembles, so that one typo does not also show up as
    a missing key, and its value is checked too.
    """
    kind = kind or kind_of(document)
    if kind is None:
        return None, [
            Problem(
                what="cannot tell what kind of job this is",
                expected="[algorithm], or [rollout] for RL, [hyperparameters] for SFT, [eval] for an evaluation",
                fix='start from one of the examples, or add [algorithm] type = "online" (RL) or "offline" (SFT)',
                where=document.name,
            )
        ]
    problems: list[Problem] = []
    flat = kind == "eval" and "eval" not in document.data
    model = Eval if flat else _CONFIGS[kind]
    renamed: dict[Path, Path] = {}
    repaired = _repair(document.data, model, (), document, problems, renamed)
    try:
        config = model.model_validate(repaired)
    except ValidationError as error:
        problems += [_problem(e, model, document, renamed) for e in error.errors()]
        return None, problems
    if isinstance(config, Eval):
        config = EvalConfig(eval=config, tags=config.tags)
    warnings = ignored_keys(document, kind) + _lookalikes(document, ("rollout",) if kind == "rl" else ("eval",))
    return ParsedJob(kind, config, document, warnings), problems


def kind_of(document: Document) -> Kind | None:
    """RL, SFT or evaluation, in the order of the published client's own rule."""
    data = document.data
    match document.get(("algorithm", "type")):
        case "online":
            return "rl"
        case "offline":
            return "sft"
        case _:
            pass
    if document.get(("services", "task_url")) is not None:
        return "rl"
    if str(document.get(("training", "mode")) or "").startswith("sft"):
        return "sft"
    if document.get(("hyperparameters", "train_kind")) is not None:
        return "sft"
    tables: dict[str, Kind] = {
        "eval": "eval",
        "hyperparameters": "sft",
        "job": "sft",
        "rollout": "rl",
        "services": "rl",
    }
    for table, kind in tables.items():
        if table in data:
            return kind
    if "seeds" in data or "app_id" in data:
        return "eval"
    return None


def _repair(
    value: Any,
    model: type[BaseModel],
    path: Path,
    document: Document,
    problems: list[Problem],
    renamed: dict[Path, Path],
) -> Any:
    """The data without its unknown keys, each of which becomes a problem; `renamed`: good path -> the one written."""
    if not isinstance(value, dict) or model.model_config.get("extra") != "forbid":
        return cast(Any, value)
    table = cast(dict[str, Any], value)
    fields = model.model_fields
    good: dict[str, Any] = {}
    for key, inner in table.items():
        name = key
        if key not in fields:
            compared = len(problems) < _COMPARED
            near = _nearest(key, [f for f in fields if f not in table]) if compared else None
            problems.append(_unknown(key, near, model, path, document))
            if near is None or near in good:
                continue
            name = near
            renamed[(*path, near)] = (*path, key)
        table_model = _model_of(fields[name].annotation)
        good[name] = _repair(inner, table_model, (*path, key), document, problems, renamed) if table_model else inner
    return good


def _lookalikes(document: Document, table: Path) -> list[str]:
    """`policy_config` passes unknown keys on to the task app, so a misspelt one is only worth a warning."""
    path = (*table, "policy_config")
    config = document.get(path)
    if not isinstance(config, dict):
        return []
    known = list(PolicyConfig.model_fields)
    return [
        f"{document.where((*path, key))} is passed on to the task app; did you mean {near!r}?"
        for key in itertools.islice(cast(dict[str, Any], config), _COMPARED)
        if key not in known and (near := _nearest(key, known))
    ]


def _unknown(key: str, near: str | None, model: type[BaseModel], path: Path, document: Document) -> Problem:
    elsewhere = None if near else _section_with(key, document)
    if near:
        fix = f"did you mean {near!r}?"
    elif elsewhere:
        fix = f"did you mean to put it into [{elsewhere}]?"
    else:
        fix = "remove it"
    thing = "section" if not path and isinstance(document.get((key,)), dict) else "key"
    return Problem(
        what=f"unknown {thing} {key!r}",
        expected="" if near or elsewhere else f"one of {', '.join(model.model_fields)}",
        fix=fix,
        where=document.where((*path, key)),
    )


def _nearest(key: str, names: list[str]) -> str | None:
    near = difflib.get_close_matches(key.lower(), names, n=1, cutoff=0.7)
    return near[0] if near else None


def _section_with(key: str, document: Document) -> str | None:
    kind = kind_of(document)
    if kind is None or kind == "eval":
        return None
    for section, table in _tables(_CONFIGS[kind]):
        if key in table.model_fields:
            return section
    return None


def _tables(config: type[Config]) -> Iterator[tuple[str, type[BaseModel]]]:
    for name, info in config.model_fields.items():
        table = _model_of(info.annotation)
        if table is not None:
            yield name, table


def _model_of(annotation: Any) -> type[BaseModel] | None:
    if get_origin(annotation) in (Union, types.UnionType):
        return next((m for a in get_args(annotation) if (m := _model_of(a))), None)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return None


def _problem(error: ErrorDetails, model: type[BaseModel], document: Document, renamed: dict[Path, Path]) -> Problem:
    path: Path = error["loc"]
    description = _description(model, path)
    written = path
    for good, bad in renamed.items():
        if written[: len(good)] == good:
            written = (*bad, *written[len(good) :])
    where = document.where(written)
    name = next((part for part in reversed(path) if isinstance(part, str)), "the file")
    if error["type"] == "missing":
        thing = "section" if len(path) == 1 and _description(model, path) is None else "key"
        return Problem(what=f"the {thing} {name!r} is missing", expected=description or "", where=where)
    what = f"{name} = {_shown(error['input'])} will not do"
    return Problem(what=what, expected=_expected(error), fix=description or "", where=where)


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


def _description(model: type[BaseModel], path: Path) -> str | None:
    current: type[BaseModel] | None = model
    found: str | None = None
    for part in path:
        if current is None or not isinstance(part, str) or part not in current.model_fields:
            break
        info = current.model_fields[part]
        found = info.description
        current = _model_of(info.annotation)
    name = next((part for part in reversed(path) if isinstance(part, str)), "")
    return f"{name}: {found}" if found else None


def _shown(value: Any) -> str:
    text = {True: "true", False: "false"}.get(value) if isinstance(value, bool) else repr(value)
    text = text or ""
    return text if len(text) <= 60 else text[:57] + "..."
