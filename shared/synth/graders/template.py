"""Texts with references: `{{ item.answer }}` is a field of the row, `{{ sample.output_text }}` the model's reply.

A sample has `output_text`, `output_json` (the text, read as JSON) and `output_tools` (its tool calls). A path continues
into objects by `.name` and into lists by `[0]`. A text is inserted unchanged, any other value as JSON.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, cast

import msgspec

_OPEN, _CLOSE = "{{", "}}"
_LIMIT = "(SYNTH_MAX_GRADED_CHARACTERS)"
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
    """A row has no value at the place that a template refers to."""


class SampleLacks(Exception):
    """The model's reply has no value at the place that a template refers to."""


class TooLong(Exception):
    """The compared texts are longer than allowed, even without the model's reply."""


class Sample:
    """The model's reply. tools: its tool calls, as in a chat completion."""

    def __init__(self, text: str, tools: list[dict[str, Any]]) -> None:
        self.text = text
        self.tools = tools
        self._json: Any = msgspec.UNSET
        self._not_json = ""

    def json(self) -> Any:
        """Return the text as JSON, which is read once. Raises `SampleLacks`."""
        if self._json is msgspec.UNSET and not self._not_json:
            try:
                self._json = msgspec.json.decode(self.text)
            except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
                self._not_json = f"the output is not JSON: {error}"
        if self._not_json:
            raise SampleLacks(self._not_json)
        return self._json


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


def parse_template(text: str) -> Template:
    """Read a template, in a time that its length bounds. Raises `TemplateWrong`."""
    parts: list[str | FieldReference] = []
    at = 0
    while at < len(text):
        opened = text.find(_OPEN, at)
        if opened < 0:
            parts.append(text[at:])
            break
        if opened > at:
            parts.append(text[at:opened])
        closed = text.find(_CLOSE, opened)
        if closed < 0:
            raise TemplateWrong(f"{text[opened : opened + 80]!r} is not closed")
        parts.append(_reference(text[opened + len(_OPEN) : closed].strip()))
        at = closed + len(_CLOSE)
    return Template(tuple(parts))


class Budget:
    """How many characters the texts of one comparison may have: comparing them costs their product."""

    def __init__(self, characters: int) -> None:
        self._most = characters
        self._own = self._sampled = 0

    def spend(self, characters: int, *, sampled: bool) -> None:
        """Count a text. sampled: by the model. Raises `SampleLacks` for too long texts of the model, else `TooLong`."""
        if sampled:
            self._sampled += characters
        else:
            self._own += characters
        if self._own > self._most:
            raise TooLong(f"the texts to compare have more than {self._most:,} characters {_LIMIT}")
        if self._own + self._sampled > self._most:
            raise SampleLacks(
                f"the output is too long: it is compared up to {self._most - self._own:,} characters {_LIMIT}"
            )


def render(template: Template, item: Any, sample: Sample, budget: Budget) -> str:
    """Return the text with its references filled in. Raises `ItemLacks`, `SampleLacks` and `TooLong`."""
    return "".join(text for text, _ in render_pieces(template, item, sample, budget))


def render_pieces(template: Template, item: Any, sample: Sample, budget: Budget) -> list[tuple[str, bool]]:
    """Return the texts in order, each with whether the model wrote it. Raises as `render`."""
    pieces: list[tuple[str, bool]] = []
    for part in template.parts:
        text = part if isinstance(part, str) else _as_text(_value(part, item, sample))
        sampled = isinstance(part, FieldReference) and part.namespace == "sample"
        budget.spend(len(text), sampled=sampled)
        pieces.append((text, sampled))
    return pieces


def check_item(template: Template, item: Any) -> None:
    """Check that a row has all values that a template refers to. Raises `ItemLacks`."""
    for part in template.parts:
        if isinstance(part, FieldReference) and part.namespace == "item":
            _value(part, item, None)


def _reference(written: str) -> FieldReference:
    match = _REFERENCE.fullmatch(written)
    shown = "{{" + written[:80] + "}}"
    if match is None:
        raise TemplateWrong(f"{shown} is no reference")
    steps = _STEP.findall(match[2])
    path: tuple[str | int, ...] = tuple(name or int(index) for name, index in steps)
    if not path:
        raise TemplateWrong(f"{shown} names no field")
    if match[1] == "sample":
        if path[0] not in _SAMPLE:
            raise TemplateWrong(f"{shown}: a sample has no {path[0]!r}")
        if path[0] == "output_text" and len(path) > 1:
            raise TemplateWrong(f"{shown}: output_text is a text, which has no fields")
    return FieldReference(shown, match[1], path)


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
