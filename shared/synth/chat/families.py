"""How the families of models write reasoning and tool calls, and how both are read back. One table, at the end.

A model writes what its chat template taught it, so the template decides which family a model belongs to: a finetune
keeps it under any name. What is malformed is no call, and stays text: a policy may say anything.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from synth.chat.json_text import BadJson, read_json, refuse_constant, write_json

#: Reasoning stands between these two, at the beginning of a reply.
THINK, THINK_END = "<think>", "</think>"
#: Ends reasoning that reaches its budget; templates render the end of reasoning with the same text.
THINK_CLOSING = f"\n{THINK_END}\n\n"
#: Ends a tool call in every family; as a stop string it ends a reply after the first one, and stays in the text.
CALL_END = "</tool_call>"
CALL_START = "<tool_call>"
#: What a model writes around its reasoning and its calls: never escaped in a message, for it comes back in messages.
MARKS = (CALL_START, CALL_END, THINK, THINK_END)

Tools = Sequence[dict[str, Any]]


class ReadCall(NamedTuple):
    """One tool call. arguments: JSON text, as the OpenAI API has it."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How a family writes a tool call.

    marks: texts with which one may begin. before_name, after_name: what stands around its function's name, up to where
    the arguments begin. name_end: what follows a name and cannot be in it.
    read: the calls in a text that begins with a mark, or [] where one of them is malformed.
    raw_arguments: of the text between `after_name` and the end of a call that may be malformed or cut off, the
    arguments. after_arguments: what ends a call after its arguments. json_arguments: whether these are JSON.
    """

    marks: tuple[str, ...]
    before_name: str
    after_name: str
    name_end: str
    read: Callable[[str, Tools], list[ReadCall]]
    raw_arguments: Callable[[str], str]
    after_arguments: str
    json_arguments: bool

    def read_forced(self, text: str, tools: Tools, names: Sequence[str]) -> tuple[list[ReadCall], str]:
        """The calls in a text that was made to begin with a call of one of `names`, and the text after them.

        The first call's arguments are what the model wrote, JSON or not; without a whole name there is no call.
        """
        calls = self.read(text, tools)
        if calls:
            return calls, ""
        body = text.removeprefix(self.before_name)
        name = next((name for name in names if body.startswith(name + self.after_name)), None)
        if name is None or body == text:
            return [], text
        first, _, rest = body[len(name + self.after_name) :].partition(CALL_END)
        later = self.read(rest.lstrip(), tools)
        return [ReadCall(name, self.raw_arguments(first)), *later], "" if later else rest.strip()


@dataclass(frozen=True, slots=True)
class Family:
    """What the replies of one family of models look like. thinks: whether they may begin with reasoning."""

    name: str
    calls: CallFormat
    thinks: bool


def _up_to_last(end: re.Pattern[str], text: str) -> str:
    """The text up to the last end of a call.

    Behind it each beginning of a call would be looked at to the end of the text, in vain: minutes, for a reply of
    100,000 characters that is nothing but beginnings.
    """
    last = 0
    for found in end.finditer(text):
        last = found.end()
    return text[:last]


_JSON_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)
_JSON_CALL_END = re.compile(r"\}\s*</tool_call>")


def read_json_calls(text: str, tools: Tools) -> list[ReadCall]:
    """The hermes format: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, as often as there are calls."""
    found: list[ReadCall] = []
    for block in _JSON_CALL.finditer(_up_to_last(_JSON_CALL_END, text)):
        try:
            call: dict[str, Any] = read_json(block[1])
            name, arguments = call.get("name"), call.get("arguments", {})
            spelled = arguments if isinstance(arguments, str) else write_json(arguments)
        except BadJson:
            return []
        if not isinstance(name, str) or not _is_text(name) or not _is_text(spelled):
            return []
        found.append(ReadCall(name, spelled))
    return found


def _raw_json_arguments(text: str) -> str:
    """The text's JSON value where it is one; else the text, without the brace that ends the call itself."""
    text = text.strip()
    raw = text.removesuffix("}").rstrip()
    try:
        value, end = json.JSONDecoder(parse_constant=refuse_constant).raw_decode(text)
        spelled = value if isinstance(value, str) else write_json(value)
    # A text that ends within its first value is that value, cut off: all of its braces are its own.
    except json.JSONDecodeError as error:
        return text if error.pos >= len(text) - 1 else raw
    except (ValueError, RecursionError):
        return raw
    return spelled if text[end:].strip() in ("", "}") and _is_text(spelled) else raw


