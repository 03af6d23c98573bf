"""What becomes of each field of a chat request: it is honoured, refused with the reason, or ignored with a warning.

What would change the reply is never ignored on a user's own account. In a rollout nothing is refused, because its
sampling is the job's whatever the task app sends (decision 25): there the reply's `warnings` name what has no effect.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from synth.chat.tools import functions_of
from synth.errors import Problem, UserError
from synth.inference.api.requests import ChatRequest, ExtraBody, TemplateSettings, tool_choice

Treatment = Literal["honoured", "refused", "ignored"]


@dataclass(frozen=True, slots=True)
class OpenAIField:
    """One documented field of OpenAI's chat completions.

    neutral: values that ask for nothing that is not done anyway, beside null; they are taken without a word.
    expected: what a refused field may say. note: why it is refused or ignored, and what to do.
    """

    treatment: Treatment
    neutral: tuple[Any, ...] = ()
    expected: str = "none"
    note: str = ""


_HONOURED = OpenAIField("honoured")

OPENAI_FIELDS: dict[str, OpenAIField] = {
    "messages": _HONOURED,
    "model": _HONOURED,
    "stream": _HONOURED,
    "stream_options": _HONOURED,
    "temperature": _HONOURED,
    "top_p": _HONOURED,
    "max_tokens": _HONOURED,
    "max_completion_tokens": _HONOURED,
    "stop": _HONOURED,
    "seed": _HONOURED,
    "n": _HONOURED,
    "logprobs": _HONOURED,
    "tools": _HONOURED,
    "tool_choice": _HONOURED,
    "function_call": _HONOURED,
    "parallel_tool_calls": _HONOURED,
    "response_format": _HONOURED,
    "reasoning_effort": _HONOURED,
    "prompt_cache_key": _HONOURED,
    "user": _HONOURED,
    "top_logprobs": OpenAIField("refused", (0,), "0", "logprobs of sampled tokens alone are served"),
    "frequency_penalty": OpenAIField("refused", (0,), "0", "penalties are not served"),
    "presence_penalty": OpenAIField("refused", (0,), "0", "penalties are not served"),
    "logit_bias": OpenAIField("refused", ({},), "none", "leave it out"),
    "functions": OpenAIField("refused", ([],), "none", "send them as `tools`"),
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

# Fields of other servers, by their neutral values: what they ask for would change the reply.
_FOREIGN: dict[str, tuple[Any, ...]] = {
    "min_p": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "min_tokens": (0,),
    "bad_words": ([],),
    "stop_token_ids": ([],),
    "allowed_token_ids": (),
    "ignore_eos": (False,),
    "use_beam_search": (False,),
    "best_of": (1,),
    "echo": (False,),
    "chat_template": (),
    "documents": ([],),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": (),
    "grammar": (),
}


# Their unknown names are looked at one by one.
_READ_IN_PART = ("chat_template_kwargs", "extra_body")


def refuse_unserved(request: ChatRequest) -> None:
    """Raises `UserError` with everything that would change the reply and is not served. For calls outside a rollout."""
    problems = list(_unserved(request))
    if problems:
        raise UserError(problems)


def ignored_fields(request: ChatRequest, *, in_rollout: bool) -> Iterator[str]:
    """One sentence for each field of the request that has no effect. in_rollout: whether nothing was refused."""
    if in_rollout:
        for problem in _unserved(request):
            yield f"{problem.where} has no effect" + (f": {problem.fix}" if problem.fix else "")
    elif _custom_tools(request):
        yield f"{_custom_tools(request)[0]} has no effect: tool_choice leaves no choice of it"
    for name, value in request.others.items():
        field = OPENAI_FIELDS.get(name)
        if field is None and name not in _FOREIGN and name not in _READ_IN_PART:
            yield f"{name[:60]} has no effect: there is no such field"
        elif field is not None and field.treatment == "ignored" and not _is_neutral(value, field.neutral):
            yield f"{name} has no effect: {field.note}"
    if request.stream_options is not None and request.stream_options.include_obfuscation:
        yield "stream_options.include_obfuscation has no effect: streams are not padded"
    strict = [name for name, function in functions_of(request.tools or ()).items() if function.get("strict")]
    if strict and tool_choice(request) in (None, "auto"):
        yield f"strict of the function {strict[0][:60]!r} is enforced only where `tool_choice` forces a call"


def _unserved(request: ChatRequest) -> Iterator[Problem]:
    for name, value in request.others.items():
        field = OPENAI_FIELDS.get(name)
        if field is None and name in _FOREIGN:
            field = OpenAIField("refused", _FOREIGN[name], "none", "it is not served: leave it out")
        if field is not None and field.treatment == "refused" and not _is_neutral(value, field.neutral):
            yield Problem(what=f"{name} is {str(value)[:60]}", expected=field.expected, fix=field.note, where=name)
    for where, unknown in _unknown_settings(request):
        yield Problem(what=f"{where} is not served", fix=f"expected one of {', '.join(unknown)}", where=where)
    if tool_choice(request) in (None, "auto", "required"):
        for where in _custom_tools(request):
            yield Problem(
                what="a custom tool",
                expected='tools of the type "function": replies hold calls of functions alone',
                fix="wrap it in a function with one string parameter",
                where=where,
            )


def _unknown_settings(request: ChatRequest) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Names within `chat_template_kwargs` and `extra_body` that are not read, and those that are."""
    beside = request.others.get("extra_body")
    places: list[tuple[str, Any, tuple[str, ...]]] = [
        ("chat_template_kwargs", request.others.get("chat_template_kwargs"), TemplateSettings.__struct_fields__),
        ("extra_body", beside, ExtraBody.__struct_fields__),
    ]
    if isinstance(beside, dict):
        settings = beside.get("chat_template_kwargs")
        places.append(("extra_body.chat_template_kwargs", settings, TemplateSettings.__struct_fields__))
    for place, given, known in places:
        for name in given if isinstance(given, dict) else ():
            if name not in known and given[name] is not None:
                yield f"{place}.{name[:60]}", known


def _custom_tools(request: ChatRequest) -> list[str]:
    """The places of the tools that are no functions."""
    return [f"tools[{i}]" for i, tool in enumerate(request.tools or ()) if not functions_of([tool])]


def _is_neutral(value: Any, neutral: tuple[Any, ...]) -> bool:
    return value is None or any(
        value == other and isinstance(value, bool) == isinstance(other, bool) for other in neutral
    )
