"""A row of a training file as a chat template takes it: every shape that the published clients write, made one.

Content is text; a tool is what the OpenAI API calls one, and a tool call holds its arguments as an object, as the
inference service renders them: what is trained on is what is served with.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]

_IMAGES = ("image", "image_url")


def messages_of(row: Row) -> list[Row]:
    """The row's messages for the template; `weight` is not its business.

    An assistant's content of `{tool_name, arguments}` actions is tool calls, other content that is no text is JSON.
    What the assistant thought stands before what it says, as it writes it.
    """
    return [_message(message) for message in row["messages"]]


def tools_of(row: Row) -> list[Row] | None:
    """The row's tools, each nested in `function`; None without any."""
    return [_tool(tool) for tool in row.get("tools") or ()] or None


def images_in(row: Row) -> int:
    """How many images the row shows."""
    return sum(_is_image(part) for message in row["messages"] for part in _parts(message.get("content")))


def _message(message: Row) -> Row:
    content = message.get("content")
    calls = [_call(call) for call in message.get("tool_calls") or ()]
    if message["role"] == "assistant":
        actions = _actions(content)
        if actions:
            content, calls = None, [*calls, *actions]
        elif not (content or calls or message.get("reasoning")):
            content = message.get("raw_content")
    text = _text(content)
    thought = message.get("reasoning")
    if thought and message["role"] == "assistant" and "</think>" not in text:
        text = f"<think>\n{thought}\n</think>\n\n{text}"
    # Every current template knows `system`; one that does not know `developer` leaves the message out.
    shown: Row = {"role": "system" if message["role"] == "developer" else message["role"], "content": text}
    if calls:
        shown["tool_calls"] = calls
    for name in ("tool_call_id", "name"):
        if message.get(name) is not None:
            shown[name] = message[name]
    return shown


def _text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part if isinstance(part, str) else _part_text(part) for part in _parts(content))


def _part_text(part: Row) -> str:
    return part["text"] if part.get("type") == "text" else json.dumps(part, ensure_ascii=False)


def _parts(content: Any) -> Sequence[Any]:
    if isinstance(content, list):
        return content
    return (content,) if isinstance(content, dict) else ()


def _is_image(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") in _IMAGES


def _actions(content: Any) -> list[Row]:
    """The tool calls that a content is made of; none when it holds anything else."""
    if not isinstance(content, list) or not all(isinstance(p, dict) and "tool_name" in p for p in content):
        return []
    return [_function(action["tool_name"], action.get("arguments")) for action in content]


def _call(call: Row) -> Row:
    function = call.get("function") or call
    shown = _function(function["name"], function.get("arguments"))
    return shown | {"id": call["id"]} if "id" in call else shown


def _function(name: str, arguments: Any) -> Row:
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments)
        except ValueError:
            parsed = None
        arguments = parsed if isinstance(parsed, dict) else arguments
    return {"type": "function", "function": {"name": name, "arguments": {} if arguments is None else arguments}}


def _tool(tool: Row) -> Row:
    if tool.get("function"):
        return tool if "type" in tool else {"type": "function", **tool}
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}
