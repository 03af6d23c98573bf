"""The body of a chat request: decoded, checked, and turned into a conversation and sampling parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from synth.errors import Problem, UserError
from synth.inference.chat import ROLES, Conversation, Message
from synth.inference.engines.protocol import SamplingParams
from synth.inference.replies import CALL_END

# Without a limit of its own a request gets this many tokens: its whole length is reserved in the KV cache.
_DEFAULT_MAX_TOKENS = 1024


class TemplateSettings(msgspec.Struct, kw_only=True):
    enable_thinking: bool | None = None
    thinking_budget: Any = None


class ExtraBody(msgspec.Struct, kw_only=True):
    """Some clients send the SDK's `extra_body` argument as a literal field."""

    chat_template_kwargs: TemplateSettings | None = None
    stop_after_tool_calls: int | None = None


class StreamOptions(msgspec.Struct, kw_only=True):
    include_usage: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True):
    type: str = "text"


class ChatRequest(msgspec.Struct, kw_only=True):
    """What we read of a chat-completions body; unknown fields are ignored, as the wire contract asks."""

    messages: list[Message]
    model: str = ""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    n: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    return_token_ids: bool | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    function_call: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    stop_after_tool_calls: int | None = None
    response_format: ResponseFormat | None = None
    thinking_mode: str | None = None
    thinking_budget: Any = None
    reasoning_effort: str | None = None
    chat_template_kwargs: TemplateSettings | None = None
    extra_body: ExtraBody | None = None
    # Read only to be refused (`synth.inference.refused`).
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    functions: list[Any] | None = None
    modalities: list[str] | None = None
    audio: Any = None
    web_search_options: Any = None
    moderation: Any = None
    verbosity: str | None = None
    store: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSampling:
    """The sampling of a rollout, which is the job's and not the app's (decision 25): top-p and top-k are off.

    banned: token ids that the policy must never sample; the trainer leaves them out of its softmax too.
    """

    temperature: float = 1.0
    max_tokens: int
    banned: tuple[int, ...] = ()


_decoder = msgspec.json.Decoder(ChatRequest, strict=True)


def decode_request(body: bytes) -> ChatRequest:
    """Decode and check a body. Raises `UserError`, whose `where` is the field."""
    try:
        request = _decoder.decode(body)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `$")
        raise UserError(
            Problem(what=what, where=place.rstrip("`").lstrip(".") or "body", fix="see the OpenAI chat API")
        ) from error
    except msgspec.DecodeError as error:
        raise UserError(
            Problem(what=f"the body is not JSON: {error}", expected="a JSON object", where="body")
        ) from error
    problems = list(_problems(request))
    if problems:
        raise UserError(problems)
    return request


def _problems(r: ChatRequest) -> list[Problem]:
    def wrong(where: str, value: object, expected: str, fix: str = "") -> Problem:
        return Problem(what=f"{where} is {value!r}", expected=expected, fix=fix, where=where)

    limit = max_tokens(r)
    found: list[tuple[bool, Problem]] = [
        (not r.messages, wrong("messages", [], "at least one message")),
        (limit is not None and limit < 1, wrong("max_tokens", limit, "1 or more")),
        (not 0 <= (r.temperature or 0) <= 2, wrong("temperature", r.temperature, "0 to 2")),
        (not 0 <= (r.top_p or 0) <= 1, wrong("top_p", r.top_p, "0 to 1")),
        ((r.top_k or 0) < -1, wrong("top_k", r.top_k, "a positive number, or 0 or -1 for off")),
        ((r.n or 1) != 1, wrong("n", r.n, "1", "send the request n times: a common prompt is computed once")),
        (len(stop_strings(r)) > 4, wrong("stop", r.stop, "at most 4 strings")),
        ("" in stop_strings(r), wrong("stop", r.stop, "strings that are not empty")),
        ((r.top_logprobs or 0) != 0, wrong("top_logprobs", r.top_logprobs, "0", "logprobs alone are served")),
        (
            r.response_format is not None and r.response_format.type != "text",
            wrong("response_format", r.response_format and r.response_format.type, "text"),
        ),
    ]
    roles = [
        wrong(f"messages[{i}].role", message.role, f"one of {', '.join(ROLES)}")
        for i, message in enumerate(r.messages)
        if message.role not in ROLES
    ]
    return [problem for is_wrong, problem in found if is_wrong] + roles


def max_tokens(request: ChatRequest) -> int | None:
    """The request's limit, under either of its names."""
    return request.max_completion_tokens if request.max_completion_tokens is not None else request.max_tokens


def stop_strings(request: ChatRequest) -> tuple[str, ...]:
    if request.stop is None:
        return ()
    return (request.stop,) if isinstance(request.stop, str) else tuple(request.stop)


def conversation_of(request: ChatRequest) -> Conversation:
    """The messages, the tools unless they are switched off, and whether the model is asked to think."""
    return Conversation(request.messages, tools_of(request), _thinking(request))


def tools_of(request: ChatRequest) -> Sequence[dict[str, Any]]:
    """The tools that the model may call. `function_call` is what `tool_choice` was called before."""
    return () if _tool_choice(request) == "none" else request.tools or ()


def one_call(request: ChatRequest) -> bool:
    """Whether the reply is to end after its first tool call."""
    asked = request.stop_after_tool_calls or (request.extra_body and request.extra_body.stop_after_tool_calls)
    return bool(tools_of(request)) and (asked == 1 or request.parallel_tool_calls is False)


def without_effect(request: ChatRequest) -> tuple[str, ...]:
    """What the request asks for and does not get, a sentence each, which the reply carries.

    Task apps ask for it at every call, so that a refusal would end their rollouts.
    """
    choice, settings, told = _tool_choice(request), _template_settings(request), list[str]()
    if choice not in (None, "auto", "none"):
        named = choice if isinstance(choice, str) else "of one function"
        told.append(f"tool_choice {named} is not enforced: the reply may hold no tool call, or one of another tool")
    budget = request.thinking_budget if request.thinking_budget is not None else settings and settings.thinking_budget
    if budget is not None and _thinking(request):
        told.append("thinking_budget is not enforced: max_tokens bounds the thoughts and the answer together")
    return tuple(told)


def sampling_of(request: ChatRequest, job: JobSampling | None) -> SamplingParams:
    """The job's sampling for a rollout, where the app can only ask for fewer tokens; else the request's own."""
    asked = max_tokens(request)
    stop = (*stop_strings(request), *([CALL_END] if one_call(request) else []))
    if job is not None:
        return SamplingParams(
            max_tokens=min(job.max_tokens, asked or job.max_tokens),
            temperature=job.temperature,
            banned=job.banned,
            stop=stop,
        )
    return SamplingParams(
        max_tokens=asked or _DEFAULT_MAX_TOKENS,
        temperature=1.0 if request.temperature is None else request.temperature,
        top_p=1.0 if request.top_p is None else request.top_p,
        top_k=max(0, request.top_k or 0),
        stop=stop,
        seed=request.seed,
    )


def _tool_choice(request: ChatRequest) -> str | dict[str, Any] | None:
    return request.tool_choice if request.tool_choice is not None else request.function_call


def _template_settings(request: ChatRequest) -> TemplateSettings | None:
    return request.chat_template_kwargs or (request.extra_body and request.extra_body.chat_template_kwargs)


def _thinking(request: ChatRequest) -> bool:
    settings = _template_settings(request)
    if settings is not None and settings.enable_thinking is not None:
        return settings.enable_thinking
    if request.thinking_mode is not None:
        return request.thinking_mode == "think"
    return request.reasoning_effort not in (None, "none", "minimal")
