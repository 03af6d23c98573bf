"""Explain why a text is not valid TOML: the common mistakes, each with its fix."""

from __future__ import annotations

import contextlib
import re
import tomllib
from dataclasses import dataclass

from synth.errors import Problem
from synth.jobs.parse.scanner import SPACE, Scanner, TooDeep

_AT_LINE = re.compile(r"(?<!\s)\s*\(at (?:line (\d+), column (\d+)|end of document)\)$")
#: `base: tiny` and `base:`, as in YAML.
_COLON = re.compile(r"(?P<key>[\w.-]+)\s*:(?:\s+(?P<value>[^#]+?))?\s*(?:#.*)?")
#: `base = tiny-qwen3`: a value that is neither in quotes nor a number.
_BARE_VALUE = re.compile(r"(?P<key>[^=#]+?)\s*=\s*(?P<value>[A-Za-z_./~][^\s#\"'\[\]{},]*)\s*(?:#.*)?")
_LINES = 'lines such as key = "value" below a [section]'
_SHOWN = 60


def syntax_problem(message: str, text: str, name: str) -> Problem:
    """Return the problem of a text that is not valid TOML: the error, its line and the fix.

    message: from tomllib, with the place at which it stopped. name: of the file.
    """
    fault = _Fault.of(message, text)
    for explain in (_other_format, _open_string, _open_bracket, _repeated, _colon, _bare_value):
        if (problem := explain(fault, name)) is not None:
            return problem
    shown = f": `{fault.source[:_SHOWN]}`" if fault.source else ""
    return Problem(
        what=f"not valid TOML, {fault.message[:1].lower()}{fault.message[1:]}{shown}",
        expected=_LINES,
        where=f"{name}:{fault.line}",
    )


@dataclass(frozen=True)
class _Fault:
    """An error of tomllib. at: the index in the text; line, source: its line, from 1, and the text of that line."""

    text: str
    message: str
    at: int
    line: int
    source: str

    @classmethod
    def of(cls, message: str, text: str) -> _Fault:
        place = _AT_LINE.search(message)
        lines = text.split("\n")
        line = int(place[1]) if place and place[1] else len(lines)
        column = int(place[2]) if place and place[2] else len(lines[-1]) + 1
        at = sum(len(before) + 1 for before in lines[: line - 1]) + column - 1
        return cls(text, _AT_LINE.sub("", message), at, line, lines[min(line, len(lines)) - 1].strip())

    def scanned(self, to: int) -> Scanner:
        """Scan the text up to an index."""
        scanner = Scanner(self.text[:to])
        with contextlib.suppress(TooDeep, IndexError, ValueError):
            scanner.run()
        return scanner

    def shown(self, at: int) -> tuple[int, int, str]:
        """Return the line and the column of an index, from 1, and the beginning of its line."""
        line = self.text.count("\n", 0, at) + 1
        return line, at - self.text.rfind("\n", 0, at), self.text.split("\n")[line - 1].strip()[:_SHOWN]


def _other_format(fault: _Fault, name: str) -> Problem | None:
    before = fault.text[: fault.at].split("\n")
    if fault.source.startswith("{") and not any(line.strip() and not line.lstrip().startswith("#") for line in before):
        return Problem(
            what=f"this is JSON, not TOML: `{fault.source[:_SHOWN]}`",
            expected=_LINES,
            fix="`synthctl config init` writes a job file to start from; a dataset is named in it, or by --dataset",
            where=f"{name}:{fault.line}",
        )
    section = _COLON.fullmatch(fault.source)
    if fault.source == "---" or (section and not section["value"]):
        header = f"[{section['key']}]" if section else "[model]"
        return Problem(
            what=f"this is YAML, not TOML: `{fault.source[:_SHOWN]}`",
            expected=f'{header} on a line of its own, and lines such as key = "value" below it',
            fix="`synthctl config init` writes a job file to start from",
            where=f"{name}:{fault.line}",
        )
    return None


