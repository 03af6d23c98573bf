"""A rollout that was played by hand, as a person and as a program reads it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, cast

from synth.cli.play.models import Body
from synth.cli.play.relay import Call
from synth.cli.play.rollout import Played
from synth.cli.tui.output import is_terminal, number, out, print_line, size
from synth.taskapp.contract import Step

_LABEL = 10
#: A JSON text of up to so many characters stands on one line.
_ONE_LINE = 100
_STYLES = {"error": "red", "thinks": "dim", "reward": "bold", "note": "yellow"}
_LABELS = {"assistant": "reply", "developer": "system", "function": "tool"}
_ENDED = {"length": "the reply was cut off at the token limit"}

#: A label and its text; without a text, a heading.
Line = tuple[str, str | None]


def print_lines(lines: Iterator[Line]) -> None:
    """Labels at the left, texts wrapped beside them; off a terminal, lines that are never cut."""
    if not is_terminal():
        for label, text in lines:
            if text is None:
                print_line(f"\n{label}")
                continue
            for n, line in enumerate(text.split("\n")):
                print_line(f"{label if n == 0 else '':<{_LABEL}} {line}".rstrip())
        return
    from rich.table import Table
    from rich.text import Text

    for label, text in lines:
        if text is None:
            out().print(Text(f"\n{label}", style="bold cyan"))
            continue
        grid = Table.grid(padding=(0, 1, 0, 0))
        grid.add_column(width=_LABEL, no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row(Text(label, style=_STYLES.get(label, "cyan")), Text(text, style=_STYLES.get(label, "")))
        out().print(grid)


def conversation(calls: Sequence[Call], steps: Sequence[Step]) -> Iterator[Line]:
    """Turn by turn what was said and done. steps: each stands behind its call where there is one for each."""
    one_each = len(steps) == len(calls)
    for n, call in enumerate(calls):
        yield _heading(n + 1, call), None
        kept = _kept(calls[n - 1], call) if n else 0
        if n and kept < len(calls[n - 1].messages) + 1:
            yield "note", "does not go on from the turn before: in training it begins another sequence"
        for message in call.messages[kept:]:
            yield from _message(message)
        if n == 0 and call.asked.get("tools"):
            yield "tools", ", ".join(_tool(tool) for tool in cast(list[Any], call.asked["tools"]))
        yield from _message(call.reply)
        reason = str(call.completion["choices"][0].get("finish_reason") or "stop")
        if reason in _ENDED:
            yield "note", _ENDED[reason]
        if one_each:
            yield from _step(steps[n], n + 1, said=_calls_of(call.reply))
    if steps and not one_each:
        yield "steps of the environment", None
        for n, step in enumerate(steps):
            yield from _step(step, n + 1)


def unheard(request: Body, calls: Sequence[Call]) -> Iterator[Line]:
    """What a person who answers has not read yet: the messages since the last call, and at first the tools."""
    asked = Call(request, {}, 0.0)
    for message in asked.messages[_kept(calls[-1], asked) if calls else 0 :]:
        yield from _message(message)
    if not calls and request.get("tools"):
        yield "tools", ", ".join(_tool(tool) for tool in cast(list[Any], request["tools"]))


def outcome(played: Played) -> Iterator[Line]:
    """What the rollout earned."""
    yield "outcome", None
    if played.details:
        rest = {key: value for key, value in played.details.items() if key != "policy_failure"}
        if rest:
            yield "details", _text(rest)
    if played.policy_failure is not None:
        failure = played.policy_failure
        yield "reward", f"none: the policy failed ({failure.get('code')}: {failure.get('message')})"
        yield "note", "in a job it earns failure_reward, and is not tried again"
    elif played.reward is not None:
        yield "reward", number(played.reward)
    for problem in played.problems:
        yield "error", f"{problem.what}; expected {problem.expected}"


def as_json(played: Played | None, calls: Sequence[Call], *, app: str, seed: int, model: str | None) -> Body:
    """The same as data, with everything that was sent and said."""
    steps = [{**step.model_dump(exclude={"info"}), "info": _info(step)} for step in played.steps] if played else []
    return {
        "app": app,
        "seed": seed,
        "model": model,
        "reward": played.reward if played else None,
        "policy_failure": played.policy_failure if played else None,
        "calls": [
            {
                "messages": call.messages,
                "tools": call.asked.get("tools"),
                "reply": call.reply,
                "finish_reason": call.completion["choices"][0].get("finish_reason"),
                "usage": call.completion.get("usage"),
                "seconds": round(call.seconds, 3),
            }
            for call in calls
        ],
        "steps": steps,
        "details": played.details if played else {},
    }


def _heading(n: int, call: Call) -> str:
    usage = cast(Body, call.completion.get("usage") or {})
    figures: list[str] = []
    if usage.get("prompt_tokens") is not None and usage.get("completion_tokens") is not None:
        figures.append(f"{usage['prompt_tokens']} + {usage['completion_tokens']} tokens")
    if call.seconds >= 0.05:
        figures.append(f"{call.seconds:.1f} s")
    return f"turn {n}" + (f"  ({', '.join(figures)})" if figures else "")


def _kept(before: Call, call: Call) -> int:
    """How many messages of the turn before, its reply counted, this one begins with."""
    earlier = [*before.messages, before.reply]
    pairs = zip(earlier, call.messages, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if _said(a) != _said(b)), min(len(earlier), len(call.messages)))


def _said(message: Body) -> tuple[Any, ...]:
    """What of a message the policy sees again. Clients add empty fields of their own."""
    calls = cast(list[Body], message.get("tool_calls") or [])
    return message.get("role"), message.get("content") or "", [call.get("function") for call in calls]


def _message(message: Body) -> Iterator[Line]:
    role = str(message.get("role") or "…")
    if reasoning := message.get("reasoning_content") or message.get("reasoning"):
        yield "thinks", _text(reasoning)
    content, calls = message.get("content"), cast(list[Any], message.get("tool_calls") or [])
    if content or not calls:
        yield _LABELS.get(role, role)[:_LABEL], _content(content)
    for call in calls:
        yield "calls", _call(call)


def _content(content: Any) -> str:
    if not isinstance(content, list):
        return _text(content or "")
    parts: list[str] = []
    for part in cast(list[Any], content):
        fields = cast(Body, part) if isinstance(part, dict) else {}
        image = fields.get("image_url")
        url = cast(Body, image).get("url") if isinstance(image, dict) else image
        if isinstance(url, str):
            parts.append(f"[image, {size(len(url))}]" if url.startswith("data:") else f"[image at {url}]")
        else:
            parts.append(_text(fields["text"] if isinstance(fields.get("text"), str) else part))
    return "\n".join(parts)


def _call(call: Any) -> str:
    """A tool call as `name(argument=value, …)`; the published apps spell one in several ways."""
    fields = cast(Body, call) if isinstance(call, dict) else {}
    function = cast(Body, fields["function"]) if isinstance(fields.get("function"), dict) else fields
    name = function.get("name") or function.get("tool_name") or function.get("tool")
    if name is None:
        return _text(call)
    arguments: Any = function.get("arguments", function.get("args"))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return f"{name}({arguments})"
    if not isinstance(arguments, dict):
        return f"{name}({'' if arguments is None else _json(arguments)})"
    return f"{name}({', '.join(f'{key}={_json(value)}' for key, value in cast(Body, arguments).items())})"


def _tool(tool: Any) -> str:
    fields = cast(Body, tool) if isinstance(tool, dict) else {}
    function = cast(Body, fields["function"]) if isinstance(fields.get("function"), dict) else fields
    parameters = function.get("parameters")
    known = cast(Body, parameters).get("properties") if isinstance(parameters, dict) else None
    return f"{function.get('name', '?')}({', '.join(cast(Body, known)) if isinstance(known, dict) else ''})"


def _calls_of(message: Body) -> list[str]:
    return [_call(call) for call in cast(list[Any], message.get("tool_calls") or [])]


def _step(step: Step, n: int, *, said: Sequence[str] = ()) -> Iterator[Line]:
    """said: the calls of the turn that the step stands behind; a step that played just these does not repeat them."""
    reward = "no reward" if step.reward is None else f"reward {number(step.reward)}"
    yield f"step {n}", reward + (", done" if step.done else "") + (", truncated" if step.truncated else "")
    played = [_call(call) for call in step.tool_calls]
    for text in played if played != list(said) else ():
        yield "  played", text
    if step.obs is not None:
        yield "  obs", _text(step.obs)
    if info := _info(step):
        yield "  info", _text(info)


def _info(step: Step) -> Body:
    """What the app says of a step, without the address, which is a credential and over."""
    return {key: value for key, value in (step.info or {}).items() if key != "meta"}


def _text(value: Any) -> str:
    """Any value: a text as it is, JSON on one line where it is short."""
    if isinstance(value, str):
        return _printable(value) or "(empty)"
    line = _json(value)
    return _printable(line if len(line) <= _ONE_LINE else json.dumps(value, ensure_ascii=False, indent=2))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _printable(text: str) -> str:
    """A model's or an app's text, in which nothing moves the cursor."""
    return "".join(c if c in "\n\t" or c.isprintable() else "\ufffd" for c in text.replace("\r\n", "\n"))
