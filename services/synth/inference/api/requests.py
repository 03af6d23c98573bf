"""The body of a chat request: decodes and checks it, and reads its sampling, tools and thinking."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import msgspec

from synth.chat.messages import ROLES, FunctionCall, Message, Tool, ToolFunction
from synth.chat.tools import functions_of
from synth.errors import Problem, UserError
from synth.inference.api.keys import ChatMessage, UnreadKey, unread_keys
from synth.inference.engines.protocol import SamplingParams
from synth.methods.base import PlayedJob

# OpenAI's own limit: a request that works here works there.
_MAX_STOP_STRINGS = 4
_GREEDY_BELOW = 1e-5
_MIN_TOP_P = 1e-6
_THINKING_MODES = ("think", "no_think")


class TemplateSettings(msgspec.Struct, kw_only=True):
    enable_thinking: bool | None = None
    thinking_budget: int | None = None


class ExtraBody(msgspec.Struct, kw_only=True):
    """Some clients send the SDK's `extra_body` argument as a literal field."""

    chat_template_kwargs: TemplateSettings | None = None
    stop_after_tool_calls: int | None = None


class StreamOptions(msgspec.Struct, kw_only=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class FunctionName(msgspec.Struct):
    name: str | None = None


class AllowedTools(msgspec.Struct):
    mode: str | None = None
    tools: list[Tool] | None = None


class ToolChoice(msgspec.Struct):
    """The keys of a `tool_choice`: of one function, nested or flat, or of the tools that are allowed."""

    type: str | None = None
    function: FunctionName | None = None
    name: str | None = None
    allowed_tools: AllowedTools | None = None


class JsonSchema(msgspec.Struct):
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct):
    type: str | None = None
    json_schema: JsonSchema | None = None


class ChatRequest(msgspec.Struct, kw_only=True):
    """The fields of a chat-completions body that are read; `synth.inference.api.keys` decides about all others.

    A struct beside the type of a field names the keys of its objects, which are kept unchanged.
    """

    messages: Annotated[list[Message], ChatMessage]
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
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    return_token_ids: bool | None = None
    tools: Annotated[list[dict[str, Any]], Tool] | None = None
    functions: Annotated[list[dict[str, Any]], ToolFunction] | None = None
    tool_choice: str | Annotated[dict[str, Any], ToolChoice] | None = None
    function_call: str | Annotated[dict[str, Any], FunctionName] | None = None
    parallel_tool_calls: bool | None = None
    stop_after_tool_calls: int | None = None
    response_format: Annotated[dict[str, Any], ResponseFormat] | None = None
    thinking_mode: str | None = None
    thinking_budget: int | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: TemplateSettings | None = None
    extra_body: ExtraBody | None = None
    # Not a field of the body.
    unread: list[UnreadKey] = msgspec.field(name="(unread)", default_factory=list[UnreadKey])


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSampling:
    """The sampling of a rollout, which is the job's and not the app's (decision 25); training has top-p and top-k off.

    banned: token ids that the policy must never sample; the trainer leaves them out of its softmax too.
    thinking: whether the model thinks; None leaves it to the app. thinking_budget: the most reasoning tokens.
    constrain_tools: whether a tool call that the app requires is forced. max_images_per_message: the most that a
    message shows; None: the service's limit. max_images_per_prompt: the most that all messages show; None: any.
    """

    temperature: float = 1.0
    max_tokens: int
    top_p: float = 1.0
    top_k: int = 0
    banned: tuple[int, ...] = ()
    thinking: bool | None = None
    thinking_budget: int | None = None
    constrain_tools: bool = False
    max_images_per_message: int | None = None
    max_images_per_prompt: int | None = None

    @classmethod
    def of(cls, job: PlayedJob) -> JobSampling:
        """Take the sampling from a job's settings."""
        rollout, sampling = job.rollout, job.rollout.sampling
        return cls(
            temperature=sampling.temperature,
            max_tokens=sampling.max_tokens,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            thinking=sampling.thinking,
            thinking_budget=sampling.thinking_budget,
            constrain_tools=rollout.constrain_tools,
            max_images_per_message=job.vision.max_images_per_message if job.vision is not None else None,
            max_images_per_prompt=job.vision.max_images_per_prompt if job.vision is not None else None,
        )


