"""From the conversation of a chat request to prompt ids, token-exact across the turns of one rollout.

Rendering a conversation again and encoding it need not give the ids that were sampled: text does not say how it was
tokenised. So the token ids of a rollout's calls are kept, and a request that continues one of these calls gets the
recorded ids and, of the template, only what is new.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from synth.chat.families import THINK, Family
from synth.chat.messages import Conversation, Message, template_messages
from synth.chat.template import ChatTemplate
from synth.inference.grammar.compiler import GrammarCompiler
from synth.inference.tokenizers import Tokenizer


@dataclass(frozen=True, slots=True)
class RecordedTokens:
    """One call that was answered. ids: its prompt's and its reply's. reasoning: of the reply, before its content."""

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
    """A model's chat template and tokenizer, and the JSON schemas that were compiled for it."""

    tokenizer: Tokenizer
    template: ChatTemplate = field(init=False)
    grammars: GrammarCompiler = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "template", ChatTemplate(self.tokenizer.full))
        object.__setattr__(self, "grammars", GrammarCompiler(self.tokenizer.full))

    @property
    def family(self) -> Family:
        """How this model writes reasoning and tool calls."""
        return self.template.family

    def prompt_ids(self, conversation: Conversation, history: TokenHistory | None = None) -> list[int]:
        """The ids to sample after. With a `history`, a continued call's own ids come first, untouched.

        Raises `UserError` for messages that the template cannot render.
        """
        if history is None or not history.calls:
            return self.template.encode(self.template.prompt(conversation))
        keys = _key(conversation, conversation.messages)
        calls = [history.calls.get(keys[: n + 1]) for n in range(1, len(keys))]
        # Most clients send an assistant's message back without its reasoning. It is the template that decides what of
        # it the model sees again, so the template gets it.
        messages = [
            msgspec.structs.replace(message, reasoning_content=tokens.reasoning)
            if tokens is not None and not message.reasoning_text
            else message
            for message, tokens in zip(conversation.messages, calls, strict=True)
        ]
        continued, text = self._continue(replace(conversation, messages=messages), calls)
        if continued is None:
            history.branch_breaks += 1
        return self.template.encode(text) if continued is None else continued

    def ends_in_reasoning(self, prompt_ids: Sequence[int]) -> bool:
        """Whether a prompt ends in open reasoning, so that its reply begins inside it."""
        return self.family.thinks and self.tokenizer.decode(prompt_ids[-8:]).rstrip().endswith(THINK)

    def remember(
        self,
        history: TokenHistory,
        conversation: Conversation,
        reply: Message,
        prompt_ids: list[int],
        sampled_ids: list[int],
    ) -> None:
        """Keep a call's ids for the request that will continue it, be it with the reply's reasoning or without."""
        tokens = RecordedTokens([*prompt_ids, *sampled_ids], reply.reasoning_text)
        bare = msgspec.structs.replace(reply, reasoning_content=None, reasoning=None)
        for message in (reply, bare) if reply.reasoning_text else (reply,):
            history.calls[_key(conversation, [*conversation.messages, message])] = tokens

    def _continue(
        self, conversation: Conversation, calls: Sequence[RecordedTokens | None]
    ) -> tuple[list[int] | None, str]:
        """Recorded ids plus those of the new text, or None if no call can be continued; and the whole rendered text."""
        template, prepared = self.template, self.template.prepare(conversation)
        text = template.render(prepared, thinking=conversation.thinking, add_generation_prompt=True)
        n = max((n for n, tokens in enumerate(calls[:-1], start=1) if tokens is not None), default=0)
        recorded = calls[n - 1]
        if n == 0 or recorded is None:
            return None, text
        before = template.render(prepared, thinking=conversation.thinking, add_generation_prompt=False, upto=n)
        # A template may show an earlier turn otherwise once another follows (Qwen3 drops its reasoning).
        end = before.rfind(self.tokenizer.eos_text)
        if end < 0 or not text.startswith(before):
            return None, text
        # The recorded ids end where the reply ended: with the eos token if it was sampled, else before it.
        ended = recorded.ids[-1] == self.tokenizer.eos_id
        return recorded.ids + template.encode(text[end + len(self.tokenizer.eos_text) * ended :]), text


def _key(conversation: Conversation, messages: Sequence[Message]) -> tuple[str, ...]:
    """What makes two conversations the same to the template: one string for the settings, then one a message."""
    settings = json.dumps([conversation.tools, conversation.thinking], sort_keys=True)
    shown = template_messages(messages, thinks=False)
    reasoning = [message.reasoning_text for message in messages]
    return (settings, *map(_message_key, shown, reasoning))


def _message_key(entry: dict[str, Any], reasoning: str) -> str:
    """One message in the template's form. A tool call's id is the client's to choose, and does not count."""
    calls = [call["function"] for call in entry.get("tool_calls", ())]
    return json.dumps([entry | {"tool_calls": calls}, reasoning], sort_keys=True)
