"""What a chat request, and the job of a rollout, ask of a reply: the prompt's conversation and the plan of sampling.

A rollout's thinking is its job's where the job says something; a tool call is forced on it only if the job wants that
(decision 25), for forced tokens are not the policy's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from synth.chat.families import Family, functions_of
from synth.chat.messages import Conversation
from synth.errors import Problem, UserError
from synth.inference.api.requests import (
    ChatRequest,
    JobSampling,
    asked_budget,
    asked_thinking,
    one_call,
    sampling_of,
    tool_choice,
    tools_of,
)
from synth.inference.chat.generation import GenerationPlan
from synth.inference.chat.prompts import ChatFormat

# What stands in a tool call as it is, in any family's format.
_PLAIN_NAME = re.compile(r"[\w./:-]{1,128}", re.ASCII)


def conversation_of(request: ChatRequest, job: JobSampling | None = None) -> Conversation:
    """The messages, the tools unless they are switched off, and whether the model is asked to think."""
    asked, budget = _thinking(request, job)
    return Conversation(request.messages, tools_of(request), asked is True and budget != 0)


def plan_of(
    request: ChatRequest, job: JobSampling | None, chat: ChatFormat, prompt_ids: Sequence[int], *, thinking: bool
) -> GenerationPlan:
    """How the reply to a prompt is sampled. thinking: of its conversation.

    Raises `UserError` for a tool choice that cannot be, of calls on a user's own account.
    """
    family, (asked, budget) = chat.family, _thinking(request, job)
    must_call = _must_call(request)
    if isinstance(must_call, Problem):
        if job is None:
            raise UserError(must_call)
        must_call = ()
    if job is not None and not job.constrain_tools:
        must_call = ()
    return GenerationPlan(
        params=sampling_of(request, job),
        thinks=thinking and family.thinks,
        in_reasoning=chat.ends_in_reasoning(prompt_ids),
        # A template that always opens thoughts has them closed at once when there shall be none.
        thinking_budget=0 if asked is False else budget,
        one_call=one_call(request) or (bool(must_call) and tool_choice(request) != "required"),
        must_call=must_call,
    )


def without_effect(request: ChatRequest, job: JobSampling | None, family: Family) -> tuple[str, ...]:
    """What the request asks for and does not get, a sentence each, which the reply carries.

    Task apps ask for it at every call, so that a refusal would end their rollouts.
    """
    told: list[str] = []
    must_call = _must_call(request)
    if job is not None and must_call:
        choice = tool_choice(request)
        named = choice if isinstance(choice, str) else "of one function"
        if isinstance(must_call, Problem):
            told.append(f"tool_choice {named} has no effect: {must_call.what}")
        elif not job.constrain_tools:
            may = (
                "the reply may hold no tool call, or one of another tool; [rollout] constrain_tools = true enforces it"
            )
            told.append(f"tool_choice {named} is not enforced: {may}")
    asked, budget = _thinking(request, job)
    if asked and budget is not None and not family.thinks:
        told.append("thinking_budget has no effect: this model's chat template knows no thoughts")
    return tuple(told)


def _thinking(request: ChatRequest, job: JobSampling | None) -> tuple[bool | None, int | None]:
    """Whether the model is told to think, and tokens of thought, at most."""
    asked, budget = asked_thinking(request), asked_budget(request)
    if job is None:
        return asked, budget
    budgets = [b for b in (job.thinking_budget, budget) if b is not None]
    return asked if job.thinking is None else job.thinking, min(budgets, default=None)


def _must_call(request: ChatRequest) -> tuple[str, ...] | Problem:
    """The functions of which a reply has to call one: none, or what is wrong with the request for it."""
    choice, names = tool_choice(request), tuple(functions_of(request.tools or ()))
    where = "function_call" if request.tool_choice is None else "tool_choice"
    if choice in (None, "auto", "none"):
        return ()
    if isinstance(choice, dict):
        function: Any = choice.get("function", choice)
        wanted: Any = function.get("name") if isinstance(function, dict) else None
        if wanted not in names:
            return Problem(
                what=f"there is no tool {str(wanted)[:60]!r}",
                expected=f"one of {', '.join(names[:20])}" if names else "the name of a function in `tools`",
                where=where,
            )
        names = (str(wanted),)
    elif choice != "required":
        expected = "none, auto, required or one function"
        return Problem(what=f"{where} is {str(choice)[:60]!r}", expected=expected, where=where)
    if not names:
        return Problem(what="there are no tools to call", expected="`tools` with a function", where=where)
    strange = next((name for name in names if not _PLAIN_NAME.fullmatch(name)), None)
    if strange is not None:
        return Problem(
            what=f"the name of the function {strange[:60]!r} cannot be forced",
            expected="1 to 128 of the characters a-z A-Z 0-9 _ - . / :",
            where="tools",
        )
    return names
