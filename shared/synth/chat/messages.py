"""The types of a conversation, as any client writes it, and the one form in which a chat template takes it.

A row of a training file and the body of a chat request are read with these types, and both become messages of a
template by the same rules, so that a model is trained on the text that it is served with:

- reasoning: `reasoning_content`, else `reasoning`, of an assistant alone. For a family that thinks it stands in front
  of the text as `<think>\\n…\\n</think>\\n\\n`, only if the text does not hold `</think>` already. For any other family
  it is the key `thinking`, which the templates of gpt-oss read, and most others do not.
- tools and tool calls: nested in `function`, with a `type`. A call's arguments are the object that
  `json_text.tool_arguments` returns, and stay as they are if they hold none; a training file may not have such. For a
  template that takes only objects, such arguments are `{"arguments": …}`. An id is kept if there is one. The
  `{tool_name, arguments}` actions that an assistant's content ends with are tool calls.
- images: for a model that sees, a message that shows any keeps its parts, texts and images in their order.
- content: text. Parts are joined; an object that is no part, and an action before other parts, is its JSON.
  `raw_content` stands for the content of an assistant that has neither content nor tool calls nor reasoning.
- `developer` is `system`. `name` and `tool_call_id` are kept.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, cast, get_args

import msgspec
from msgspec import Meta

from synth.chat.json_text import BadJson, tool_arguments
from synth.chat.marks import THINK, THINK_CLOSING, THINK_END
from synth.errors import UserError

Role = Literal["system", "developer", "user", "assistant", "tool"]
#: A template leaves messages of other roles out without a word. developer: the newer name of system.
ROLES: tuple[str, ...] = get_args(Role)
IMAGE_TYPES = ("image", "image_url")
PART_TYPES = ("text", *IMAGE_TYPES)
#: The roles whose messages may show images, as the templates of vision models write images only there.
SHOWING_ROLES = ("user", "tool")


class ImageUrl(msgspec.Struct, gc=False):
    url: str


class ContentPart(msgspec.Struct, gc=False):
    """A piece of a message's content: a typed part, or an action that an agent took, `{tool_name, arguments}`."""

    type: str | None = None
    text: str | None = None
    image_url: ImageUrl | str | None = None
    image: ImageUrl | str | None = None
    tool_name: str | None = None
    arguments: Any = None

    @property
    def is_action(self) -> bool:
        return self.type is None and self.tool_name is not None


class FunctionCall(msgspec.Struct, gc=False):
    name: str
    arguments: str | dict[str, Any] | None = None


class MessageToolCall(msgspec.Struct, gc=False, kw_only=True):
    """A tool call of an assistant: nested in `function` as in the OpenAI API, or flat.

    id: of any type, for some clients write numbers.
    """

    id: Any = None
    function: FunctionCall | None = None
    name: str | None = None
    arguments: str | dict[str, Any] | None = None

    @property
    def called(self) -> FunctionCall:
        """The function and its arguments, in either form. The name is "" if the call has none."""
        return self.function or FunctionCall(self.name or "", self.arguments)


class ToolFunction(msgspec.Struct, gc=False):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(msgspec.Struct, gc=False):
    """A tool that the assistant may call: nested in `function` as in the OpenAI API, or flat."""

    function: ToolFunction | None = None
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None


Content = str | list[ContentPart | str] | dict[str, Any] | None