def _open_string(fault: _Fault, name: str) -> Problem | None:
    if not fault.message.startswith(
        ("Illegal character '\\n'", "Found invalid character '\\n'", "Unterminated", 'Expected "')
    ):
        return None
    at = fault.scanned(fault.at).quote
    if at is None:
        return None
    line, column, source = fault.shown(at)
    quote = fault.text[at]
    fence = quote * 3 if fault.text.startswith(quote * 3, at) else quote
    return Problem(
        what=f"the text at line {line}, column {column} is not closed: `{source}`",
        expected=f"{fence!r} at its end" + (", on the same line" if fence == quote else ""),
        where=f"{name}:{line}",
    )


def _open_bracket(fault: _Fault, name: str) -> Problem | None:
    """Explain a missing closing bracket; tomllib often stops on a later line."""
    text = fault.text
    if fault.message.startswith("Expected ']"):
        at = text.rfind("\n", 0, fault.at) + 1
        at += len(text[at:]) - len(text[at:].lstrip(SPACE))
        missing, expected = "not closed", f"{']]' if text.startswith('[[', at) else ']'!r} at its end"
    elif fault.message.startswith(("Unclosed", "Invalid value", "Invalid initial character")):
        scanner = fault.scanned(fault.at)
        # Another error within a line needs no further explanation.
        ends = fault.at >= len(text.rstrip()) or text[fault.at] == "\n"
        if not scanner.open or (fault.message.startswith("Invalid") and not ends):
            return None
        at, missing, expected = scanner.open[-1], "not closed", "']' at its end"
        if text[at] == "{":
            missing, expected = "not closed on its line", "'}' on the same line, or a [table] in its place"
    else:
        return None
    line, column, source = fault.shown(at)
    return Problem(
        what=f"the {text[at]!r} at line {line}, column {column} is {missing}: `{source}`",
        expected=expected,
        where=f"{name}:{line}",
    )


def _repeated(fault: _Fault, name: str) -> Problem | None:
    if not fault.message.startswith("Cannot"):
        return None
    # The parser stands behind the statement, or at its end.
    first = fault.scanned(fault.at).repeats
    if first is None:
        return None
    header = fault.source.startswith("[")
    return Problem(
        what=f"`{fault.source[:_SHOWN]}` repeats line {first}",
        expected=f"each {'section' if header else 'key'} once",
        fix="put the keys of both below one header" if header else "remove one of the two",
        where=f"{name}:{fault.line}",
    )


def _colon(fault: _Fault, name: str) -> Problem | None:
    pair = _COLON.fullmatch(fault.source)
    if pair is None or not fault.message.startswith("Expected '='"):
        return None
    return Problem(
        what=f"a ':' after the key {pair['key']!r}: `{fault.source[:_SHOWN]}`",
        expected=f"{pair['key']} = {_as_toml(pair['value'])}"[:_SHOWN],
        where=f"{name}:{fault.line}",
    )


def _bare_value(fault: _Fault, name: str) -> Problem | None:
    pair = _BARE_VALUE.fullmatch(fault.source)
    if pair is None or not fault.message.startswith("Invalid value"):
        return None
    key, value = pair["key"], pair["value"]
    word = value.lower()
    if word in ("true", "false"):
        what, expected = f"{value} is not a value of TOML", f"{key} = {word}"
    elif word in ("none", "null"):
        what, expected = f"{value} is not a value of TOML", f"{key} with a value, or no line for it"
    else:
        what, expected = f"the text {value[:_SHOWN]} is not in quotes", f'{key} = "{value[:_SHOWN]}"'
    return Problem(what=f"{what}: `{fault.source[:_SHOWN]}`", expected=expected, where=f"{name}:{fault.line}")


def _as_toml(value: str) -> str:
    try:
        tomllib.loads(f"value = {value}")
    except tomllib.TOMLDecodeError:
        return f'"{value}"'
    return value
