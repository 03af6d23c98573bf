"""A conversation as text and as token ids: the one rendering, with a model's own chat template and tokenizer.

Invariants: a conversation has the same ids in training and in inference; a special token that is spelled in a message,
a tool or a call's arguments is text, and never becomes that token.

A special token's literal is replaced by a private-use character before the template renders, and the text between two
of the template's own special tokens that holds such a character is encoded by a copy of the tokenizer that knows no
special tokens. A conversation without literals is rendered and encoded as it is. Rendered text with these characters in
it is called *rendered* below: it may be cut and compared, and `encode` takes it. Marks such as `<think>` and
`<tool_call>` are never literals, whether a tokenizer holds them as special tokens or as plain ones.
"""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from synth.chat.families import MARKS, Family, family_of
from synth.chat.messages import Conversation, template_messages, template_tools
from synth.errors import Problem, UserError

#: Private-use characters: the first one stands in front of such a character that a message holds itself.
_ESCAPE = 0xF0000


@dataclass(frozen=True, slots=True)
class TemplateInput:
    """The messages and tools of a conversation in the template's form, without literals of special tokens."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None


class ChatTemplate:
    """Renders and encodes conversations.

    tokenizer: a fast Hugging Face tokenizer with a chat template. Its backend's own truncation and padding are
    switched off: a prompt is never cut silently.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        tokenizer.backend_tokenizer.no_truncation()
        tokenizer.backend_tokenizer.no_padding()

    @property
    def family(self) -> Family:
        """How this model writes reasoning and tool calls."""
        return family_of(str(self._tokenizer.chat_template))

    def prepare(self, conversation: Conversation) -> TemplateInput:
        """The conversation in the template's form. Raises `UserError` for what is not text."""
        try:
            messages = template_messages(conversation.messages, thinks=self.family.thinks)
            tools = template_tools(conversation.tools)
            return TemplateInput(self._literals.escape(messages), self._literals.escape(tools))
        except RecursionError as error:
            raise _not_renderable("they are nested too deeply") from error

    def render(
        self, prepared: TemplateInput, *, thinking: bool, add_generation_prompt: bool, upto: int | None = None
    ) -> str:
        """The rendered text of the first `upto` messages. Raises `UserError` where the template cannot render them."""
        try:
            return self._tokenizer.apply_chat_template(
                prepared.messages[:upto],
                tools=prepared.tools,
                add_generation_prompt=add_generation_prompt,
                tokenize=False,
                enable_thinking=thinking,
            )
        except Exception as error:
            raise _not_renderable(str(error)) from error

    def prompt(self, conversation: Conversation) -> str:
        """The rendered text after which the assistant's next turn is sampled. Raises `UserError`."""
        return self.render(self.prepare(conversation), thinking=conversation.thinking, add_generation_prompt=True)

    def assistant_turn(self, prepared: TemplateInput, index: int) -> tuple[str, str]:
        """The prompt before the assistant's message `index`, and the whole with it, which begins with the prompt.

        The prompt is one that inference samples after: the one without thinking where the turn continues it (its
        template may put an empty `<think>` block there, which is not the model's to write), else the one with it.
        Raises `UserError` where the template renders a turn that continues neither.
        """
        prompt = ""
        for thinking in (False, True):
            prompt = self.render(prepared, thinking=thinking, add_generation_prompt=True, upto=index)
            whole = self.render(prepared, thinking=thinking, add_generation_prompt=False, upto=index + 1)
            if whole.startswith(prompt):
                return prompt, whole
        raise UserError(
            Problem(
                what="the chat template renders an assistant turn that does not continue its own generation prompt "
                f"({prompt[-40:]!r})",
                expected="the conversation to start with the prompt",
                fix="check the template",
            )
        )

    def encode(self, rendered: str) -> list[int]:
        """Token ids of rendered text, or of a part of one."""
        if self._literals.occur_in(rendered):
            return self._encode_literals(rendered)
        return self._tokenizer.backend_tokenizer.encode(rendered, add_special_tokens=False).ids

    def encode_all(self, rendered: Sequence[str]) -> list[list[int]]:
        """Token ids of many texts, in parallel."""
        encode = self._tokenizer.backend_tokenizer.encode_batch
        with_literals = {i for i, text in enumerate(rendered) if self._literals.occur_in(text)}
        encoded = iter(
            encode([text for i, text in enumerate(rendered) if i not in with_literals], add_special_tokens=False)
        )
        return [
            self._encode_literals(text) if i in with_literals else next(encoded).ids for i, text in enumerate(rendered)
        ]

    def _encode_literals(self, rendered: str) -> list[int]:
        """Token ids of rendered text with literals in it: each text between special tokens that holds one is apart."""
        encode = self._tokenizer.backend_tokenizer.encode
        plain, ids = "", list[int]()
        for text in self._literals.split(rendered):
            if not self._literals.occur_in(text):
                plain += text
                continue
            ids += encode(plain, add_special_tokens=False).ids
            ids += self._encode_as_text(self._literals.restore(text))
            plain = ""
        return ids + encode(plain, add_special_tokens=False).ids

    def _encode_as_text(self, text: str) -> list[int]:
        """Token ids of text in which nothing but the marks is special."""
        backend, special_marks = self._tokenizer.backend_tokenizer, self._literals.special_marks
        ids: list[int] = []
        for part in re.split(f"({'|'.join(map(re.escape, special_marks))})", text) if special_marks else [text]:
            encoder = backend if part in special_marks else self._without_specials
            ids += encoder.encode(part, add_special_tokens=False).ids
        return ids

    @functools.cached_property
    def _literals(self) -> _Literals:
        added = self._tokenizer.added_tokens_decoder.values()
        special = {token.content for token in added if token.special} | set(self._tokenizer.all_special_tokens)
        return _Literals(special)

    @functools.cached_property
    def _without_specials(self) -> Any:
        backend: Any = copy.deepcopy(self._tokenizer.backend_tokenizer)
        backend.encode_special_tokens = True
        return backend


