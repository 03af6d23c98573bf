"""The grammars of tool calls, in llguidance's Lark, in the syntax of each family.

A mark that is a special token of the model is no text for llguidance. So a mark stands in `place` here, and the
compiler writes it as the model's tokenizer has it; likewise for the schema that is compiled, `SCHEMA`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from synth.chat.families import Family
from synth.chat.marks import MARKS
from synth.chat.replies.harmony import CHANNEL, HarmonyReader
from synth.chat.replies.harmony import MARKS as CHANNEL_MARKS
from synth.chat.replies.xml_calls import PARAMETER, PARAMETER_END
from synth.chat.tools import as_object, is_text
from synth.errors import UserError

SCHEMA = "\ue000schema\ue001"
_PLACE = re.compile("\ue000(.*?)\ue001")
#: One line: if any white space is allowed, a small model may write nothing else to the end.
ONE_LINE = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
_OBJECT = json.dumps({"type": "object", "x-guidance": ONE_LINE})
# Up to the first end of a parameter, and with it.
_TEXT = r"(.|\n)*\n" + PARAMETER_END.replace("/", r"\/") + r"\n"
_ANY_PARAMETER = rf"/{PARAMETER}[^<>\n]+>\n/ text"
#: Keywords that say more of a text than that it is one.
_UNENFORCED = ("pattern", "format", "minLength", "maxLength")


def place(mark: str) -> str:
    """Return the text that stands for a mark in a grammar."""
    return f"\ue000{mark}\ue001"


def fill(grammar: str, schema: str, special: Any) -> str:
    """Return a grammar with its marks and its schema. special: returns the id of a mark that is a special token."""

    def terminal(found: re.Match[str]) -> str:
        if found[0] == SCHEMA:
            return schema
        token_id = special(found[1])
        return json.dumps(found[1]) if token_id is None else f"<[{token_id}]>"

    return _PLACE.sub(terminal, grammar)


def answer_or_calls(family: Family, names: Sequence[str]) -> str | None:
    """Return the grammar of a reply that is JSON of `SCHEMA`, or calls of these functions if there are any.

    None if that is the JSON alone, without anything around it.
    """
    syntax, channels = family.calls, issubclass(family.reader, HarmonyReader)
    if not channels and (syntax is None or not names):
        return None
    answer = "%json " + SCHEMA
    rules = ["start: answer"]
    if channels:
        analysis = _terminals(f"{CHANNEL}analysis<|message|>", family)
        after = _terminals("<|end|><|start|>assistant", family)
        rules = [f"start: ({analysis} said {after})? answer", r"said: /(.|\n)*/"]
        answer = _terminals(f"{CHANNEL}final<|message|>", family) + " " + answer
    rules.append(f"answer: {answer}" + (" | calls" if syntax and names else ""))
    if syntax and names:
        first, after_name, end = (_terminals(t, family) for t in (syntax.before_name, syntax.after_name, syntax.ending))
        later = "" if syntax.alone else f"({_terminals(syntax.later, family)} called)*"
        if syntax.before_name.startswith("{"):
            # A call that is bare JSON begins as the answer does, so both have the same terminals.
            return "\n".join([*rules, 'calls: called ("; " called)*', f"called: %json {_bare_call(names)}"])
        arguments = "parameter*" if syntax.xml else f'" "? %json {_OBJECT}'
        rules += [
            f"calls: {first} called {later} {_terminals(syntax.closing, family)}",
            f"called: name {after_name} {arguments} {end}",
            "name: " + " | ".join(json.dumps(name if syntax.xml else json.dumps(name)[1:-1]) for name in names),
            *((f"parameter: {_ANY_PARAMETER}", f"text[lazy]: /{_TEXT}/") if syntax.xml else ()),
        ]
    return "\n".join(rules)


def _bare_call(names: Sequence[str]) -> str:
    properties = {"name": {"enum": list(names)}, "parameters": {"type": "object"}}
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return json.dumps({**schema, "x-guidance": ONE_LINE})


def xml_arguments(schema: dict[str, Any], where: str) -> tuple[str, list[str]]:
    """Return the grammar of an XML call's parameters, and the places of the rules that it does not enforce.

    Parameters come in the order of the schema. Raises `UserError` for a name that cannot be written.
    """
    named = {str(key): as_object(value) for key, value in as_object(schema.get("properties")).items()}
    strange = next((key for key in named if re.search(r"[<>\n]", key) or not key.strip()), None)
    if strange is not None:
        raise UserError(
            f"this model's calls cannot name a parameter {strange[:60]!r}",
            expected="names without `<`, `>` and line breaks",
            where=f"{where}.properties",
        )
    if not named:
        return f"start: parameter*\nparameter: {_ANY_PARAMETER}\ntext[lazy]: /{_TEXT}/", []
    listed = schema.get("required")
    required = set(map(str, listed)) if isinstance(listed, list) else set[str]()
    definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    sequence = " ".join(f"p{i}" if key in required else f"p{i}?" for i, key in enumerate(named))
    rules = [f"start: {sequence}", f"text[lazy]: /{_TEXT}/"]
    for i, (key, value) in enumerate(named.items()):
        rules.append(f"p{i}: {json.dumps(f'{PARAMETER}{key}>' + chr(10))} {_value(value, definitions)}")
    return "\n".join(rules), [f"{where}.{place}" for place in _loose(named)]


def _value(schema: dict[str, Any], definitions: dict[str, Any]) -> str:
    """Return the grammar of one parameter's value, with the parameter's end."""
    end = json.dumps(f"\n{PARAMETER_END}\n")
    if not is_text(schema):
        return "%json " + json.dumps({**schema, **definitions, "x-guidance": {**ONE_LINE, "lenient": True}}) + f" {end}"
    chosen = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(chosen, list):
        spelled = [json.dumps(value if isinstance(value, str) else json.dumps(value)) for value in chosen]
        return f"({' | '.join(spelled)}) {end}"
    return "text"


def _loose(named: dict[str, dict[str, Any]]) -> Iterator[str]:
    for key, schema in named.items():
        if is_text(schema):
            yield from (f"properties.{key}.{word}" for word in _UNENFORCED if word in schema)


def _terminals(text: str, family: Family) -> str:
    """Return the grammar of a fixed text, in which each mark is a terminal of its own."""
    marks = sorted({*MARKS, *family.marks, *CHANNEL_MARKS, "<|call|>"}, key=len, reverse=True)
    parts = re.split(f"({'|'.join(map(re.escape, marks))})", text)
    return " ".join(place(part) if part in marks else json.dumps(part) for part in parts if part)