_T = TypeVar("_T")


def decode_request(body: bytes, *, max_choices: int) -> ChatRequest:
    """Decode and check a body. max_choices: the largest `n`. Raises `UserError`, whose `where` is the field."""
    body_json = decode_json(body)
    unread = list[UnreadKey]()
    if isinstance(body_json, dict):
        unread = unread_keys([(body_json, ChatRequest, "")])
        body_json.pop("(unread)", None)
        _take_older_names(body_json.get("messages"))
    return read_request(body_json, unread, max_choices=max_choices)


def decode_json(body: bytes) -> Any:
    """Decode a body. Raises `UserError`."""
    try:
        return msgspec.json.decode(body)
    # JSON that is nested too deeply raises a RecursionError.
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise UserError(f"the body is not JSON: {error}", expected="a JSON object", where="body") from error


def read_request(
    given: Any, unread: Sequence[UnreadKey], *, max_choices: int, before: Sequence[Message] = ()
) -> ChatRequest:
    """Check the fields of a chat. unread: the keys that are not read. before: earlier messages. Raises `UserError`."""
    request = typed(given, ChatRequest)
    request.messages = [*before, *request.messages]
    request.unread = [*unread, *_overruled(request)]
    request.tools = request.tools or request.functions
    problems = list(_problems(request, max_choices))
    if problems:
        raise UserError(problems)
    return request


def _overruled(r: ChatRequest) -> Iterator[UnreadKey]:
    """Yield the fields that have no effect because another one counts, with another value."""
    beside, called = r.extra_body and r.extra_body.chat_template_kwargs, r.function_call
    overruled = {
        ("functions", "tools"): r.functions and r.tools,
        ("max_tokens", "max_completion_tokens"): _differ(r.max_tokens, r.max_completion_tokens),
        ("function_call", "tool_choice"): _differ(called and _called(called), r.tool_choice and _called(r.tool_choice)),
        ("extra_body.chat_template_kwargs", "chat_template_kwargs"): _differ(beside, r.chat_template_kwargs),
    }
    for (name, other), is_overruled in overruled.items():
        if is_overruled:
            problem = Problem(what=f"{name} beside {other}", expected="one of them", where=name)
            yield UnreadKey(problem, f"{name} has no effect: `{other}` counts")


def _differ(value: Any, other: Any) -> bool:
    return value is not None and other is not None and value != other


def _called(choice: str | dict[str, Any]) -> Any:
    """Return the mode of a choice among the tools, or the name of its function."""
    return choice if isinstance(choice, str) else _object(choice.get("function", choice)).get("name", choice)


def _take_older_names(messages: Any) -> None:
    """Write the older names of tool calls, and of the role of their results, as the names of today.

    Raises `UserError`, with the place as the client sent it.
    """
    for i, message in enumerate(messages if isinstance(messages, list) else ()):
        if not isinstance(message, dict):
            continue
        call = message.get("function_call")
        if call and message.get("role") == "assistant" and not message.get("tool_calls"):
            typed(call, FunctionCall, f"messages[{i}].function_call")
            message["tool_calls"] = [{"function": call}]
        if message.get("role") == "function":
            message["role"] = "tool"


