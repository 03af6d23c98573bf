"""The text of a rollout: messages, tools and calls of any shape as lines, and any value as text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, cast

from synth.cli.tui.output import size
from synth.cli.tui.rollout.lines import IMAGE, Line
from synth.console.plain_text import printable

_BLOB = re.compile(r"blob://orgs/[^/]+/images/([0-9a-f]{64})")
#: The longest JSON text that is printed on one line, in characters.
_ONE_LINE = 100
#: Characters of a role's label.
_LABEL = 10
_LABELS = {"assistant": "reply", "developer": "system", "function": "tool"}


def message_lines(message: Any) -> Iterator[Line]:
    """Yield a message of any shape; a value that is no message is shown as it is."""
    if message is None:
        return
    if not isinstance(message, dict):
        yield "…", value_text(message)
        return
    fields = cast(dict[str, Any], message)
    role = str(fields.get("role") or "…")
    label = _LABELS.get(role, role)[:_LABEL]
    if reasoning := fields.get("reasoning_content") or fields.get("reasoning"):
        yield "thinks", value_text(reasoning)
    content = fields.get("content")
    calls = fields.get("tool_calls")
    if content not in (None, "", []) or not calls:
        yield label, _content(content)
        yield from ((IMAGE, sha256) for sha256 in _images(content))
    for call in cast(list[Any], calls if isinstance(calls, list) else [calls] if calls else []):
        yield "calls", call_text(call)


def _content(content: Any) -> str:
    if content is None or content == "":
        return "(empty)"
    if not isinstance(content, list):
        return value_text(content)
    return "\n".join(_part(part) for part in cast(list[Any], content))


def _images(content: Any) -> list[str]:
    """Return the digests of the images that a content shows, as the inference service names them."""
    parts = cast(list[Any], content) if isinstance(content, list) else []
    named = [cast(dict[str, Any], part).get("image") for part in parts if isinstance(part, dict)]
    return [match[1] for uri in named if isinstance(uri, str) and (match := _BLOB.fullmatch(uri))]


def _part(part: Any) -> str:
    fields = cast(dict[str, Any], part) if isinstance(part, dict) else {}
    image = fields.get("image_url", fields.get("image"))
    if isinstance(image, str) and (blob := _BLOB.fullmatch(image)):
        return f"[image {blob[1][:12]}]"
    address: Any = cast(dict[str, Any], image).get("url") if isinstance(image, dict) else image
    if isinstance(address, dict):
        return json_text(address)
    if isinstance(address, str):
        return printable(f"[image at {address}]")
    return value_text(fields["text"] if isinstance(fields.get("text"), str) else part)


def call_text(call: Any) -> str:
    """Return a tool call as `name(argument=value, …)`; task apps spell one in several ways."""
    if not isinstance(call, dict):
        return value_text(call)
    fields = cast(dict[str, Any], call)
    function = fields.get("function")
    function = cast(dict[str, Any], function) if isinstance(function, dict) else fields
    name = function.get("name") or function.get("tool_name") or function.get("tool")
    if name is None:
        return value_text(call)
    arguments: Any = function.get("arguments", function.get("args"))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return printable(f"{name}({arguments})")
    if not isinstance(arguments, dict):
        return printable(f"{name}({'' if arguments is None else json_text(arguments)})")
    named = cast(dict[str, Any], arguments)
    return printable(f"{name}({', '.join(f'{key}={json_text(value)}' for key, value in named.items())})")


def tools_lines(tools: Sequence[Any] | None) -> Iterator[Line]:
    """Yield the tools that are offered, if any."""
    if tools:
        yield "tools", ", ".join(_tool(tool) for tool in tools)


def _tool(tool: Any) -> str:
    if not isinstance(tool, dict):
        return value_text(tool)
    fields = cast(dict[str, Any], tool)
    function = fields.get("function")
    function = cast(dict[str, Any], function) if isinstance(function, dict) else fields
    parameters = function.get("parameters")
    known = cast(dict[str, Any], parameters).get("properties") if isinstance(parameters, dict) else None
    names = ", ".join(cast(dict[str, Any], known)) if isinstance(known, dict) else "…" if known else ""
    return printable(f"{function.get('name', '?')}({names})")


def value_text(value: Any) -> str:
    """Return any value as text: a string as it is, JSON on one line if it is short."""
    if isinstance(value, str):
        return printable(value) or "(empty)"
    line = json_text(value)
    return printable(line if len(line) <= _ONE_LINE else json.dumps(value, ensure_ascii=False, indent=2))


def json_text(value: Any) -> str:
    """Return JSON on one line; an image is shown by its kind, its size and the beginning of its digest."""
    image = cast(dict[str, Any], value) if isinstance(value, dict) else {}
    if set(image) == {"image", "bytes", "sha256"}:
        return f"[{image['image']}, {size(image['bytes'])}, sha256 {str(image['sha256'])[:12]}]"
    return json.dumps(value, ensure_ascii=False)
