"""A conversation as text and as token ids: the one rendering, with a model's own chat template and tokenizer.

Invariants: a conversation has the same ids in training and in inference; a control token that is spelled in a message,
a tool or a call's arguments is text, and never becomes that token. The marks are the exception: `<think>`,
`<tool_call>` and their ends are tokens wherever they are spelled, for that is how a model's own words come back.

A literal is escaped before the template renders (`literals`), and the text between two of the template's own control
tokens that holds one is encoded by a copy of the tokenizer without control tokens. A conversation without
literals is rendered and encoded unchanged. Rendered text with escapes in it is called *rendered* below: it may be cut
and compared, and `encode` takes it. Beside a literal, the blanks that a token of some tokenizers swallows (lstrip,
rstrip) stay, in training and inference alike.
"""

from __future__ import annotations

import copy
import functools
import math
import re
from collections.abc import Sequence
from datetime import date
from typing import Any

from synth.chat.literals import control_tokens, find_all
from synth.chat.marks import MARKS
from synth.chat.rendering import Renderer
from synth.chat.template_source import TemplateSource

#: Stands for one image in a rendered conversation, in every family that sees.
IMAGE_TOKEN = "<|image_pad|>"


class TooManyTokens(Exception):
    """A text has too many tokens. exact: whether the number is exact, and not a lower bound."""

    def __init__(self, tokens: int, *, exact: bool = True) -> None:
        super().__init__(tokens)
        self.tokens = tokens
        self.exact = exact


class ChatTemplate(Renderer):
    """Renders and encodes conversations.

    tokenizer: a fast Hugging Face tokenizer with a chat template. Its backend's own truncation and padding are
    switched off: a prompt is never cut silently. Rendered and encoded, an image is one token;
    `synth.images.prompt_image` makes it as many as it has.
    """

    def __init__(self, tokenizer: Any, *, sees: bool = False, day: date | None = None) -> None:
        super().__init__(TemplateSource.of(tokenizer), sees=sees, day=day)
        self._tokenizer = tokenizer
        tokenizer.backend_tokenizer.no_truncation()
        tokenizer.backend_tokenizer.no_padding()

    @functools.cached_property
    def image_token(self) -> int:
        """The id of the token that stands for an image."""
        return self._tokenizer.convert_tokens_to_ids(IMAGE_TOKEN)

    def encode(self, rendered: str, *, most: int | None = None, characters_per_token: float | None = None) -> list[int]:
        """Return the token ids of rendered text, or of a part of it.

        most: raises `TooManyTokens` for more tokens than this. characters_per_token: the most that a token stands for,
        if it is known: a text that is certainly too long is not tokenised.
        """
        if most is not None and characters_per_token is not None:
            least = math.ceil(self._literals.least_length(rendered) / characters_per_token)
            if least > most:
                raise TooManyTokens(least, exact=False)
        if self._literals.occur_in(rendered):
            return self._encode_literals(rendered, most)
        return self._ids(self._tokenizer.backend_tokenizer, rendered, most)

    @staticmethod
    def _ids(backend: Any, text: str, most: int | None = None) -> list[int]:
        # `encode` holds the GIL for as long as it takes, 1 s for 1 MB of text; a batch releases it.
        encoding = backend.encode_batch_fast([text], add_special_tokens=False)[0]
        # The list of a few million ids would take long, with the GIL held.
        if most is not None and len(encoding) > most:
            raise TooManyTokens(len(encoding))
        return encoding.ids

    def encode_all(self, rendered: Sequence[str]) -> list[list[int]]:
        """Return the token ids of many texts, encoded in parallel."""
        encode = self._tokenizer.backend_tokenizer.encode_batch
        with_literals = {i for i, text in enumerate(rendered) if self._literals.occur_in(text)}
        encoded = iter(
            encode([text for i, text in enumerate(rendered) if i not in with_literals], add_special_tokens=False)
        )
        return [
            self._encode_literals(text) if i in with_literals else next(encoded).ids for i, text in enumerate(rendered)
        ]

    def _encode_literals(self, rendered: str, most: int | None = None) -> list[int]:
        """Return the token ids of rendered text with literals; each text that holds one is encoded separately."""
        backend = self._tokenizer.backend_tokenizer
        plain, ids = list[str](), list[int]()
        for text in self._literals.split(rendered):
            if not self._literals.occur_in(text):
                plain.append(text)
                continue
            ids += self._ids(backend, "".join(plain), most)
            ids += self._encode_as_text(self._literals.restore(text), most)
            plain = []
            if most is not None and len(ids) > most:
                raise TooManyTokens(len(ids), exact=False)
        ids += self._ids(backend, "".join(plain), most)
        if most is not None and len(ids) > most:
            raise TooManyTokens(len(ids))
        return ids

    def _encode_as_text(self, text: str, most: int | None) -> list[int]:
        """Return the token ids of text in which only the marks are tokens of their own."""
        ids, end = list[int](), 0
        for item in find_all(self._mark, text, self._longest_mark):
            ids += self._ids(self._without_controls, text[end : item.start()], most)
            ids += self._ids(self._tokenizer.backend_tokenizer, item[0])
            end = item.end()
            if most is not None and len(ids) > most:
                raise TooManyTokens(len(ids), exact=False)
        return ids + self._ids(self._without_controls, text[end:], most)

    @functools.cached_property
    def _mark(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, self._special_marks)) or r"(?!)")

    @functools.cached_property
    def _longest_mark(self) -> int:
        return max(map(len, self._special_marks), default=1)

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