def typed(value: Any, kind: type[_T], where: str = "", *, api: str = "chat") -> _T:
    """Return a JSON value as this type. where: its place. Raises `UserError`."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `$")
        place = (where + place.rstrip("`")).lstrip(".")
        raise UserError(what, where=place or "body", fix=f"see the OpenAI {api} API") from error


def _problems(r: ChatRequest, max_choices: int) -> list[Problem]:
    def wrong(where: str, value: object, expected: str, fix: str = "") -> tuple[str, object, str, str]:
        return where, value, expected, fix

    fewer = "send several requests, or have the operator raise SYNTH_MAX_CHOICES"
    checks: list[tuple[bool, tuple[str, object, str, str]]] = [
        (not r.messages, wrong("messages", [], "at least one message")),
        ((limit := max_tokens(r)) is not None and limit < 1, wrong("max_tokens", limit, "1 or more")),
        (not 0 <= (r.temperature or 0) <= 2, wrong("temperature", r.temperature, "0 to 2")),
        (not 0 <= (r.top_p or 0) <= 1, wrong("top_p", r.top_p, "0 to 1")),
        ((r.top_k or 0) < -1, wrong("top_k", r.top_k, "a positive number, or 0 or -1 for off")),
        (not 1 <= num_choices(r) <= max_choices, wrong("n", r.n, f"1 to {max_choices}", fewer)),
        (not -(1 << 63) <= (r.seed or 0) < 1 << 63, wrong("seed", r.seed, "a 64-bit integer")),
        (r.thinking_mode not in (None, *_THINKING_MODES), wrong("thinking_mode", r.thinking_mode, "think or no_think")),
        (len(stop_strings(r)) > _MAX_STOP_STRINGS, wrong("stop", r.stop, f"at most {_MAX_STOP_STRINGS} strings")),
        (not 0 <= (r.top_logprobs or 0) <= 20, wrong("top_logprobs", r.top_logprobs, "0 to 20")),
        (not -2 <= (r.frequency_penalty or 0) <= 2, wrong("frequency_penalty", r.frequency_penalty, "-2 to 2")),
        (not -2 <= (r.presence_penalty or 0) <= 2, wrong("presence_penalty", r.presence_penalty, "-2 to 2")),
        (
            bool(r.top_logprobs) and not r.logprobs,
            wrong("top_logprobs", r.top_logprobs, '"logprobs": true beside it', "add it, or leave `top_logprobs` out"),
        ),
        ("" in stop_strings(r), wrong("stop", r.stop, "strings that are not empty")),
    ]
    checks += [
        (budget is not None and budget < 0, wrong(where, budget, "0 or more tokens"))
        for where, budget in _thinking_budgets(r)
    ]
    checks += [
        (True, wrong(f"messages[{i}].role", message.role, f"one of {', '.join(ROLES)}"))
        for i, message in enumerate(r.messages)
        if message.role not in ROLES
    ]
    return [
        Problem(what=f"{where} is {reprlib.repr(value)}", expected=expected, fix=fix, where=where)
        for is_wrong, (where, value, expected, fix) in checks
        if is_wrong
    ]


def max_tokens(request: ChatRequest) -> int | None:
    """Return the limit that the request names, by either name of the field."""
    return request.max_completion_tokens if request.max_completion_tokens is not None else request.max_tokens


def stop_strings(request: ChatRequest) -> tuple[str, ...]:
    return (request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ())


def num_choices(request: ChatRequest) -> int:
    """Return how many replies the request has to get."""
    return 1 if request.n is None else request.n


def offered_tools(request: ChatRequest) -> Sequence[dict[str, Any]]:
    """Return the functions that the model may call, as `tool_choice` allows."""
    if tool_choice(request) == "none":
        return ()
    allowed = allowed_tools(request)
    functions = [(tool, functions_of([tool])) for tool in request.tools or ()]
    return [tool for tool, named in functions if named and (allowed is None or allowed.issuperset(named))]


def tools_field(request: ChatRequest) -> str:
    """Return the field that has the tools."""
    return "functions" if request.functions and request.tools is request.functions else "tools"


def tool_choice(request: ChatRequest) -> str | dict[str, Any] | None:
    """Return the choice among the tools, by either name of the field: `function_call` is the old one.

    A choice of the type "allowed_tools" is its mode.
    """
    choice = request.tool_choice if request.tool_choice is not None else request.function_call
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        mode = _object(choice.get("allowed_tools")).get("mode")
        return mode if isinstance(mode, str) else choice
    return choice


def allowed_tools(request: ChatRequest) -> frozenset[str] | None:
    """Return the functions that a choice of the type "allowed_tools" lists, by name; None for any other choice."""
    choice = request.tool_choice
    if not isinstance(choice, dict) or choice.get("type") != "allowed_tools":
        return None
    listed = _object(choice.get("allowed_tools")).get("tools")
    return frozenset(functions_of([_object(tool) for tool in listed] if isinstance(listed, list) else []))


def one_call(request: ChatRequest) -> bool:
    """Return whether the reply ends after its first tool call."""
    limit = request.stop_after_tool_calls or (request.extra_body and request.extra_body.stop_after_tool_calls)
    return bool(offered_tools(request)) and (limit == 1 or request.parallel_tool_calls is False)


def thinking_wishes(request: ChatRequest) -> list[tuple[str, bool]]:
    """Return the request's settings of thinking: each place, and whether the model shall think. The first one counts.

    `thinking_mode` is what an evaluation sends to its task app, so it counts before the fields that the app's client
    adds.
    """
    settings = _template_settings(request)
    mode, enabled, effort = request.thinking_mode, settings and settings.enable_thinking, request.reasoning_effort
    wishes = [
        ("thinking_mode", None if mode is None else mode == "think"),
        ("chat_template_kwargs.enable_thinking", enabled),
        ("reasoning_effort", None if effort is None else effort not in ("none", "minimal")),
    ]
    return [(place, wish) for place, wish in wishes if wish is not None]


def thinking_budget_wishes(request: ChatRequest) -> list[tuple[str, int]]:
    """Return the request's limits of reasoning tokens: each place and number. The first one counts."""
    return [(place, budget) for place, budget in _thinking_budgets(request) if budget is not None]


