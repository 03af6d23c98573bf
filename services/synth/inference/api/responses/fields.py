"""The fields of a call of OpenAI's Responses API, and how each of them is treated.

A field that chat completions have too is treated as there (`synth.inference.api.keys`).
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from synth.inference.api.keys import FOREIGN_FIELDS, OPENAI_FIELDS, OpenAIField
from synth.inference.api.requests import ExtraBody, TemplateSettings


class TextFormat(msgspec.Struct):
    type: str | None = None
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextConfig(msgspec.Struct):
    format: Annotated[dict[str, Any], TextFormat] | None = None


class ReasoningConfig(msgspec.Struct):
    """summary, generate_summary: any value requests a summary, which is the whole reasoning."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class ResponseStreamOptions(msgspec.Struct):
    include_obfuscation: bool | None = None


class ResponsesRequest(msgspec.Struct, kw_only=True):
    """The fields of a body that are read. input: a text, or items. From `seed` on: fields of our chat API."""

    model: str = ""
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    max_output_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    include: list[str] | None = None
    store: bool | None = None
    metadata: dict[str, Any] | None = None
    user: str | None = None
    prompt_cache_key: str | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    top_k: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    thinking_mode: str | None = None
    thinking_budget: int | None = None
    stop_after_tool_calls: int | None = None
    chat_template_kwargs: TemplateSettings | None = None
    extra_body: ExtraBody | None = None


#: The fields that have the same meaning in a chat.
AS_IN_CHATS = (
    *("model", "stream", "stream_options", "temperature", "top_p", "top_logprobs", "parallel_tool_calls", "user"),
    *("prompt_cache_key", "seed", "stop", "top_k", "frequency_penalty", "presence_penalty", "logit_bias"),
    *("thinking_mode", "thinking_budget", "stop_after_tool_calls", "chat_template_kwargs", "extra_body"),
)
#: The names in `include` that are honoured; the others have nothing to include here.
ENCRYPTED_REASONING, LOGPROBS = "reasoning.encrypted_content", "message.output_text.logprobs"
_NOTHING_TO_INCLUDE = (
    *("file_search_call.results", "web_search_call.results", "web_search_call.action.sources"),
    *("message.input_image.image_url", "computer_call_output.output.image_url", "code_interpreter_call.outputs"),
)
INCLUDABLE = (ENCRYPTED_REASONING, LOGPROBS, *_NOTHING_TO_INCLUDE)

NOT_KEPT = "responses of served models are not kept"
_IGNORED_IN_CHATS = ("prompt_cache_options", "prompt_cache_retention", "safety_identifier", "service_tier")
_TAKEN = OpenAIField("taken")

RESPONSES_FIELDS: dict[str, OpenAIField] = {
    **{name: OPENAI_FIELDS[name] for name in _IGNORED_IN_CHATS},
    "client_metadata": _TAKEN,
    "betas": _TAKEN,
    "access_programs": OpenAIField("ignored", note="there are no such programs"),
    "max_tool_calls": OpenAIField("ignored", note="it limits the calls of built-in tools, and there are none"),
    "background": OpenAIField("refused", (False,), "false", f"{NOT_KEPT}; stream the response"),
    "background_options": OpenAIField("refused", ({},), "none", f"{NOT_KEPT}; stream the response"),
    "conversation": OpenAIField("refused", (), "none", "conversations are not kept; send them in `input`"),
    "context_management": OpenAIField("refused", ([],), "none", "shorten the conversation yourself"),
    "image": OpenAIField("refused", ({},), "none", "replies are text"),
    "moderation": OPENAI_FIELDS["moderation"],
    "prompt": OpenAIField("refused", (), "none", "prompts are not kept; send it in `instructions` or `input`"),
    "truncation": OpenAIField("refused", ("disabled",), '"disabled"', "shorten the conversation yourself"),
}


class InputPart(msgspec.Struct):
    """A part of a message's content, or of a tool's output."""

    type: str
    text: str | None = None
    image_url: str | None = None


_Parts = Annotated[str | list[dict[str, Any]], InputPart]


class MessageItem(msgspec.Struct):
    role: str
    content: _Parts
    type: str = "message"


class CallItem(msgspec.Struct):
    type: str
    call_id: str
    name: str
    arguments: str


class CallOutputItem(msgspec.Struct):
    type: str
    call_id: str
    output: _Parts


class ReasoningPart(msgspec.Struct):
    type: str
    text: str


class ReasoningItem(msgspec.Struct):
    type: str
    id: str | None = None
    summary: list[ReasoningPart] | None = None
    content: list[ReasoningPart] | None = None
    encrypted_content: str | None = None


class ItemReference(msgspec.Struct):
    type: str
    id: str


class FunctionTool(msgspec.Struct):
    type: str
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class AllowedTool(msgspec.Struct):
    name: str
    type: str = "function"


class NamedChoice(msgspec.Struct):
    """A `tool_choice` that names tools: a function by its name, or the allowed functions."""

    type: str
    name: str | None = None
    mode: str | None = None
    tools: list[AllowedTool] | None = None


class NamespaceTool(msgspec.Struct):
    """A group of functions. description: not shown to the model."""

    type: str
    name: str
    tools: list[dict[str, Any]]
    description: str | None = None


ITEMS: dict[str, type[msgspec.Struct]] = {
    "message": MessageItem,
    "function_call": CallItem,
    "function_call_output": CallOutputItem,
    "reasoning": ReasoningItem,
    "item_reference": ItemReference,
}
#: Fields that a server adds to an item.
_SERVED = dict.fromkeys(("id", "status"), _TAKEN)
_CALL_FIELDS = {
    **_SERVED,
    "namespace": _TAKEN,
    "caller": OpenAIField("refused", ({"type": "direct"},), "none", "programs call no tools here"),
    "async": OpenAIField("refused", (False,), "false", "calls are answered in the next request"),
}

TABLES: dict[type[msgspec.Struct], dict[str, OpenAIField]] = {
    ResponsesRequest: RESPONSES_FIELDS | {n: f for n, f in FOREIGN_FIELDS.items() if n not in RESPONSES_FIELDS},
    TextConfig: {"verbosity": OPENAI_FIELDS["verbosity"]},
    MessageItem: {**_SERVED, "phase": _TAKEN},
    CallItem: _CALL_FIELDS,
    CallOutputItem: _CALL_FIELDS | {"name": _TAKEN},
    ReasoningItem: {"status": _TAKEN},
    InputPart: {
        **dict.fromkeys(("annotations", "logprobs", "prompt_cache_breakpoint"), _TAKEN),
        "detail": OpenAIField("ignored", ("auto", "high"), note="the model's image processor chooses the size"),
        "file_id": OpenAIField("refused", (), "`image_url`", "send the image as a data URI or an address"),
    },
    FunctionTool: dict.fromkeys(("defer_loading", "cache_control"), _TAKEN),
}
