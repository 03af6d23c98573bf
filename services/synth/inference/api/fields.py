"""The treatment of each field of a chat request: it is honoured, refused with the reason, or ignored with a warning.

A field that would change the reply is never ignored on a user's own account. In a rollout no field is refused, because
the job sets its sampling, not the task app (decision 25): there the reply's `warnings` name the fields without effect.
"""

from __future__ import annotations

from collections.abc import Iterator

from synth.chat.tools import functions_of
from synth.errors import Problem, UserError
from synth.inference.api.requests import ChatRequest, tool_choice, tools_field


def refuse_unserved(request: ChatRequest) -> None:
    """Raise `UserError` with everything that would change the reply and is not served. For calls outside a rollout."""
    problems = [*(key.problem for key in request.unread if key.problem is not None), *_uncallable(request)]
    if problems:
        raise UserError(problems)


def ignored_fields(request: ChatRequest, *, in_rollout: bool) -> Iterator[str]:
    """Yield one sentence for each field of the request that has no effect. in_rollout: whether nothing was refused."""
    if in_rollout:
        for problem in _uncallable(request):
            yield f"{problem.where} has no effect: {problem.fix}"
    elif _custom_tools(request):
        yield f"{_custom_tools(request)[0]} has no effect: tool_choice leaves no choice of it"
    yield from (key.warning for key in request.unread)
    if request.stream_options is not None and request.stream_options.include_obfuscation:
        yield "stream_options.include_obfuscation has no effect: streams are not padded"
    strict = [name for name, function in functions_of(request.tools or ()).items() if function.get("strict")]
    if strict and tool_choice(request) in (None, "auto"):
        yield f"strict of the function {strict[0][:60]!r} is enforced only where `tool_choice` forces a call"


def _uncallable(request: ChatRequest) -> Iterator[Problem]:
    """Yield a problem for each tool that the model may call, and that is no function."""
    if tool_choice(request) in (None, "auto", "required"):
        for where in _custom_tools(request):
            yield Problem(
                what="a custom tool",
                expected='tools of the type "function": replies hold calls of functions alone',
                fix="wrap it in a function with one string parameter",
                where=where,
            )


def _custom_tools(request: ChatRequest) -> list[str]:
    """Return the places of the tools that are no functions."""
    field = tools_field(request)
    return [f"{field}[{i}]" for i, tool in enumerate(request.tools or ()) if not functions_of([tool])]
