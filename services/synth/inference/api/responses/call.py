"""Reads a call of the Responses API as the chat that it makes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from synth.chat.messages import Message
from synth.errors import Problem, UserError
from synth.inference.api.errors import renamed
from synth.inference.api.keys import MOST_NAMED, Part, UnreadKey, unread_keys
from synth.inference.api.requests import ChatRequest, decode_json, read_request, typed
from synth.inference.api.responses.fields import (
    AS_IN_CHATS,
    INCLUDABLE,
    LOGPROBS,
    NOT_KEPT,
    TABLES,
    FunctionTool,
    NamedChoice,
    NamespaceTool,
    ResponsesRequest,
)
from synth.inference.api.responses.items import ItemReader
from synth.inference.recording.response_log import ResponseLog

#: The fields of a chat, by their names in a Responses call.
_RENAMED = {
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
}
_FIELDS = "|".join(map(re.escape, _RENAMED))
_CHAT_NAMES = re.compile(
    rf"(?<![\w.])(?:{_FIELDS}|tools\[(?P<tool>\d+)\](?:\.function\b)?"
    r"|messages\[(?P<message>\d+)\](?:\.(?P<field>content|tool_calls\[\d+\]|reasoning_content)(?:\.function\b)?)?)"
)
#: Tools of the server's own that Codex offers with every call, so that their refusal would refuse Codex.
_SEARCH_PREFIX = "web_search"


@dataclass(frozen=True, slots=True)
class ResponsesCall:
    """A decoded call. chat: the chat request that it makes. messages_before: the messages of `chat` before the input's
    own.

    origins, tool_origins: the places in the call of each message and of each tool, in their order in the chat.
    namespaces: of functions, by their names. warnings: the fields of the call that have no effect.
    """

    given: ResponsesRequest
    chat: ChatRequest
    messages_before: int = 0
    origins: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    tool_origins: list[str] = field(default_factory=list[str])
    namespaces: dict[str, str] = field(default_factory=dict[str, str])
    warnings: tuple[str, ...] = ()

    def rename(self, text: str) -> str:
        """Return a text about the chat with the call's names of the fields."""

        def name(match: re.Match[str]) -> str:
            if match["tool"] is not None:
                return self.tool_origins[int(match["tool"])]
            if match["message"] is None:
                return _RENAMED[match[0]]
            at = int(match["message"]) - self.messages_before
            if not 0 <= at < len(self.origins):
                return "previous_response_id"
            places = self.origins[at]
            return places.get(match["field"] or "", places[""])

        text = text.replace("of type 'image_url'", "of type 'input_image'")
        return "input" if text == "messages" else _CHAT_NAMES.sub(name, text)


def decode_responses(body: bytes, kept: ResponseLog | None) -> ResponsesCall:
    """Decode and check a body. kept: the responses of its rollout; None outside a rollout.

    Raises `UserError` with every problem; outside a rollout also for fields that are not served and would change the
    reply.
    """
    fields = decode_json(body)
    call = typed(fields, ResponsesRequest, api="Responses")
    reader = ItemReader(kept)
    if isinstance(call.input, str):
        reader.read({"role": "user", "content": call.input}, "input")
    else:
        for i, item in enumerate(call.input or ()):
            reader.read(item, f"input[{i}]")
    before = [Message(role="system", content=call.instructions)] if call.instructions else []
    before += _earlier(call, kept)
    if not reader.messages and len(before) <= bool(call.instructions):
        raise UserError("there is no input", expected="a text, or at least one item", where="input")
    tools = _Tools(call.tools or ())
    choice, unserved = _tool_choice(call, tools)
    parts: list[Part] = [(fields, ResponsesRequest, ""), *reader.parts, *tools.parts]
    notes = [*reader.notes, *tools.unread, *_unkept(call, kept), *_not_included(call), *unserved]
    unread = [*unread_keys(parts, TABLES), *_first(notes)]
    if kept is None and (problems := [key.problem for key in unread if key.problem is not None]):
        raise UserError(problems)
    chat: dict[str, Any] = {
        **{name: fields[name] for name in AS_IN_CHATS if fields.get(name) is not None},
        "messages": reader.messages,
        "max_completion_tokens": call.max_output_tokens,
        "tools": tools.chat or None,
        "tool_choice": choice,
        "response_format": _response_format(call),
        "reasoning_effort": call.reasoning and call.reasoning.effort,
        "logprobs": LOGPROBS in (call.include or ()) or bool(call.top_logprobs) or None,
    }
    warnings = tuple(key.warning for key in unread)
    origins = reader.origins, tools.origins
    result = ResponsesCall(call, ChatRequest(messages=[]), len(before), *origins, tools.namespaces, warnings)
    try:
        return replace(result, chat=read_request(chat, [], max_choices=1, before=before))
    except UserError as error:
        raise UserError([renamed(problem, result.rename) for problem in error.problems]) from error


def _first(keys: list[UnreadKey]) -> list[UnreadKey]:
    """Return the first keys, and one that counts the others: a body may have thousands."""
    more = len(keys) - MOST_NAMED
    if more <= 0:
        return keys
    problem = Problem(what=f"{more} more such fields", where="body")
    return [*keys[:MOST_NAMED], UnreadKey(problem, f"{more} more fields have no effect")]


