"""Builds the conversation and the sampling plan of a reply from a chat request and, for a rollout, from its job.

If the job sets a rollout's thinking, its setting counts. A tool call is forced on a rollout only if the
job wants that (decision 25), because forced tokens are not the policy's.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from synth.chat.families import Family
from synth.chat.messages import Conversation
from synth.chat.tools import functions_of
from synth.errors import Problem, UserError
from synth.inference.api.fields import ignored_fields
from synth.inference.api.output_format import OutputGrammars
from synth.inference.api.requests import (
    ChatRequest,
    JobSampling,
    build_sampling_params,
    max_tokens,
    offered_tools,
    one_call,
    thinking_budget_wishes,
    thinking_wishes,
    tool_choice,
    tools_field,
)
from synth.inference.chat.generation import GenerationPlan
from synth.inference.chat.prompts import ChatFormat

_THINKING = {True: '"think"', False: '"no_think"'}
_UNREAD = "this model's chat template teaches no format of tool calls that is read"
# A name that needs no escaping in the tool call format of any family.
_PLAIN_NAME = re.compile(r"[\w./:-]{1,128}", re.ASCII)
# Without leading zeros, so that a token is named once.
_TOKEN_ID = re.compile("0|[1-9][0-9]{0,9}")
# How many of a field's wrong entries an error names.
_NAMED = 20


def build_conversation(request: ChatRequest, job: JobSampling | None = None) -> Conversation:
    """Return the messages, the tools unless they are switched off, and whether the model shall think."""
    thinks, budget = _thinking(request, job)
    return Conversation(request.messages, offered_tools(request), thinks is True and budget != 0)


def forced_functions(request: ChatRequest, job: JobSampling | None, family: Family) -> tuple[str, ...]:
    """Return the functions of which the reply has to call one; none if it may hold any text.

    Raises `UserError` for an impossible tool choice, and for tools of a model whose calls cannot be read, in a call on
    a user's own account.
    """
    if job is None and _unread_tools(request, family):
        raise UserError(
            _UNREAD,
            expected="a model of a family whose calls are read, or no tools",
            fix='see docs/models.md#tool-calls; `tool_choice: "none"` leaves them out',
            where=tools_field(request),
        )
    must_call = () if _unread_tools(request, family) else _must_call(request)
    if isinstance(must_call, Problem):
        if job is None:
            raise UserError(must_call)
        return ()
    return must_call if job is None or job.constrain_tools else ()


def build_sampling_plan(
    request: ChatRequest,
    job: JobSampling | None,
    chat: ChatFormat,
    prompt_ids: Sequence[int],
    *,
    thinking: bool,
    must_call: tuple[str, ...],
    grammars: OutputGrammars,
    default_max_tokens: int,
    vocabulary: int,
) -> GenerationPlan:
    """Return how the reply to a prompt is sampled. thinking: of its conversation. must_call: see `forced_functions`.

    default_max_tokens: of a reply that neither the request nor a job bounds. vocabulary: of the model. Raises
    `UserError` for a `logit_bias` that cannot be.
    """
    family, (thinks, budget) = chat.family, _thinking(request, job)
    params = build_sampling_params(request, job, default_max_tokens=default_max_tokens)
    return GenerationPlan(
        params=replace(
            params,
            banned=tuple(dict.fromkeys((*params.banned, *chat.media))),
            logit_bias=_logit_bias(request, vocabulary) if job is None else (),
        ),
        thinks=thinking and family.thinks,
        opening=chat.opening(prompt_ids),
        # If the budget is 0, reasoning that the template opens is closed at once.
        thinking_budget=0 if thinks is False else budget,
        tools=offered_tools(request),
        one_call=one_call(request) or (bool(must_call) and tool_choice(request) != "required"),
        must_call=must_call,
        grammar=grammars.answer,
        argument_grammars=grammars.arguments,
    )


def find_ineffective(request: ChatRequest, job: JobSampling | None, family: Family) -> tuple[str, ...]:
    """Find the fields of the request that have no effect: one sentence each, returned to the client in the reply.

    These are not errors, because task apps send them with every call, and an error would end their rollouts.
    """
    warnings = [*ignored_fields(request, in_rollout=job is not None), *_overruled_by_job(request, job)]
    thinks, budget = _thinking(request, job)
    if thinks and budget is not None and not family.thinks:
        warnings.append("thinking_budget has no effect: this model's chat template knows no `<think>`")
    if _unread_tools(request, family):
        warnings.append(f"tools has no effect: {_UNREAD}; a call is content")
        return tuple(warnings)
    must_call = _must_call(request)
    if job is not None and must_call:
        choice = tool_choice(request)
        named = choice if isinstance(choice, str) else "of one function"
        if isinstance(must_call, Problem):
            warnings.append(f"tool_choice {named} has no effect: {must_call.what}")
        elif not job.constrain_tools:
            may = (
                "the reply may hold no tool call, or one of another tool; [rollout] constrain_tools = true enforces it"
            )
            warnings.append(f"tool_choice {named} is not enforced: {may}")
    return tuple(warnings)


def _logit_bias(request: ChatRequest, vocabulary: int) -> tuple[tuple[int, float], ...]:
    biases = request.logit_bias or {}
    problems = list(itertools.islice(_wrong_biases(biases, vocabulary), _NAMED))
    if problems:
        raise UserError(problems)
    return tuple((int(token), bias) for token, bias in biases.items())


def _wrong_biases(biases: dict[str, float], vocabulary: int) -> Iterator[Problem]:
    for token, bias in biases.items():
        if not _TOKEN_ID.fullmatch(token) or int(token) >= vocabulary:
            expected, fix = f"an id of 0 to {vocabulary - 1}", "take the ids from this model's own tokenizer"
            yield Problem(what=f"there is no token {token[:20]!r}", expected=expected, fix=fix, where="logit_bias")
        elif not -100 <= bias <= 100:
            yield Problem(what=f"the bias of the token {token} is {bias}", expected="-100 to 100", where="logit_bias")


def _unread_tools(request: ChatRequest, family: Family) -> bool:
    """Return whether the model may call tools, and its family writes no calls that can be read."""
    return family.calls is None and bool(offered_tools(request))


def _thinking(request: ChatRequest, job: JobSampling | None) -> tuple[bool | None, int | None]:
    """Return whether the model shall think, and the most reasoning tokens."""
    thinks = next((wish for _, wish in thinking_wishes(request)), None)
    budget = next((wish for _, wish in thinking_budget_wishes(request)), None)
    if job is None:
        return thinks, budget
    budgets = [b for b in (job.thinking_budget, budget) if b is not None]
    return thinks if job.thinking is None else job.thinking, min(budgets, default=None)


def _overruled_by_job(request: ChatRequest, job: JobSampling | None) -> Iterator[str]:
    """Yield one sentence for each wish about sampling and thinking that another one, or the job's, counts before."""
    wishes = thinking_wishes(request)
    if job is not None and job.thinking is not None:
        wishes.insert(0, ("the job's thinking_mode", job.thinking))
    for place, wish in wishes[1:]:
        if wish != wishes[0][1]:
            yield f"{place} has no effect: {wishes[0][0]} counts, and it is {_THINKING[wishes[0][1]]}"
    if job is None:
        return
    for place, budget in thinking_budget_wishes(request)[:1]:
        if job.thinking_budget is not None and budget > job.thinking_budget:
            yield f"{place} {budget} has no effect: the job's is {job.thinking_budget}"
    requested = max_tokens(request)
    if requested is not None and requested > job.max_tokens:
        yield f"max_tokens {requested} has no effect: the job's is {job.max_tokens}"
    for name, wish, ours in (
        ("temperature", request.temperature, job.temperature),
        ("top_p", request.top_p, job.top_p),
        ("top_k", None if request.top_k is None else max(0, request.top_k), job.top_k),
        ("seed", request.seed, None),
        ("frequency_penalty", request.frequency_penalty or None, None),
        ("presence_penalty", request.presence_penalty or None, None),
        ("logit_bias", request.logit_bias or None, None),
    ):
        if wish is not None and wish != ours:
            reason = "a rollout has none" if ours is None else f"the job's is {ours}"
            yield f"{name}{'' if isinstance(wish, dict) else f' {wish}'} has no effect: {reason}"


def _must_call(request: ChatRequest) -> tuple[str, ...] | Problem:
    """Return the functions of which the reply must call one, maybe none; or the problem with the request's choice."""
    choice, names = tool_choice(request), tuple(functions_of(offered_tools(request)))
    where = "function_call" if request.tool_choice is None else "tool_choice"
    if choice in (None, "auto", "none"):
        return ()
    if isinstance(choice, dict):
        function: Any = choice.get("function", choice)
        requested: Any = function.get("name") if isinstance(function, dict) else None
        if requested not in names:
            return Problem(
                what=f"there is no tool {str(requested)[:60]!r}",
                expected=f"one of {', '.join(names[:20])}" if names else "the name of a function in `tools`",
                where=where,
            )
        names = (str(requested),)
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
            where=tools_field(request),
        )
    return names
