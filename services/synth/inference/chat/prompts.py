"""From an OpenAI chat request to prompt ids, token-exact across the turns of one rollout.

Rendering a conversation again and encoding it need not give the ids that were sampled: text does not say how it was
tokenised. So a rollout's calls are remembered, and a request that continues one of them gets the recorded ids and, of
the template, only what is new.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from synth.chat.families import THINK, THINK_CLOSING, Family, family_of
from synth.chat.json_text import BadJson, read_json
from synth.errors import Problem, UserError
from synth.inference.tokenizers import Tokenizer

#: A template leaves messages of other roles out without a word. developer: the newer name of system.
ROLES = ("system", "developer", "user", "assistant", "tool")


class FunctionCall(msgspec.Struct, kw_only=True):
    name: str
    arguments: str | dict[str, Any] = ""


class ToolCall(msgspec.Struct, kw_only=True):
    function: FunctionCall
    id: str = ""
    type: str = "function"


class Part(msgspec.Struct, kw_only=True):
    type: str
    text: str = ""


class Message(msgspec.Struct, kw_only=True):
    """One message of a conversation, as the OpenAI API spells it; unknown fields are ignored.

    reasoning_content, reasoning: the thoughts of an assistant's message, under both of the names that servers use.
    """

    role: str
    content: str | list[Part] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None

    @property
    def reasoning_text(self) -> str:
        return self.reasoning_content or self.reasoning or ""

    def text(self, place: str) -> str:
        """The content as text. Raises `UserError` for a part that is not text."""
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        for i, part in enumerate(self.content):
            if part.type != "text":
                raise UserError(
                    Problem(
                        what=f"a content part of type {part.type!r}",
                        expected="text: this model sees no images",
                        fix="send text parts only, or choose a vision model",
                        where=f"{place}.content[{i}].type",
                    )
                )
        return "".join(part.text for part in self.content)


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a prompt is rendered from. tools: the request's, as sent. thinking: whether the model may think first."""

    messages: Sequence[Message]
    tools: Sequence[dict[str, Any]] = ()
    thinking: bool = False


@dataclass(frozen=True, slots=True)
class RecordedTokens:
    """One call that was answered. ids: its prompt's and its reply's. thoughts: of the reply, before its content."""

    ids: list[int]
    reasoning: str


