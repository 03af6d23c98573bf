"""A conversation as text and as token ids: the one rendering, with a model's own chat template and tokenizer.

Invariants: a conversation has the same ids in training and in inference; a control token that is spelled in a message,
a tool or a call's arguments is text, and never becomes that token. The marks are the exception: `<think>`,
`<tool_call>` and their ends are tokens wherever they are spelled, for that is how a model's own words come back.

A literal is escaped before the template renders (`literals`), and the text between two of the template's own control
tokens that holds one is encoded by a copy of the tokenizer that knows no control tokens. A conversation without
literals is rendered and encoded as it is. Rendered text with escapes in it is called *rendered* below: it may be cut
and compared, and `encode` takes it. Beside a literal, the blanks that a token of some tokenizers swallows (lstrip,
rstrip) stay, in training and inference alike.
"""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from synth.chat.families import Family, family_of
from synth.chat.literals import Literals, control_tokens
from synth.chat.marks import MARKS
from synth.chat.messages import Conversation, template_messages, template_tools
from synth.errors import Problem, UserError

#: Stands for one image in a rendered conversation, in every family that sees.
IMAGE_TOKEN = "<|image_pad|>"


@dataclass(frozen=True, slots=True)
class TemplateInput:
    """The messages and tools of a conversation in the template's form, without literals of special tokens."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None


class ChatTemplate:
    """Renders and encodes conversations.

    tokenizer: a fast Hugging Face tokenizer with a chat template. Its backend's own truncation and padding are
    switched off: a prompt is never cut silently. sees: whether the model is shown images. Rendered and encoded, an
    image is one token; `synth.images.prompt_image` makes it as many as it has.
    """

    def __init__(self, tokenizer: Any, *, sees: bool = False) -> None:
        self._tokenizer = tokenizer
        self.sees = sees
        tokenizer.backend_tokenizer.no_truncation()
        tokenizer.backend_tokenizer.no_padding()

    @property
    def family(self) -> Family:
        """How this model writes reasoning and tool calls."""
        return family_of(str(self._tokenizer.chat_template))

    @functools.cached_property
    def image_token(self) -> int:
        """The id of the token that stands for an image."""
        return self._tokenizer.convert_tokens_to_ids(IMAGE_TOKEN)

    def prepare(self, conversation: Conversation) -> TemplateInput:
        """The conversation in the template's form. Raises `UserError` for what the model cannot be shown."""
        try:
            messages = template_messages(conversation.messages, thinks=self.family.thinks, sees=self.sees)
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
        # `encode` holds the GIL for as long as it takes, 1 s for 1 MB of text; a batch releases it.
        return self._tokenizer.backend_tokenizer.encode_batch_fast([rendered], add_special_tokens=False)[0].ids

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
        """Token ids of text in which nothing but the marks is a token of its own."""
        backend, marks = self._tokenizer.backend_tokenizer, self._special_marks
        ids: list[int] = []
        for part in re.split(f"({'|'.join(map(re.escape, marks))})", text) if marks else [text]:
            encoder = backend if part in marks else self._without_controls
            ids += encoder.encode(part, add_special_tokens=False).ids
        return ids

    @functools.cached_property
    def _literals(self) -> Literals:
        return Literals(control_tokens(self._tokenizer))

    @functools.cached_property
    def _special_marks(self) -> list[str]:
        added = self._tokenizer.added_tokens_decoder.values()
        return [token.content for token in added if token.special and token.content in MARKS]

    @functools.cached_property
    def _without_controls(self) -> Any:
        """A copy of the tokenizer that encodes every control token as text."""
        backend: Any = copy.deepcopy(self._tokenizer.backend_tokenizer)
        controls = control_tokens(self._tokenizer)
        # Only tokens that are marked special are encoded as text by the switch below.
        unmarked = [t for t in self._tokenizer.added_tokens_decoder.values() if t.content in controls and not t.special]
        backend.add_special_tokens([type(t)(t.content, normalized=False, special=True) for t in unmarked])
        backend.encode_special_tokens = True
        return backend


def _not_renderable(reason: str) -> UserError:
    return UserError(
        Problem(
            what=f"the model's chat template cannot render these messages: {reason}",
            expected="roles and an order of turns that the template knows",
            where="messages",
        )
    )
