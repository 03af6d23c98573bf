"""docs/sdk.md and docs/client.md: the task-app SDK and the Python client, from their signatures and docstrings."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

from synth.client import clients, errors, files, jobs, models, organisation
from synth.taskapp.episode import BadOutcome
from synth.taskapp.llm import InferenceUnavailable, PolicyFailure, Reply, ToolCall
from synth.taskapp.sdk import Episode, TaskApp, serve

_SDK_HEAD = """\
# Task-app SDK

`synth.taskapp.sdk` makes a task app of one function. [task-apps.md](task-apps.md) shows how to write one, and
[agents.md](agents.md) how an agent with its own client plays in it. This page is generated from the code
(`make contracts`).

Install it with `pip install "synthctl[taskapp]"`.
"""
_CLIENT_HEAD = """\
# Python client

`synth.client` is the Python client of a cluster: `Client`, and `AsyncClient` for asyncio. [python.md](python.md) shows
how to use them. This page is generated from the code (`make contracts`).

It shows the methods of `Client`. `AsyncClient` has the same names and arguments: its calls are awaited, and
its iterators are asynchronous. Results have the types of the API, described in [openapi.json](openapi.json); a
field of the answer is an attribute.
"""
#: What the page of the SDK describes: a class with the members that its reader uses, or a function.
_SDK: dict[Callable[..., Any], tuple[str, ...]] = {
    TaskApp: ("episode", "task_info", "asgi", "keys"),
    serve: (),
    Episode: ("chat", "step", "outcome", "base_url", "api_key"),
    Reply: ("message", "tool_calls", "require_tool_call"),
    ToolCall: (),
    PolicyFailure: (),
    InferenceUnavailable: (),
    BadOutcome: (),
}


#: The parts of the client, by their attribute of it.
_PARTS: dict[str, type] = {
    "Client": clients.Client,
    "jobs": jobs.Jobs,
    "files": files.Files,
    "models": models.Models,
    "traces": organisation.Traces,
    "keys": organisation.Keys,
    "operator": organisation.Operator,
    "ModelReply": clients.ModelReply,
}


def sdk_page() -> str:
    """Return the page of the task-app SDK."""
    return "\n".join([_SDK_HEAD, *(line for thing, members in _SDK.items() for line in _described(thing, members))])


def client_page() -> str:
    """Return the page of the Python client: each part with its public methods, and the tree of errors."""
    lines = [_CLIENT_HEAD]
    for name, part in _PARTS.items():
        members = tuple(member for member in vars(part) if member[0] != "_" and member != "completion")
        lines += _described(part, members, title=f"client.{name}" if name.islower() else name)
    text = "\n".join([*lines, "## Errors\n", f"{inspect.getdoc(errors)}\n"])
    # The client has the methods of the asynchronous one, and returns their results.
    return text.replace("AsyncGenerator[", "Iterator[").replace("List[", "list[")


def _described(thing: Callable[..., Any], members: tuple[str, ...], title: str = "") -> Iterator[str]:
    """Yield the lines about a class or a function. title: instead of its name and its module."""
    yield f"## `{title or thing.__name__}`\n"
    if not title:
        title = thing.__name__
        yield f"From `{thing.__module__}`.\n"
    # An app is given its episodes and replies: it makes none itself. Most exceptions have the constructor of Exception.
    called = inspect.isfunction(thing) or "__init__" in vars(thing)
    signature = inspect.signature(thing) if called else None
    if dataclasses.is_dataclass(thing):
        fields = [field for field in dataclasses.fields(thing) if field.name[0] != "_"]
        yield f"```text\n{chr(10).join(f'{field.name}: {field.type}' for field in fields)}\n```\n"
    elif signature:
        yield f"```text\n{_signature(title, signature)}\n```\n"
    yield _text(thing, [*signature.parameters] if signature else [])
    for name in members:
        member = inspect.getattr_static(thing, name)
        yield f"### `{title}.{name}`\n"
        if isinstance(member, property):
            yield _text(member, [])
        else:
            prefix = "await " if inspect.iscoroutinefunction(member) else ""
            signature = inspect.signature(member)
            own = signature.replace(parameters=[*signature.parameters.values()][1:])
            yield f"```text\n{prefix}{_signature(name, own)}\n```\n"
            yield _text(member, [*own.parameters])


def _signature(name: str, signature: inspect.Signature) -> str:
    """Return a call on one line, or with a line for each parameter if it is long."""
    parts: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        parts.append(_parameter(parameter))
    result = "" if signature.return_annotation in (signature.empty, "None") else f" -> {signature.return_annotation}"
    line = f"{name}({', '.join(parts)}){result}"
    if len(line) > 100:
        line = f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){result}"
    return line.replace("_F", "Function")


def _parameter(parameter: inspect.Parameter) -> str:
    stars = "**" if parameter.kind is parameter.VAR_KEYWORD else ""
    text = f"{stars}{parameter.name}: {parameter.annotation}"
    if parameter.default is parameter.empty:
        return text
    default = "…" if callable(parameter.default) else repr(parameter.default)
    return f"{text} = {default}"


def _text(thing: object, parameters: list[str]) -> str:
    """Return a docstring as Markdown: its sentences on parameters, `name: …`, become a list."""
    text = inspect.getdoc(thing) or ""
    if parameters:
        names = "|".join(parameters)
        start = re.compile(rf"(?:^|(?<=[.;]) +|(?<=[.;])\n)((?:{names})(?:, (?:{names}))*): ", re.MULTILINE)
        pieces = start.split(text)
        if len(pieces) > 1:
            text = pieces[0].rstrip() + "\n"
            for named, about in zip(pieces[1::2], pieces[2::2], strict=True):
                # A sentence on a line of its own is about the whole.
                about, gap, rest = re.sub(r"\.\n(?=[A-Z])", ".\n\n", about).partition("\n\n")
                quoted = ", ".join(f"`{name}`" for name in named.split(", "))
                text += f"\n- {quoted}: {' '.join(about.split()).rstrip(';')}"
                text += f"\n\n{rest.rstrip()}\n" if gap and rest.strip() else ""
    return f"{text.rstrip()}\n"
