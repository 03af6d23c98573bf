"""Texts with references: `{{ item.answer }}` is a field of the row, `{{ sample.output_text }}` what the model said.

Of a sample there are `output_text`, `output_json` (the text, read as JSON) and `output_tools` (its tool calls). A path
goes on into objects by `.name` and into lists by `[0]`. A text stands as it is, any other value as JSON.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any, cast

import msgspec

_OPEN, _CLOSE = "{{", "}}"
_SAMPLE = ("output_text", "output_json", "output_tools")
_REFERENCE = re.compile(r"(item|sample)((?:\.[^\s.\[\]{}]+|\[\d{1,9}\])*)")
_STEP = re.compile(r"\.([^\s.\[\]{}]+)|\[(\d+)\]")
_EXPECTED = "{{item.FIELD}}, {{sample.output_text}}, {{sample.output_json.FIELD}} or {{sample.output_tools}}"


class TemplateWrong(Exception):
    """A template that cannot be read."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.expected = _EXPECTED


class ItemLacks(Exception):
    """A row has no value where a template refers to one."""


class SampleLacks(Exception):
    """What the model said has no value where a template refers to one."""


class TooLong(Exception):
    """The texts of one grading are longer than they may be."""


@dataclass(frozen=True)
class Sample:
    """What the model said. tools: its tool calls, as in a chat completion."""

    text: str
    tools: list[dict[str, Any]]

    def json(self) -> Any:
        """The text as JSON. Raises `SampleLacks`."""
        try:
            return msgspec.json.decode(self.text)
        except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
            raise SampleLacks(f"the output is not JSON: {error}") from error


@dataclass(frozen=True)
class FieldReference:
    """One `{{…}}`. path: keys of objects and indexes of lists."""

    written: str
    namespace: str
    path: tuple[str | int, ...]


@dataclass(frozen=True)
class Template:
    """Texts and references, in their order."""

    parts: tuple[str | FieldReference, ...]


@functools.lru_cache(maxsize=1024)
def parse_template(text: str) -> Template:
    """Read a template. Raises `TemplateWrong`."""
    parts: list[str | FieldReference] = []
    rest = text
    while rest:
        before, opened, after = rest.partition(_OPEN)
        if before:
            parts.append(before)
        if not opened:
            break
        inside, closed, rest = after.partition(_CLOSE)
        if not closed:
            raise TemplateWrong(f"{(_OPEN + inside)[:80]!r} is not closed")
        parts.append(_reference(inside.strip()))
    return Template(tuple(parts))


class Budget:
    """How many characters the texts of one grading may still have: comparing them costs their product."""

    def __init__(self, characters: int) -> None:
        self._whole = self._left = characters

    def spend(self, characters: int) -> None:
        self._left -= characters
        if self._left < 0:
            raise TooLong(f"the texts to grade have more than {self._whole} characters (SYNTH_MAX_GRADED_CHARACTERS)")


def render(template: Template, item: Any, sample: Sample, budget: Budget) -> str:
    """The text, its references filled in. Raises `ItemLacks`, `SampleLacks` and `TooLong`."""
    texts: list[str] = []
    for part in template.parts:
        text = part if isinstance(part, str) else _as_text(_value(part, item, sample))
        budget.spend(len(text))
        texts.append(text)
    return "".join(texts)


def check_item(template: Template, item: Any) -> None:
    """Look whether a row has what a template refers to. Raises `ItemLacks`."""
    for part in template.parts:
        if isinstance(part, FieldReference) and part.namespace == "item":
            _value(part, item, None)


def _reference(written: str) -> FieldReference:
    found = _REFERENCE.fullmatch(written)
    shown = "{{" + written[:80] + "}}"
    if found is None:
        raise TemplateWrong(f"{shown} is no reference")
    steps = _STEP.findall(found[2])
    path: tuple[str | int, ...] = tuple(name or int(index) for name, index in steps)
    if not path:
        raise TemplateWrong(f"{shown} names no field")
    if found[1] == "sample":
        if path[0] not in _SAMPLE:
            raise TemplateWrong(f"{shown}: a sample has no {path[0]!r}")
        if path[0] == "output_text" and len(path) > 1:
            raise TemplateWrong(f"{shown}: output_text is a text, which has no fields")
    return FieldReference(shown, found[1], path)


def _value(reference: FieldReference, item: Any, sample: Sample | None) -> Any:
    if reference.namespace == "item":
        return _walk(reference, item, reference.path, ItemLacks)
    assert sample is not None
    match reference.path[0]:
        case "output_text":
            return sample.text
        case "output_json":
            return _walk(reference, sample.json(), reference.path[1:], SampleLacks)
        case _:
            return _walk(reference, sample.tools, reference.path[1:], SampleLacks)


def _walk(
    reference: FieldReference, value: Any, path: tuple[str | int, ...], lacks: type[ItemLacks] | type[SampleLacks]
) -> Any:
    for step in path:
        if isinstance(step, str) and isinstance(value, dict) and step in value:
            value = cast(dict[str, Any], value)[step]
        elif isinstance(step, int) and isinstance(value, list) and step < len(cast(list[Any], value)):
            value = cast(list[Any], value)[step]
        else:
            raise lacks(f"there is no {step!r} for {reference.written}")
    return value


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
