"""Qwen3-Coder's tool calls: `<function=name>`, in it `<parameter=name>value</parameter>`; `<tool_call>` around it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from synth.chat.json_text import BadJson, read_json, write_json
from synth.chat.marks import CALL_END, CALL_START
from synth.chat.replies.reader import CallSyntax, ReadCall, ReplyReader
from synth.chat.replies.source import Reading
from synth.chat.tools import is_text, parameters_of

FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"


class XmlReader(ReplyReader):
    """Reads calls whose values are text; the tool's schema gives their types. A value of another type stays text.

    A value ends where another parameter or the end of the function follows, so that it may hold any other mark.
    """

    syntax = CallSyntax(
        marks=(CALL_START, FUNCTION),  # Qwen3-Coder leaves the outer mark out at times
        before_name=f"{CALL_START}\n{FUNCTION}",
        after_name=">\n",
        name_end=">",
        after_arguments=f"{FUNCTION_END}\n{CALL_END}",
        later=f"\n{CALL_START}\n{FUNCTION}",
        xml=True,
    )

    def _calls(self) -> Reading[bool]:
        source = self._source
        yield from source.takes(CALL_START)
        yield from source.space()
        if not (yield from source.takes(FUNCTION)):
            return False
        name = yield from self._name()
        if name is None:
            return False
        types, arguments = parameters_of(self._tools.get(name, {})), dict[str, Any]()
        while True:
            yield from source.space()
            if not (yield from source.takes(PARAMETER)):
                break
            key = yield from self._name()
            value = None if key is None else (yield from self._value())
            if key is None or value is None:
                return False
            arguments[key] = _typed(value, types.get(key, {}))
        if not (yield from source.takes(FUNCTION_END)):
            return False
        end = source.at
        yield from source.space()
        if not (yield from source.takes(CALL_END)):
            source.at = end
        try:
            return self._call(ReadCall(name, write_json(arguments)))
        except BadJson:
            return False

    def _name(self) -> Reading[str | None]:
        """Read a name and the bracket after it."""
        name = yield from self._source.up_to("<", ">")
        taken = yield from self._source.takes(">")
        return name.strip() if name and taken else None

    def _value(self) -> Reading[str | None]:
        """Read a value and the end of its parameter."""
        source, start = self._source, self._source.at
        while (yield from source.up_to(PARAMETER_END)) is not None:
            end = source.at
            yield from source.takes(PARAMETER_END)
            after = source.at
            yield from source.space()
            if (yield from source.takes(PARAMETER, FUNCTION_END)):
                source.at = after
                return source.text[start:end].removeprefix("\n").removesuffix("\n")
            source.at = after
        return None


class ThinkingXmlReader(XmlReader):
    """The same after reasoning."""

    thinks = True


def _typed(value: str, schema: Mapping[str, Any]) -> Any:
    if is_text(schema):
        return value
    # Templates write Python's names of these.
    spelled = {"True": "true", "False": "false", "None": "null"}.get(value.strip(), value.strip())
    try:
        return read_json(spelled)
    except BadJson:
        return value
