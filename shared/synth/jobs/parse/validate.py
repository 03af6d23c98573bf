"""From a job file to its typed sections: the kind of job, and every problem with its keys at once."""

from __future__ import annotations

import itertools
import re
import sys
from dataclasses import dataclass, field, replace
from typing import Any, cast

from pydantic import BaseModel, ValidationError

from synth.errors import Problem, UserError
from synth.jobs.parse.kinds import Kind, infer_kind, unknown_kind
from synth.jobs.parse.problems import bad_value, nearest, table_of, unknown_key
from synth.jobs.parse.toml import Document, Path, read_data, read_toml
from synth.jobs.parse.unsupported import unsupported_keys
from synth.jobs.schema.eval import EvalConfig, FlatEvalConfig
from synth.jobs.schema.filter import FilterConfig
from synth.jobs.schema.rl import RlConfig
from synth.jobs.schema.sections import PolicyConfigSection, keys_of
from synth.jobs.schema.sft import SftConfig

__all__ = [
    "Config",
    "Kind",
    "ParsedJob",
    "in_file_order",
    "line_of",
    "load_job",
    "load_job_data",
    "parse_job",
    "parse_leniently",
]

Config = RlConfig | SftConfig | EvalConfig | FlatEvalConfig | FilterConfig

_CONFIGS: dict[Kind, type[Config]] = {"rl": RlConfig, "sft": SftConfig, "eval": EvalConfig, "filter": FilterConfig}
#: Unknown keys for which the nearest known one is searched, as comparing words is slow.
_MAX_COMPARISONS = 100
#: Wrong values that are described; further ones are dropped without a message until these are fixed.
_MAX_PROBLEMS = 200
#: A payload has keys of its own, so only a key that is almost a known one counts as misspelt.
_PAYLOAD_SIMILARITY = 0.85
_LINE = re.compile(r":(\d+)(?: |$)")


@dataclass(frozen=True)
class ParsedJob:
    """A job file as its sections. data: its known keys. warnings: its keys that have no effect.

    dropped: keys whose wrong values were left out so that the rest can be checked; none in a good file.
    """

    kind: Kind
    config: Config
    document: Document
    data: dict[str, Any]
    warnings: list[str]
    dropped: list[Path] = field(default_factory=list[Path])


def load_job(text: str | bytes, *, name: str) -> ParsedJob:
    """Read a TOML job. Raises UserError with every problem, each with its `file:line [section].key`."""
    return parse_job(read_toml(text, name=name))


def load_job_data(data: dict[str, Any], *, name: str, kind: Kind | None = None) -> ParsedJob:
    """Read a job that came as JSON. kind: of the job, if the endpoint determines it."""
    return parse_job(read_data(data, name=name), kind=kind)


def parse_job(document: Document, *, kind: Kind | None = None) -> ParsedJob:
    """Check a document against the schema of its kind."""
    parsed, problems = parse_leniently(document, kind=kind)
    if parsed is None or problems:
        raise UserError(in_file_order(problems))
    return parsed


def line_of(place: str) -> int:
    """Return the line of a place such as `rl.toml:14 [model].base`; a number past every line if the place has none."""
    match = _LINE.search(place)
    return int(match[1]) if match else sys.maxsize


def in_file_order(problems: list[Problem]) -> list[Problem]:
    """Sort problems from the top of the file to its end; problems without a line come last."""
    return sorted(problems, key=lambda p: line_of(p.where))


def parse_leniently(document: Document, *, kind: Kind | None = None) -> tuple[ParsedJob | None, list[Problem]]:
    """Parse as `parse_job` does, but leave out unknown and wrong keys, so that the rest can be checked too.

    A key that looks misspelt is read as the key that it resembles, so that one typo does not also show up as
    a missing key, and its value is checked too.
    """
    kind = kind or infer_kind(document)
    if kind is None:
        return None, [unknown_kind(document)]
    model = FlatEvalConfig if kind == "eval" and "eval" not in document.data else _CONFIGS[kind]
    repair = _Repair(document, model)
    data = repair.table(document.data, model, ())
    document = replace(document, misspelt=repair.misspelt)
    config, dropped, problems = _validated(data, model, document)
    problems = repair.problems + problems
    if config is None:
        return None, problems
    warnings = unsupported_keys(document, kind) + repair.warnings + _misspelt_policy_keys(document, kind)
    return ParsedJob(kind, config, document, data, warnings, dropped), problems


