"""Finds the keys of a chat request that are not read, at any depth, and decides how each is treated.

A key is read if the struct of its object has a field of that name, and the object's other keys leave it in force. Any
other key is in a table below, or there is no such field. A key without a value (null, an empty text, list or object)
changes nothing.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast, get_args

import msgspec

from synth.chat.json_text import BadJson, tool_arguments
from synth.chat.messages import (
    PART_TYPES,
    ContentPart,
    FunctionCall,
    ImageUrl,
    Message,
    MessageToolCall,
    Tool,
    ToolFunction,
)
from synth.chat.tools import as_object, functions_of
from synth.datasets.turns import is_empty, meant
from synth.errors import Problem

Treatment = Literal["honoured", "refused", "ignored", "taken"]

#: Characters of a call's arguments that are read for a warning. Longer ones are read once their values are counted.
_MOST_READ = 64 << 10
#: How many keys a reply names; of the others it has the number.
MOST_NAMED = 20


@dataclass(frozen=True, slots=True)
class OpenAIField:
    """How one field is treated. taken: it has no effect on the text, and the reply does not mention it.

    neutral: values that change nothing, beside null; they are taken silently.
    expected: the values that a refused field may have. note: why it is refused or ignored, and what to do.
    """

    treatment: Treatment
    neutral: tuple[Any, ...] = ()
    expected: str = "none"
    note: str = ""


_HONOURED = OpenAIField("honoured")
_TAKEN = OpenAIField("taken")

OPENAI_FIELDS: dict[str, OpenAIField] = {
    **dict.fromkeys(
        (
            *("messages", "model", "stream", "stream_options", "temperature", "top_p", "max_tokens"),
            *("max_completion_tokens", "stop", "seed", "n", "logprobs", "tools", "tool_choice", "function_call"),
            *("functions", "parallel_tool_calls", "response_format", "reasoning_effort"),
            *("top_logprobs", "frequency_penalty", "presence_penalty", "logit_bias"),
            # The gateway chooses a replica by these two.
            *("prompt_cache_key", "user"),
        ),
        _HONOURED,
    ),
    "modalities": OpenAIField("refused", (["text"], []), '["text"]', "replies are text"),
    "audio": OpenAIField("refused", (), "none", "replies are text"),
    "web_search_options": OpenAIField("refused", (), "none", "give the model a tool of your own"),
    "moderation": OpenAIField("refused", (), "none", "leave it out"),
    "verbosity": OpenAIField("refused", ("medium",), '"medium"', "say it in the prompt"),
    "store": OpenAIField("refused", (False,), "false", "completions are not kept"),
    "metadata": OpenAIField("ignored", ({},), note="completions are not kept"),
    "prediction": OpenAIField("ignored", note="a prediction makes nothing faster here"),
    "prompt_cache_options": OpenAIField("ignored", note="prefixes are cached for as long as there is room"),
    "prompt_cache_retention": OpenAIField("ignored", note="prefixes are cached for as long as there is room"),
    "safety_identifier": OpenAIField("ignored", note="requests are not screened"),
    "service_tier": OpenAIField("ignored", ("auto", "default"), note="there is one tier"),
}

#: Fields of other servers, by the value that changes nothing.
_FOREIGN: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("min_p", "min_tokens"), (0,)),
    **dict.fromkeys(("repetition_penalty", "length_penalty", "best_of"), (1,)),
    **dict.fromkeys(("ignore_eos", "use_beam_search", "echo", "continue_final_message"), (False,)),
    **dict.fromkeys(("include_stop_str_in_output", "add_special_tokens"), (False,)),
    **dict.fromkeys(("add_generation_prompt", "skip_special_tokens", "spaces_between_special_tokens"), (True,)),
    **dict.fromkeys(("bad_words", "stop_token_ids", "documents"), ([],)),
    **dict.fromkeys(("allowed_token_ids", "chat_template", "structured_outputs", "grammar"), ()),
    **dict.fromkeys(("guided_json", "guided_regex", "guided_choice", "guided_grammar"), ()),
}
#: Fields of no OpenAI API, which other servers have.
FOREIGN_FIELDS = {
    name: OpenAIField("refused", neutral, note="it is not served: leave it out") for name, neutral in _FOREIGN.items()
}
_AT_THE_TOP = OPENAI_FIELDS | FOREIGN_FIELDS


class ChatMessage(Message, frozen=True, gc=False, kw_only=True):
    """The keys of a message of a chat. function_call: a tool call by its older name."""

    function_call: FunctionCall | None = None


#: Keys inside a chat that clients and copied replies have, by the object that holds them; docs/api.md shows this table.
ANNOTATIONS: dict[type[msgspec.Struct], dict[str, OpenAIField]] = {
    ChatMessage: {
        **dict.fromkeys(("annotations", "cache_control", "id", "parsed", "provider_specific_fields", "weight"), _TAKEN),
        "refusal": OpenAIField("refused", ("",), "null", "move its text into `content`"),
        "audio": OpenAIField("refused", ({},), "null", "models here read text and images"),
    },
    MessageToolCall: {
        **dict.fromkeys(("cache_control", "index", "provider_specific_fields"), _TAKEN),
        "type": OpenAIField("refused", ("function",), '"function"', "assistants call functions alone"),
    },
    FunctionCall: dict.fromkeys(("parsed_arguments", "provider_specific_fields"), _TAKEN),
    ContentPart: dict.fromkeys(("cache_control", "prompt_cache_breakpoint"), _TAKEN),
    ImageUrl: {
        "detail": OpenAIField("ignored", ("auto", "high"), note="the model's image processor chooses the size"),
    },
    Tool: {"type": _HONOURED, "cache_control": _TAKEN},
    # `strict` is read if a call is forced. A template that writes a tool whole shows its `return`, too.
    ToolFunction: {**dict.fromkeys(("strict", "return"), _HONOURED), "cache_control": _TAKEN},
}

#: Keys that an object could have, and that another of its keys overrules: the reason.
_OVERRULED = {
    "function_call": "`tool_calls` has the calls of this message; keep one of them",
    "reasoning": "it differs from `reasoning_content`; keep one of them",
    "raw_content": "it differs from `content`; keep one of them",
}


@functools.cache
def _fields(kind: type[msgspec.Struct]) -> frozenset[str]:
    # A name in parentheses is not the body's.
    return frozenset(name for name in kind.__struct_encode_fields__ if not name.startswith("("))


_OF_ASSISTANTS = frozenset(("tool_calls", "function_call", "reasoning_content", "reasoning", "raw_content"))
_OF_OTHERS = _fields(ChatMessage) - _OF_ASSISTANTS
_OF_TEXTS = frozenset(("type", "text"))
_OF_ACTIONS = frozenset(("tool_name", "arguments"))
#: Indexed by whether `image_url` is absent; it counts before `image`.
_OF_IMAGES = (frozenset(("type", "image_url")), frozenset(("type", "image")))
#: Indexed by whether the call is nested in `function`.
_OF_CALLS = (_fields(MessageToolCall) - {"function"}, _fields(MessageToolCall) - _fields(FunctionCall))


_PLAIN = frozenset(("role", "content"))


class UnreadKey(NamedTuple):
    """A key that is not read. problem: why it refuses a call outside a rollout, None if it does not."""

    problem: Problem | None
    warning: str


Tables = Mapping[type[msgspec.Struct], Mapping[str, OpenAIField]]
Part = tuple[Any, type[msgspec.Struct], str]


def unread_keys(parts: Iterable[Part], tables: Tables = ANNOTATIONS) -> list[UnreadKey]:
    """Return the keys of a request that are not read, each once, however many objects have it.

    parts: of the request, each with its struct and its place. tables: how keys are treated that no struct has.
    """
    unread, more = dict[tuple[object, str], UnreadKey](), 0
    for key, entry in itertools.chain.from_iterable(_unread(*part, tables) for part in parts):
        if key not in unread and len(unread) < MOST_NAMED:
            unread[key] = entry()
        elif key not in unread:
            more += 1
    rest = UnreadKey(Problem(what=f"{more} more such keys", where="body"), f"{more} more keys have no effect")
    return [*unread.values(), *([rest] if more else ())]


_Found = tuple[tuple[object, str], Callable[[], UnreadKey]]


def _unread(value: Any, kind: type[msgspec.Struct], place: str, tables: Tables) -> Iterator[_Found]:
    if isinstance(value, list):
        for i, item in enumerate(cast(list[Any], value)):
            if isinstance(item, dict) and not (kind is ChatMessage and _is_plain(item)):
                yield from _unread(item, kind, f"{place}[{i}]", tables)
        return
    fields = as_object(value)
    owner, read = _read_keys(fields, kind)
    if read is None:
        return
    children = _children(kind)
    for name, inner in fields.items():
        if name not in read:
            field = _field(owner, name, fields, place, tables)
            if not _is_neutral(inner, field):
                where = f"{place}.{name[:60]}".lstrip(".")
                yield (owner, name), functools.partial(_judge, where, name, inner, field, read)
        elif name == "arguments" and not (isinstance(inner, str) and len(inner) > _MOST_READ):
            try:
                tool_arguments(inner)
            except BadJson:
                warning = f"{place}.arguments is not a JSON object: the model is shown the text as it is"
                yield (owner, name), functools.partial(UnreadKey, None, warning)
        elif name in children and isinstance(inner, dict | list) and not _is_text(name, inner):
            yield from _unread(inner, children[name], f"{place}.{name}".lstrip("."), tables)


def _read_keys(given: dict[str, Any], kind: type[msgspec.Struct]) -> tuple[type[msgspec.Struct], frozenset[str] | None]:
    """Return whose table has the other keys of an object, and the keys that are read; None if all of it is refused."""
    if kind is ChatMessage:
        if given.get("role") != "assistant":
            return kind, _OF_OTHERS
        return kind, _fields(kind) - _overruled(given)
    if kind is ContentPart:
        type = given.get("type")
        if type is None:
            return kind, _OF_ACTIONS
        if type not in PART_TYPES:
            return kind, None
        return kind, _OF_TEXTS if type == "text" else _OF_IMAGES[is_empty(given.get("image_url"))]
    if kind is MessageToolCall:
        return kind, _OF_CALLS[bool(given.get("function"))]
    if kind is Tool and not functions_of([given]):
        return kind, None
    if kind is Tool and "function" not in given:
        return ToolFunction, _fields(ToolFunction) | {"type"}
    return kind, _fields(kind) - _fields(ToolFunction) if kind is Tool else _fields(kind)


def _overruled(given: dict[str, Any]) -> set[str]:
    """Return the keys of an assistant's message that others of its keys overrule."""
    overruled = {"function_call"} if given.get("tool_calls") else set[str]()
    content, raw = given.get("content"), given.get("raw_content")
    first, second = given.get("reasoning_content"), given.get("reasoning")
    if first and second and first != second:
        overruled.add("reasoning")
    if content and raw and not (isinstance(content, str) and isinstance(raw, str) and content in raw):
        overruled.add("raw_content")
    return overruled