_XML_CALL = re.compile(r"<function=([^<>]+)>(.*?)</function>", re.DOTALL)
_XML_CALL_END = re.compile("</function>")
_XML_ARGUMENT = re.compile(r"\s*<parameter=([^<>]+)>\n?(.*?)\n?</parameter>", re.DOTALL)


def read_xml_calls(text: str, tools: Tools) -> list[ReadCall]:
    """Qwen3-Coder's format: `<function=name>`, in it `<parameter=name>value</parameter>`; `<tool_call>` around it.

    A value is text; the tool's schema says what it means. One that does not fit its type stays text.
    """
    types = {name: _types_of(function) for name, function in functions_of(tools).items()}
    found: list[ReadCall] = []
    for call in _XML_CALL.finditer(_up_to_last(_XML_CALL_END, text)):
        name, end = call[1].strip(), 0
        arguments: dict[str, Any] = {}
        # One behind the other, from where the last one ended: a search would begin at each space anew.
        while (argument := _XML_ARGUMENT.match(call[2], end)) is not None:
            end, key = argument.end(), argument[1].strip()
            arguments[key] = _typed(argument[2], types.get(name, {}).get(key, ""))
        if call[2][end:].strip():
            return []
        found.append(ReadCall(name, write_json(arguments)))
    return found


def _raw_xml_arguments(text: str) -> str:
    """The parameters as the model wrote them."""
    return text.partition("</function>")[0].strip()


def functions_of(tools: Tools) -> dict[str, Mapping[str, Any]]:
    """A request's functions by their names; the flat form without `function` around it is taken too."""
    found: dict[str, Mapping[str, Any]] = {}
    for tool in tools:
        function = _object(tool.get("function", tool))
        if isinstance(function.get("name"), str):
            found[function["name"]] = function
    return found


def _types_of(function: Mapping[str, Any]) -> dict[str, str]:
    """The JSON-schema type of each parameter, where the schema says one."""
    properties = _object(_object(function.get("parameters")).get("properties"))
    types = {key: _object(schema).get("type") for key, schema in properties.items()}
    return {key: type for key, type in types.items() if isinstance(type, str)}


def _object(value: Any) -> dict[str, Any]:
    """The value where it is an object, else {}."""
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def _typed(value: str, type: str) -> Any:
    if type in ("", "string"):
        return value
    try:
        return read_json(value.strip().lower() if type == "boolean" else value.strip())
    except BadJson:
        return value


def _is_text(name: str) -> bool:
    """Whether it can be sent: JSON escapes can spell half of a surrogate pair."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


_JSON_CALLS = CallFormat(
    marks=(CALL_START,),
    before_name=CALL_START + '\n{"name": "',
    # Without the space that JSON has here: with it, the token that a model would sample next could not come.
    after_name='", "arguments":',
    name_end='"',
    read=read_json_calls,
    raw_arguments=_raw_json_arguments,
    after_arguments=f"}}\n{CALL_END}",
    json_arguments=True,
)
_XML_CALLS = CallFormat(
    marks=(CALL_START, "<function="),  # Qwen3-Coder leaves the outer mark out at times
    before_name=CALL_START + "\n<function=",
    after_name=">\n",
    name_end=">",
    read=read_xml_calls,
    raw_arguments=_raw_xml_arguments,
    after_arguments=f"</function>\n{CALL_END}",
    json_arguments=False,
)

# What a template must hold to be of a family; the first that fits.
_FAMILIES: tuple[tuple[tuple[str, ...], Family], ...] = (
    # A coder's calls after reasoning.
    (("<function=", THINK_END), Family("qwen3.5", _XML_CALLS, thinks=True)),
    (("<function=",), Family("qwen3-coder", _XML_CALLS, thinks=False)),
    # Qwen3 and Qwen3-VL alike; the instruct models of both have no reasoning in their templates.
    ((THINK_END,), Family("qwen3", _JSON_CALLS, thinks=True)),
    # Qwen2.5, Qwen3-Instruct-2507, Qwen3-VL-Instruct, and any other: hermes is what most models were taught.
    ((), Family("qwen2.5", _JSON_CALLS, thinks=False)),
)


def always_thinks(template: str) -> bool:
    """Whether each reply begins inside its reasoning, whatever is asked for, by the model's chat template."""
    _, asked, opening = template.rpartition("add_generation_prompt")
    return bool(asked) and THINK in opening and "enable_thinking" not in template


@functools.lru_cache(maxsize=64)
def family_of(template: str) -> Family:
    """The family of a model by its chat template."""
    return next(family for signs, family in _FAMILIES if all(sign in template for sign in signs))