def _validated(
    data: dict[str, Any], model: type[Config], document: Document
) -> tuple[Config | None, list[Path], list[Problem]]:
    """Return the typed sections without the wrong values, the paths of those, and their problems."""
    problems: list[Problem] = []
    # In order, and each once: a list may have as many wrong elements as the file has bytes.
    dropped: dict[Path, None] = {}
    while True:
        try:
            return model.model_validate(data), list(dropped), problems
        except ValidationError as error:
            details = error.errors()
        removed = False
        for detail in details:
            path = detail["loc"]
            # A key that was left out because of its value is not missing too.
            if path not in dropped and len(problems) < _MAX_PROBLEMS:
                problems.append(bad_value(detail, model, document))
            # A table that lacks a key is left out whole, and so is a list with a bad element.
            path = path[:-1] if detail["type"] == "missing" else path
            path = tuple(itertools.takewhile(lambda part: isinstance(part, str), path))
            removed = _remove(data, path) or removed
            dropped[path] = None
        if not removed:
            return None, list(dropped), problems


def _remove(data: dict[str, Any], path: Path) -> bool:
    """Remove a key from nested tables; return whether it was present."""
    inner: Any = data
    for table in path[:-1]:
        inner = cast(dict[Any, Any], inner).get(table) if isinstance(inner, dict) else None
    if not path or not isinstance(inner, dict) or path[-1] not in inner:
        return False
    del cast(dict[Any, Any], inner)[path[-1]]
    return True


@dataclass
class _Repair:
    """The data without its unknown keys, each of which becomes a problem. misspelt: as in `Document`."""

    document: Document
    config: type[BaseModel]
    problems: list[Problem] = field(default_factory=list[Problem])
    warnings: list[str] = field(default_factory=list[str])
    misspelt: dict[Path, Path] = field(default_factory=dict[Path, Path])

    def table(self, table: dict[str, Any], model: type[BaseModel], path: Path) -> dict[str, Any]:
        known = keys_of(model)
        good: dict[str, Any] = {}
        for key, value in table.items():
            name = key
            if key not in known:
                near = self._unknown(key, model, path, [k for k in known if k not in table])
                if near is None or near in good:
                    continue
                name = near
                self.misspelt[(*path, near)] = (*path, key)
            # A null of a JSON payload is the same as no key.
            if value is not None:
                good[name] = self._value(value, table_of(known[name].annotation), (*path, key))
        return good

    def _value(self, value: Any, model: type[BaseModel] | None, path: Path) -> Any:
        if not isinstance(value, dict):
            return value
        table = cast(dict[str, Any], value)
        if model is None or model.model_config.get("extra") != "forbid":
            known = {} if model is None else keys_of(model)
            # A copy: wrong values are taken out of it later.
            return {key: value for key, value in table.items() if value is not None or key not in known}
        return self.table(table, model, path)

    def _unknown(self, key: str, model: type[BaseModel], path: Path, names: list[str]) -> str | None:
        """Report a key; returns the one that it is read as."""
        payload = self.document.format == "json"
        compared = len(self.problems) + len(self.warnings) < _MAX_COMPARISONS
        near = None
        if compared:
            near = nearest(key, names, cutoff=_PAYLOAD_SIMILARITY) if payload else nearest(key, names)
        if payload and near is None:
            table = f"[{'.'.join(str(p) for p in path)}]" if path else "a job"
            self.warnings.append(f"{self.document.where((*path, key))} has no effect: it is no key of {table}")
            return None
        self.problems.append(unknown_key(key, near, model, path, self.document, self.config))
        return near


def _misspelt_policy_keys(document: Document, kind: Kind) -> list[str]:
    """Return warnings for misspelt keys of `policy_config`, which passes unknown keys on to the task app."""
    tables: tuple[Path, ...] = ("rollout",), ("eval",), ()
    known = list(PolicyConfigSection.model_fields)
    sentences: list[str] = []
    for table in tables if kind in ("rl", "eval") else ():
        path = (*table, "policy_config")
        config = document.get(path)
        for key in itertools.islice(cast(dict[str, Any], config), _MAX_COMPARISONS) if isinstance(config, dict) else ():
            near = None if key in known else nearest(key, known)
            if near:
                place = document.where((*path, key))
                sentences.append(f"{place} is passed on to the task app; did you mean {near!r}?")
    return sentences