def _field(
    owner: type[msgspec.Struct], name: str, given: dict[str, Any], place: str, tables: Tables
) -> OpenAIField | None:
    if owner is ChatMessage and name in _OF_ASSISTANTS:
        if given.get("role") != "assistant":
            return OpenAIField("refused", _EMPTY, "an assistant's message", "only assistants have it")
        return OpenAIField("refused", _EMPTY, "one of both", _OVERRULED[name])
    return tables.get(owner, {} if place else _AT_THE_TOP).get(name)


_EMPTY = ("", [], {})


def _is_neutral(value: Any, field: OpenAIField | None) -> bool:
    if field is None:
        return is_empty(value)
    return (
        value is None
        or field.treatment in ("honoured", "taken")
        or any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in field.neutral)
    )


def _judge(where: str, name: str, value: Any, field: OpenAIField | None, read: frozenset[str]) -> UnreadKey:
    if field is None:
        hint = meant(name, read).strip(" ()")
        what, fix = f"there is no field `{name[:60]}` here", f"{hint}" if hint else "leave it out"
        known = ", ".join(sorted(read))
        warning = f"{where} has no effect: there is no such field" + (f" ({hint})" if hint else "")
        return UnreadKey(Problem(what=what, expected=f"one of {known}", fix=fix, where=where), warning)
    warning = f"{where} has no effect: {field.note}"
    if field.treatment == "ignored":
        return UnreadKey(None, warning)
    what = f"{name} is {str(value)[:60]}"
    return UnreadKey(Problem(what=what, expected=field.expected, fix=field.note, where=where), warning)


def _is_plain(message: dict[str, Any]) -> bool:
    """Return whether a message is a role and a text, as most are."""
    return message.keys() <= _PLAIN and isinstance(message.get("content", ""), str)


def _is_text(name: str, value: Any) -> bool:
    """Return whether a content is an object that is no part: the model is shown its JSON."""
    return name == "content" and isinstance(value, dict) and cast(dict[str, Any], value).get("type") not in PART_TYPES


@functools.cache
def _children(kind: type[msgspec.Struct]) -> dict[str, type[msgspec.Struct]]:
    """Return the fields of a struct that hold objects of a struct, or lists of them."""
    structs = {field.encode_name: _struct_in(field.type) for field in msgspec.structs.fields(kind)}
    return {name: struct for name, struct in structs.items() if struct is not None}


def _struct_in(hint: Any) -> type[msgspec.Struct] | None:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return hint
    # The last argument of an Annotated names the struct of a value that is decoded as a dict, or as a narrower struct.
    return next((struct for part in reversed(get_args(hint)) if (struct := _struct_in(part))), None)
