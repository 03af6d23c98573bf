"""Tool calls whose arguments are a JSON object: Qwen's and Hermes's, Mistral's two forms, Llama 3's."""

from __future__ import annotations

from synth.chat.json_text import BadJson, read_json
from synth.chat.marks import CALL_END, CALL_START
from synth.chat.replies.reader import CallSyntax, ReadCall, ReplyReader, json_call
from synth.chat.replies.source import Reading

_LIST, _ARGUMENTS, _ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
#: The length of the ids of a Mistral's calls; its templates refuse others.
_ID_LENGTH = 9
_PYTHON = "<|python_tag|>"


class MarkedReader(ReplyReader):
    """`<tool_call>{"name": …, "arguments": {…}}</tool_call>`, once for each call."""

    syntax = CallSyntax(
        marks=(CALL_START,),
        before_name=CALL_START + '\n{"name": "',
        # Without the space that JSON has here: with it, the token that a model would sample next could not come.
        after_name='", "arguments":',
        name_end='"',
        after_arguments=f"}}\n{CALL_END}",
        later="\n" + CALL_START + '\n{"name": "',
    )

    def _calls(self) -> Reading[bool]:
        source = self._source
        yield from source.takes(CALL_START)
        yield from source.space()
        call = json_call((yield from source.json_object()), ("arguments",))
        yield from source.space()
        return bool(call and (yield from source.takes(CALL_END))) and self._call(call)


class ThinkingMarkedReader(MarkedReader):
    """The same after reasoning."""

    thinks = True


class ListReader(ReplyReader):
    """`[TOOL_CALLS][{"name": …, "arguments": {…}}, …]`, as Mistral's older templates have it, or the newer form."""

    syntax = CallSyntax(
        marks=(_LIST,),
        before_name=_LIST + '[{"name": "',
        after_name='", "arguments":',
        name_end='"',
        after_arguments="}",
        later=', {"name": "',
        closing="]",
        id_length=_ID_LENGTH,
    )

    def _calls(self) -> Reading[bool]:
        source = self._source
        yield from source.takes(_LIST)
        yield from source.space()
        if not (yield from source.takes("[")):
            return (yield from self._named())
        self.unclosed = True
        yield from source.space()
        while self._call(json_call((yield from source.json_object()), ("arguments",))):
            yield from source.space()
            more = yield from source.takes(",")
            yield from source.space()
            if (yield from source.takes("]")):
                self.unclosed = False
                return True
            if not more or source.at >= len(source.text):
                return source.ended and source.at >= len(source.text)
        return False

    def _named(self) -> Reading[bool]:
        source = self._source
        name, id = (yield from source.up_to(_ARGUMENTS, _ID, "{")), None
        if name is not None and (yield from source.takes(_ID)):
            id = yield from source.up_to(_ARGUMENTS, "{")
        yield from source.takes(_ARGUMENTS)
        yield from source.space()
        arguments = yield from source.json_object()
        if not name or arguments is None or not _is_json(arguments):
            return False
        return self._call(ReadCall(name.strip(), arguments, (id or "").strip() or None))


class NamedReader(ListReader):
    """`[TOOL_CALLS]name[ARGS]{…}`, once for each call, as Mistral's newer templates have it, or the older form."""

    syntax = CallSyntax(
        marks=(_LIST,),
        before_name=_LIST,
        after_name=_ARGUMENTS,
        name_end="[",
        after_arguments="",
        later=_LIST,
        id_length=_ID_LENGTH,
    )


class BareReader(ReplyReader):
    """`{"name": …, "parameters": {…}}` in place of content, as in Llama 3; more of them after a semicolon.

    Any other JSON is content, and so is an object that names no tool of the request.
    """

    syntax = CallSyntax(
        marks=(_PYTHON,),
        before_name='{"name": "',
        after_name='", "parameters":',
        name_end='"',
        after_arguments="}",
        later='; {"name": "',
    )

    def _content_and_calls(self) -> Reading[None]:
        source = self._source
        while self._tools:
            at = source.at
            yield from source.space()
            tagged = yield from source.takes(_PYTHON)
            yield from source.space()
            begin = source.at
            call = json_call((yield from source.json_object()), ("parameters", "arguments"))
            if call is None or call.name not in self._tools or not self._call(call):
                begun = tagged or source.text.startswith('{"name"', begin)
                source.at = at
                if begun:
                    self._no_call(at, begin)
                break
            yield from source.space()
            if not (yield from source.takes(";")):
                break
        yield from self._stream("content", (), start=None if self.calls and not self._content else "")


def _is_json(text: str) -> bool:
    try:
        read_json(text)
    except BadJson:
        return False
    return True
