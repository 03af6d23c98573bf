"""A message of a conversation as the published clients store it: its type, and its content as text or as JSON."""

from __future__ import annotations

import json
from typing import Any, cast

Object = dict[str, Any]
_TYPES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool_result"}


def message_type(message: Object) -> str:
    """Return the type of a message, by its role."""
    return _TYPES.get(str(message.get("role")), "system")


def stored_content(message: Object) -> Object:
    """Return the content of a message in the two fields that the clients have: `text`, or else `json_payload`."""
    content = message_content(message)
    if isinstance(content, str):
        return {"text": content}
    return {"text": None, "json_payload": json.dumps(content, ensure_ascii=False)}


def message_content(message: Object) -> Any:
    """Return a message's content as the clients store it: text, parts, or calls as `{"tool_name", "arguments"}`."""
    content, calls = message.get("content"), message.get("tool_calls")
    if not calls:
        return "" if content is None else content
    parts = [{"type": "text", "text": content}] if isinstance(content, str) and content else []
    return [*parts, *(_call(_object(call)) for call in calls)]


def _call(call: Object) -> Object:
    function = _object(call.get("function")) or call
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            arguments = {"arguments": arguments}
    return {"tool_name": function.get("name"), "arguments": arguments}


def _object(value: Any) -> Object:
    return cast(Object, value) if isinstance(value, dict) else {}