def _earlier(call: ResponsesRequest, kept: ResponseLog | None) -> list[Message]:
    """Return the messages of `previous_response_id`. Raises `UserError`, in a rollout, for one that is not there."""
    if call.previous_response_id is None or kept is None:
        return []
    messages = kept.conversation(call.previous_response_id)
    if messages is None:
        what = f"no response {call.previous_response_id[:80]!r} in this rollout"
        raise UserError(what, expected="the id of a response of its calls", where="previous_response_id")
    return messages


def _unkept(call: ResponsesRequest, kept: ResponseLog | None) -> Iterator[UnreadKey]:
    """Yield the fields that name what only a rollout keeps."""
    if kept is not None:
        return
    if call.store:
        problem = Problem(what=NOT_KEPT, expected="false, or no `store`", where="store")
        yield UnreadKey(problem, f"store has no effect: {NOT_KEPT}")
    if call.previous_response_id is not None:
        fix = "send the whole conversation in `input`"
        problem = Problem(what=NOT_KEPT, expected="none", fix=fix, where="previous_response_id")
        yield UnreadKey(problem, f"previous_response_id has no effect: {NOT_KEPT}")


def _not_included(call: ResponsesRequest) -> Iterator[UnreadKey]:
    for i, name in enumerate(call.include or ()):
        if name not in INCLUDABLE:
            where = f"include[{i}]"
            problem = Problem(what=f"include names {name[:60]!r}", expected=", ".join(INCLUDABLE), where=where)
            yield UnreadKey(problem, f"{where} has no effect: there is no {name[:60]!r}")


def _response_format(call: ResponsesRequest) -> dict[str, Any] | None:
    output_format = call.text and call.text.format
    if not output_format or output_format.get("type") != "json_schema":
        return output_format or None
    return {
        "type": "json_schema",
        "json_schema": {name: value for name, value in output_format.items() if name != "type"},
    }


def _tool_choice(call: ResponsesRequest, tools: _Tools) -> tuple[Any, list[UnreadKey]]:
    """Return the choice as a chat has it, and what of it is not served. Raises `UserError` for names of no tool."""
    requested = call.tool_choice
    if not isinstance(requested, dict):
        return requested, []
    choice = typed(requested, NamedChoice, "tool_choice", api="Responses")
    tools.parts.append((requested, NamedChoice, "tool_choice"))
    if choice.type == "function":
        return requested, []
    if choice.type == "allowed_tools":
        for i, tool in enumerate(choice.tools or ()):
            if tool.name not in tools.names:
                what, expected = f"there is no tool {str(tool.name)[:60]!r}", "the name of a function in `tools`"
                raise UserError(what, expected=expected, where=f"tool_choice.tools[{i}]")
        return {"type": "allowed_tools", "allowed_tools": {n: v for n, v in requested.items() if n != "type"}}, []
    what = f"tool_choice is {str(requested)[:60]}"
    problem = Problem(what=what, expected="none, auto, required, function or allowed_tools", where="tool_choice")
    return None, [UnreadKey(problem, "tool_choice has no effect: replies hold calls of functions alone")]


class _Tools:
    """The tools of a call, in the form of a chat. unread: the parts of them that are not served."""

    def __init__(self, given: Sequence[dict[str, Any]]) -> None:
        self.chat: list[dict[str, Any]] = []
        self.origins: list[str] = []
        self.namespaces: dict[str, str] = {}
        self.names: set[str] = set()
        self.parts: list[Part] = []
        self.unread: list[UnreadKey] = []
        for i, tool in enumerate(given):
            self._read(tool, f"tools[{i}]")

    def _read(self, tool: dict[str, Any], place: str, namespace: str | None = None) -> None:
        kind = tool.get("type")
        if kind == "function":
            self._add(tool, place, namespace)
        elif kind == "namespace" and namespace is None:
            group = typed(tool, NamespaceTool, place, api="Responses")
            self.parts.append((tool, NamespaceTool, place))
            for j, inner in enumerate(group.tools):
                self._read(inner, f"{place}.tools[{j}]", group.name)
        elif isinstance(kind, str) and kind.startswith(_SEARCH_PREFIX):
            note = "there is no web search here; the model is not shown it"
            self.unread.append(UnreadKey(None, f"{place} has no effect: {note}"))
        else:
            what, fix = f"a tool of the type {str(kind)[:60]!r}", "give the model a function of your own"
            problem = Problem(what=what, expected='tools of the type "function"', fix=fix, where=place)
            self.unread.append(UnreadKey(problem, f"{place} has no effect: {fix}"))

    def _add(self, tool: dict[str, Any], place: str, namespace: str | None) -> None:
        read = typed(tool, FunctionTool, place, api="Responses")
        self.parts.append((tool, FunctionTool, place))
        if read.name in self.names:
            fix = "rename one of them: the model calls a function by its name alone"
            raise UserError(f"two functions {read.name[:60]!r}", fix=fix, where=f"{place}.name")
        self.names.add(read.name)
        fields = ("name", "description", "parameters", "strict")
        function = {name: value for name in fields if (value := getattr(read, name)) is not None}
        self.chat.append({"type": "function", "function": function})
        self.origins.append(place)
        if namespace is not None:
            self.namespaces[read.name] = namespace