class _Literals:
    """Replaces the special tokens that are spelled in texts by private-use characters, and back."""

    def __init__(self, special: set[str]) -> None:
        literals = sorted(special - set(MARKS), key=lambda token: (-len(token), token))
        self.special_marks = [mark for mark in MARKS if mark in special]
        self._stand_ins = {literal: chr(_ESCAPE + 1 + k) for k, literal in enumerate(literals)}
        self._literals = {stand_in: literal for literal, stand_in in self._stand_ins.items()}
        escape, last = chr(_ESCAPE), chr(_ESCAPE + len(literals))
        self._private = re.compile(f"[{escape}-{last}]")
        self._escaped = re.compile(f"{escape}(.)|[{escape}-{last}]", re.DOTALL)
        tokens = "|".join(map(re.escape, literals))
        self._found = re.compile(f"{tokens}|[{escape}-{last}]" if literals else f"[{escape}-{last}]")
        self._token = re.compile(f"({tokens})") if literals else None

    def escape(self, value: Any) -> Any:
        """The value with every text in it, keys too, free of literals. Texts without any stay the same objects."""
        if isinstance(value, str):
            return self._found.sub(lambda found: self._stand_ins.get(found[0], chr(_ESCAPE) + found[0]), value)
        if isinstance(value, list):
            return [self.escape(item) for item in cast(list[Any], value)]
        if isinstance(value, dict):
            return {self.escape(key): self.escape(item) for key, item in cast(dict[str, Any], value).items()}
        return value

    def restore(self, rendered: str) -> str:
        """The text with its literals."""
        return self._escaped.sub(lambda found: found[1] or self._literals.get(found[0], found[0]), rendered)

    def occur_in(self, rendered: str) -> bool:
        return self._private.search(rendered) is not None

    def split(self, rendered: str) -> list[str]:
        """The template's own special tokens, and the texts between them."""
        return [rendered] if self._token is None else self._token.split(rendered)


def _not_renderable(reason: str) -> UserError:
    return UserError(
        Problem(
            what=f"the model's chat template cannot render these messages: {reason}",
            expected="roles and an order of turns that the template knows",
            where="messages",
        )
    )