def build_sampling_params(request: ChatRequest, job: JobSampling | None, *, default_max_tokens: int) -> SamplingParams:
    """Return the job's sampling for a rollout, in which the app can only lower the tokens; else the request's sampling.

    default_max_tokens: if neither sets a limit.
    """
    requested = max_tokens(request)
    if job is not None:
        return SamplingParams(
            max_tokens=min(job.max_tokens, requested or job.max_tokens),
            temperature=job.temperature,
            top_p=job.top_p,
            top_k=job.top_k,
            banned=job.banned,
            stop=stop_strings(request),
            top_logprobs=request.top_logprobs or 0,
        )
    temperature = 1.0 if request.temperature is None else request.temperature
    return SamplingParams(
        max_tokens=requested or default_max_tokens,
        # Logits divided by almost zero are not finite, and so low a temperature draws the likeliest token anyway.
        temperature=0.0 if temperature < _GREEDY_BELOW else temperature,
        top_p=1.0 if request.top_p is None else max(request.top_p, _MIN_TOP_P),
        top_k=max(0, request.top_k or 0),
        stop=stop_strings(request),
        seed=request.seed,
        frequency_penalty=request.frequency_penalty or 0.0,
        presence_penalty=request.presence_penalty or 0.0,
        top_logprobs=request.top_logprobs or 0,
    )


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _template_settings(request: ChatRequest) -> TemplateSettings | None:
    return request.chat_template_kwargs or (request.extra_body and request.extra_body.chat_template_kwargs)


def _thinking_budgets(request: ChatRequest) -> list[tuple[str, int | None]]:
    settings, beside = request.chat_template_kwargs, request.extra_body
    budgets = [("thinking_budget", request.thinking_budget)]
    if settings is not None:
        budgets.append(("chat_template_kwargs.thinking_budget", settings.thinking_budget))
    if beside is not None and beside.chat_template_kwargs is not None:
        budgets.append(("extra_body.chat_template_kwargs.thinking_budget", beside.chat_template_kwargs.thinking_budget))
    return budgets