@dataclass(slots=True)
class TokenHistory:
    """The calls of one rollout, by the conversation that each of them made: what to continue from.

    branch_breaks: calls that could not continue an earlier one, although there was one.
    """

    calls: dict[tuple[str, ...], RecordedTokens] = field(default_factory=dict[tuple[str, ...], RecordedTokens])
    branch_breaks: int = 0


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """A model's chat template and tokenizer."""

    tokenizer: Tokenizer

    @property
    def family(self) -> Family:
        """How this model writes thoughts and tool calls."""
        return family_of(str(self.tokenizer.full.chat_template))

    def prompt_ids(self, conversation: Conversation, history: TokenHistory | None = None) -> list[int]:
        """The ids to sample after. With a `history`, a continued call's own ids come first, untouched.

        Raises `UserError` for messages that the template cannot render.
        """
        if history is None or not history.calls:
            return self.tokenizer.encode(self._render(conversation, complete=False))
        keys = _key(conversation, conversation.messages)
        calls = [history.calls.get(keys[: n + 1]) for n in range(1, len(keys))]
        # Most clients send an assistant's message back without its thoughts. It is the template that decides what of
        # them the model sees again, so it gets them.
        messages = [
            msgspec.structs.replace(m, reasoning_content=tokens.reasoning)
            if tokens is not None and not m.reasoning_text
            else m
            for m, tokens in zip(conversation.messages, calls, strict=True)
        ]
        known = Conversation(messages, conversation.tools, conversation.thinking)
        text = self._render(known, complete=False)
        continued = self._continue(known, calls, text)
        if continued is None:
            history.branch_breaks += 1
        return self.tokenizer.encode(text) if continued is None else continued

    def ends_in_reasoning(self, prompt_ids: Sequence[int]) -> bool:
        """Whether a prompt ends in open thoughts, so that its reply begins inside them."""
        return self.family.thinks and self.tokenizer.decode(prompt_ids[-8:]).rstrip().endswith(THINK)

    def remember(
        self,
        history: TokenHistory,
        conversation: Conversation,
        reply: Message,
        prompt_ids: list[int],
        sampled_ids: list[int],
    ) -> None:
        """Keep a call's ids for the request that will continue it, be it with the reply's thoughts or without."""
        tokens = RecordedTokens([*prompt_ids, *sampled_ids], reply.reasoning_text)
        bare = msgspec.structs.replace(reply, reasoning_content=None, reasoning=None)
        for said in (reply, bare) if reply.reasoning_text else (reply,):
            history.calls[_key(conversation, [*conversation.messages, said])] = tokens

    def _continue(
        self, conversation: Conversation, calls: Sequence[RecordedTokens | None], text: str
    ) -> list[int] | None:
        """Recorded ids plus those of the new text, or None if no turn of this conversation can be gone on from."""
        n = max((n for n, tokens in enumerate(calls[:-1], start=1) if tokens is not None), default=0)
        recorded = calls[n - 1]
        if n == 0 or recorded is None:
            return None
        earlier = Conversation(conversation.messages[:n], conversation.tools, conversation.thinking)
        before = self._render(earlier, complete=True)
        # A template may show an earlier turn otherwise once another follows (Qwen3 drops its thinking).
        end = before.rfind(self.tokenizer.eos_text)
        if end < 0 or not text.startswith(before):
            return None
        # The recorded ids end where the reply ended: with the eos token if it was sampled, else before it.
        ended = recorded.ids[-1] == self.tokenizer.eos_id
        return recorded.ids + self.tokenizer.encode(text[end + len(self.tokenizer.eos_text) * ended :])

    def _render(self, conversation: Conversation, *, complete: bool) -> str:
        thinks = self.family.thinks
        messages = [_for_template(m, f"messages[{i}]", thinks=thinks) for i, m in enumerate(conversation.messages)]
        try:
            return self.tokenizer.full.apply_chat_template(
                messages,
                tools=list(conversation.tools) or None,
                add_generation_prompt=not complete,
                tokenize=False,
                enable_thinking=conversation.thinking,
            )
        except Exception as error:
            raise UserError(
                Problem(
                    what=f"the model's chat template cannot render these messages: {error}",
                    expected="roles and an order of turns that the template knows",
                    where="messages",
                )
            ) from error


def _for_template(message: Message, place: str, *, thinks: bool) -> dict[str, Any]:
    role = "system" if message.role == "developer" else message.role
    text = message.text(place)
    if thinks and message.reasoning_text and role == "assistant":
        # Where every template that knows thoughts looks for them, whatever else it reads.
        text = f"{THINK}\n{message.reasoning_text}{THINK_CLOSING}{text}"
    entry: dict[str, Any] = {"role": role, "content": text}
    if message.tool_calls:
        entry["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function.name, "arguments": _parsed(call.function.arguments)},
            }
            for call in message.tool_calls
        ]
    for name, value in (("tool_call_id", message.tool_call_id), ("name", message.name)):
        if value is not None:
            entry[name] = value
    return entry


def _parsed(arguments: str | dict[str, Any]) -> Any:
    """Arguments as the template wants them: an object; text that is no JSON object stays as it is."""
    if isinstance(arguments, dict):
        return arguments
    try:
        value = read_json(arguments)
    except BadJson:
        return arguments
    return value if isinstance(value, dict) else arguments


def _key(conversation: Conversation, messages: Sequence[Message]) -> tuple[str, ...]:
    """What makes two conversations the same to the template: one string for the settings, then one a message."""
    settings = json.dumps([conversation.tools, conversation.thinking], sort_keys=True)
    return (settings, *(_message_key(m, f"messages[{i}]") for i, m in enumerate(messages)))


def _message_key(message: Message, place: str) -> str:
    calls = [[c.function.name, _parsed(c.function.arguments)] for c in message.tool_calls or []]
    about = [message.tool_call_id or "", message.name or "", message.reasoning_text]
    return json.dumps([message.role, message.text(place), calls, *about], sort_keys=True)
