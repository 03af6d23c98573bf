"""`--set key=value` and `--tag key=value`: a job file's text with some of its keys set by the command line.

The text keeps its comments and its order, so that the submitted text is the user's file, with a comment `--set` beside
each changed value. A problem with such a key names the flag; a problem with another one names its line in the user's
file.
"""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import InlineTable, Item, SingleKey, Table

from synth.console.errors import UsageProblem
from synth.jobs.parse.toml import Document, Path, read_toml

#: The parts of a dotted key.
Keys = tuple[str, ...]

#: Beginnings of values that only TOML has: a mistake in such a value is an error, and the value no plain text.
_TOML_OPENINGS = ("[", "{", '"', "'")


@dataclass(frozen=True)
class Assignment:
    """A key that the command line sets. flag: how a problem names it, such as `--set training.learning_rate`.

    tag: path is the name of a tag alone; in which table tags stand depends on the kind of job.
    """

    path: Keys
    value: Any
    flag: str
    tag: bool = False


def settings_of_flags(sets: Sequence[str] | None, tags: Sequence[str] | None) -> tuple[Assignment, ...]:
    """Return the settings of the flags `--set` and `--tag`. Raises `UsageProblem`."""
    return (*map(parse_setting, sets or ()), *map(parse_tag, tags or ()))


def parse_setting(text: str) -> Assignment:
    """Read `training.learning_rate=1e-5`. The value is TOML, or text that needs no quotes. Raises `UsageProblem`."""
    key, equals, value = text.partition("=")
    key, value = key.strip(), value.strip()
    if not equals or not key or not value:
        raise UsageProblem(
            f"--set {text!r}: there is no " + ("value" if key and equals else "key" if equals else "="),
            expected="key=value, such as training.learning_rate=1e-5",
            fix="an empty text is ''" if key and equals else "",
        )
    return Assignment(_path(key), _value(key, value), f"--set {key}")


def parse_tag(text: str) -> Assignment:
    """Read `owner=ada`. The value is text. Raises `UsageProblem`."""
    name, value = split_tag(text)
    return Assignment((name,), value, f"--tag {name}", tag=True)


def split_tag(text: str) -> tuple[str, str]:
    """Read `owner=ada` as its name and its value. Raises `UsageProblem`."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageProblem(f"--tag {text!r} has no " + ("name" if equals else "="), expected="name=value")
    return name, value


def set_values(text: str, *, name: str, settings: Sequence[Assignment]) -> tuple[str, Document]:
    """Return a job file's text with keys set, and read; a later setting of the same key wins.

    name: of the file, for messages. Raises `UserError` for text that is no TOML, `UsageProblem` for a setting that the
    file has no place for.
    """
    document = read_toml(text, name=name)
    if not settings:
        return text, document
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    wanted, edited = tomllib.loads(text), tomlkit.parse(text)
    flags: dict[Path, str] = {}
    for setting in settings:
        path = _full_path(setting, wanted)
        _set(wanted, path, setting, document)
        _set_in_text(edited, path, setting)
        flags[path] = setting.flag
    try:
        changed = tomlkit.dumps(edited)
        faithful = tomllib.loads(changed) == wanted
    except (TOMLKitError, tomllib.TOMLDecodeError):
        changed, faithful = "", False
    if not faithful:
        raise UsageProblem(
            f"{', '.join(flags.values())} cannot be written into this file beside its other keys",
            fix="edit the file",
            where=name,
        )
    return changed, read_toml(changed, name=name, lines=document.lines, flags=flags)


def _path(key: str) -> Keys:
    try:
        table: Any = tomllib.loads(f"{key} = 0")
    except tomllib.TOMLDecodeError:
        table = {}
    path: list[str] = []
    while isinstance(table, dict) and len(cast(dict[str, Any], table)) == 1:
        [(part, table)] = cast(dict[str, Any], table).items()
        path.append(part)
    if not path or table != 0:
        raise UsageProblem(f"--set {key}: this is no key", expected="a dotted key, such as training.learning_rate")
    return tuple(path)


def _value(key: str, text: str) -> Any:
    try:
        document = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError as error:
        if text.startswith(_TOML_OPENINGS):
            what = f"--set {key}: {text!r} is not valid TOML ({error})"
            raise UsageProblem(what, expected='a value such as 1e-5, true, [1, 2], {a = 1}, "text" or text') from error
        return text
    return document["value"] if len(document) == 1 else text


def _full_path(setting: Assignment, data: dict[str, Any]) -> Keys:
    if not setting.tag:
        return setting.path
    # The tags of an evaluation's own table come before those beside it.
    return ("eval", "tags", *setting.path) if isinstance(data.get("eval"), dict) else ("tags", *setting.path)


def _set(data: dict[str, Any], path: Keys, setting: Assignment, document: Document) -> None:
    table = data
    for depth, part in enumerate(path[:-1], start=1):
        inner = table.setdefault(part, {})
        if not isinstance(inner, dict):
            place = document.where(path[:depth])
            raise UsageProblem(
                f"{setting.flag}: {place} is a {'list' if isinstance(inner, list) else 'value'}",
                expected="a key of a table",
                fix=f"set the whole of it: --set {'.'.join(path[:depth])}=…",
            )
        table = cast(dict[str, Any], inner)
    table[path[-1]] = copy.deepcopy(setting.value)


def _set_in_text(edited: tomlkit.TOMLDocument, path: Keys, setting: Assignment) -> None:
    table: Any = edited
    inline = False
    for part in path[:-1]:
        if part not in table:
            table[SingleKey(part)] = tomlkit.inline_table() if inline else tomlkit.table()
        table = table[part]
        inline = inline or isinstance(table, InlineTable)
    value: Item = tomlkit.item(setting.value)
    if isinstance(value, Table):
        # As a table of its own it could land behind tables that it does not belong to.
        whole = tomlkit.inline_table()
        whole.update(setting.value)
        value = whole
    if not inline:
        value.comment(setting.flag.split()[0])
    table[SingleKey(path[-1])] = value