class Message(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One message, as the OpenAI API spells it. The readers of files and requests refuse other keys.

    reasoning_content, reasoning: an assistant's thoughts before its content, under both of the names in use.
    raw_content: replaces a missing content.
    """

    role: str
    content: Content = None
    tool_calls: list[MessageToolCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    raw_content: str | None = None

    @property
    def reasoning_text(self) -> str:
        return self.reasoning_content or self.reasoning or ""


_M = TypeVar("_M", bound=Message)


class TrainingMessage(Message, frozen=True, gc=False, kw_only=True):
    """A message of a training file. weight: how much an assistant's turn is learnt from, 0 … 1."""

    role: Role
    weight: Annotated[float, Meta(ge=0, le=1)] | None = None


class TrainingRow(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A line of a training file.

    tools: objects of the form of `Tool`, as they came: a template may use fields that are unknown here.
    images, image_url: the older form, in which a whole row shows its images to the first user message.
    """

    messages: list[TrainingMessage]
    tools: list[dict[str, Any]] | None = None
    images: list[ImageUrl | str] | str | None = None
    image_url: list[ImageUrl | str] | ImageUrl | str | None = None

    def conversation(self) -> Conversation:
        return Conversation(self.messages, self.tools or ())


class PreferenceRow(TrainingRow, frozen=True, gc=False, kw_only=True):
    """A line of a file of preference pairs: two continuations of `messages`, each beginning with the assistant.

    Only the assistant's messages of the two are learnt; `messages` is the context.
    """

    chosen: Annotated[list[TrainingMessage], Meta(min_length=1)]
    rejected: Annotated[list[TrainingMessage], Meta(min_length=1)]


@dataclass(frozen=True, slots=True)
class Conversation:
    """The input of a prompt. tools: as the client wrote them. thinking: whether the model may think first."""

    messages: Sequence[Message]
    tools: Sequence[dict[str, Any]] = ()
    thinking: bool = False


def template_messages(
    messages: Sequence[Message], *, thinks: bool, sees: bool = False, one_text: bool = False
) -> list[dict[str, Any]]:
    """Return the messages as a chat template takes them; see the rules at the top.

    thinks: whether the model's family does. sees: whether the model takes images, as parts `{type, image}`.
    one_text: whether a message with tool calls has either reasoning or content, so that both become reasoning.
    Raises `UserError`, whose `where` is the field, for an image that a model cannot see or that stands in a message of
    another role than user and tool, for another part that is not text, and for a tool call without a name.
    """
    shown = [
        _template_message(message, f"messages[{i}]", thinks=thinks, sees=sees) for i, message in enumerate(messages)
    ]
    for entry in shown:
        if one_text and "tool_calls" in entry and "thinking" in entry and entry["content"]:
            entry |= {"thinking": f"{entry['thinking']}\n{entry['content']}", "content": ""}
    return shown


def template_tools(tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """Return the tools, each nested in `function` and with a `type`; None without any."""
    return [_template_tool(tool) for tool in tools] or None


def object_text(value: object) -> str:
    """Return the text of a content that is an object."""
    return json.dumps(value, ensure_ascii=False)


def text_length(conversation: Conversation) -> int:
    """Return how many characters the texts of a conversation have, those of its tools included, images left out."""
    length, waiting = 0, [*conversation.messages, *conversation.tools]
    while waiting:
        value: Any = waiting.pop()
        if isinstance(value, str):
            length += len(value)
        elif isinstance(value, dict):
            entries = cast(dict[str, Any], value)
            length += sum(map(len, entries))
            waiting += entries.values()
        elif isinstance(value, list):
            waiting += cast(list[Any], value)
        elif isinstance(value, msgspec.Struct) and getattr(value, "type", None) not in IMAGE_TYPES:
            waiting += msgspec.structs.astuple(value)
    return length


def images_in(messages: Sequence[Message]) -> int:
    """Return how many images the messages show."""
    return sum(len(image_parts(message)) for message in messages)


def image_parts(message: Message) -> list[ContentPart]:
    """Return the parts of a message that show an image, in order."""
    content = message.content
    if isinstance(content, dict) and content.get("type") in IMAGE_TYPES:
        return [msgspec.convert(content, ContentPart)]
    parts = content if isinstance(content, list) else []
    return [part for part in parts if isinstance(part, ContentPart) and part.type in IMAGE_TYPES]


def keep_first_images(message: _M, most: int) -> tuple[_M, int]:
    """Return the message with its first `most` images, and how many were left out."""
    return _without(message, image_parts(message)[most:])


def _without(message: _M, parts: Sequence[ContentPart]) -> tuple[_M, int]:
    left_out = {id(part) for part in parts}
    if not left_out:
        return message, 0
    # A content that is one part without a list is that image.
    content = message.content if isinstance(message.content, list) else []
    return msgspec.structs.replace(message, content=[part for part in content if id(part) not in left_out]), len(
        left_out
    )


def keep_last_images(message: _M, most: int) -> tuple[_M, int]:
    """Return the message with its last `most` images, and how many were left out."""
    shown = image_parts(message)
    return _without(message, shown[: len(shown) - most] if most < len(shown) else [])


def image_address(part: ContentPart) -> str:
    """Return the address of a part's image: a data URI, an address, or its blob; "" if the part names none."""
    named = part.image_url or part.image
    return named.url if isinstance(named, ImageUrl) else named or ""


def _template_message(message: Message, place: str, *, thinks: bool, sees: bool) -> dict[str, Any]:
    content, calls = message.content, [_call(call, place, j) for j, call in enumerate(message.tool_calls or ())]
    reasoning = ""
    if message.role == "assistant":
        reasoning = message.reasoning_text
        content, actions = _split_actions(content)
        if actions:
            calls = [*calls, *actions]
        elif not (content or calls or reasoning):
            content = message.raw_content
    if sees and message.role in SHOWING_ROLES and image_parts(message):
        shown = _parts(content, message.role, f"{place}.content")
        return {"role": message.role, "content": shown} | _kept_fields(message)
    text = _text(content, message.role, f"{place}.content")
    if thinks and reasoning and THINK_END not in text:
        # Every template with reasoning looks for it here, beside any other fields that it reads.
        text = f"{THINK}\n{reasoning}{THINK_CLOSING}{text}"
    # Every current template has `system`; a template without `developer` would leave the message out.
    entry: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role, "content": text}
    if calls:
        entry["tool_calls"] = calls
    if reasoning and not thinks:
        entry["thinking"] = reasoning
    return entry | _kept_fields(message)


def _kept_fields(message: Message) -> dict[str, Any]:
    fields = (("tool_call_id", message.tool_call_id), ("name", message.name))
    return {name: value for name, value in fields if value is not None}


def _text(content: Content, role: str, place: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, dict) and content.get("type") not in PART_TYPES:
        return object_text(content)
    return "".join(
        part if isinstance(part, str) else _part_text(part, role, f"{place}[{j}]")
        for j, part in enumerate(_listed(content, place))
    )


def _listed(content: list[ContentPart | str] | dict[str, Any], place: str) -> list[ContentPart | str]:
    """Return the parts of a content; a single part need not be in a list."""
    if isinstance(content, list):
        return content
    try:
        return [msgspec.convert(content, ContentPart)]
    except msgspec.ValidationError as error:
        raise UserError(str(error), expected="a content part", where=place) from error


def _parts(content: Any, role: str, place: str) -> list[dict[str, Any]]:
    """Return the parts of a message that shows an image, in the template's form."""
    parts: list[dict[str, Any]] = []
    for j, part in enumerate(_listed(content, place)):
        if isinstance(part, ContentPart) and part.type in IMAGE_TYPES:
            parts.append({"type": "image", "image": image_address(part)})
        else:
            text = part if isinstance(part, str) else _part_text(part, role, f"{place}[{j}]")
            parts.append({"type": "text", "text": text})
    return parts


def _part_text(part: ContentPart, role: str, place: str) -> str:
    if part.type == "text":
        return part.text or ""
    if part.is_action and role == "assistant":
        arguments = {} if part.arguments is None else {"arguments": part.arguments}
        return object_text({"tool_name": part.tool_name, **arguments})
    if part.type is None:
        raise UserError("a content part without a type", expected="text", where=f"{place}.type")
    if part.type in IMAGE_TYPES and role not in SHOWING_ROLES:
        raise UserError(
            f"an image in a message of {role}",
            expected="images in messages of user or tool",
            fix="move it into the next message of the user",
            where=f"{place}.type",
        )
    raise UserError(
        f"a content part of type {part.type!r}",
        expected="text: this model sees no images",
        fix="send text parts only, or choose a vision model",
        where=f"{place}.type",
    )


def _split_actions(content: Content) -> tuple[Content, list[dict[str, Any]]]:
    """Split an assistant's content into its text and the tool calls that it ends with."""
    parts = content if isinstance(content, list) else []
    begin = next((i for i, part in enumerate(parts) if isinstance(part, ContentPart) and part.is_action), len(parts))
    actions = [part for part in parts[begin:] if isinstance(part, ContentPart) and part.is_action]
    if not actions or len(actions) < len(parts) - begin:
        return content, []
    return parts[:begin] or None, [_function(part.tool_name or "", part.arguments) for part in actions]


def _call(call: MessageToolCall, place: str, j: int) -> dict[str, Any]:
    called = call.called
    if call.function is None and not call.name:
        raise UserError(
            "a call without `function` or `name`",
            expected="{id, type, function: {name, arguments}}",
            where=f"{place}.tool_calls[{j}]",
        )
    entry = _function(called.name, called.arguments)
    return entry if call.id in (None, "") else entry | {"id": call.id}


def _function(name: str, arguments: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": call_arguments(arguments)}}


def call_arguments(arguments: Any) -> Any:
    """Return a call's arguments for a template: `tool_arguments`, or the value itself if it is not an object."""
    try:
        return tool_arguments(arguments)
    except BadJson:
        return arguments


def _template_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    if tool.get("function"):
        return {**tool} if "type" in tool else {"type": "function", **tool}
    if not tool.get("name"):
        return {**tool}  # an unknown kind of tool
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}
