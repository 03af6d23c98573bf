"""The inputs of a rendering: the templates and tokens of a model, the kind of rows, and the date.

These are plain values that services send to each other. They import no template engine.
"""

from __future__ import annotations

import hashlib
from datetime import date
from typing import Any, Literal

import msgspec

from synth.chat.literals import control_tokens

#: The templates by name; a model with one template has it under this name.
DEFAULT, WITH_TOOLS = "default", "tool_use"


class TemplateSource(msgspec.Struct, frozen=True):
    """Everything that rendering needs of a model.

    templates: the text of each template by its name. tokens: the tokenizer's special tokens by their role, as
    `bos_token`. controls: the control tokens, which are escaped if a message spells them.
    """

    templates: dict[str, str]
    tokens: dict[str, str]
    controls: list[str]

    @classmethod
    def of(cls, tokenizer: Any) -> TemplateSource:
        """Read a Hugging Face tokenizer."""
        template: dict[str, str] | str | None = tokenizer.chat_template
        templates = template if isinstance(template, dict) else {DEFAULT: template} if template else {}
        return cls(templates, dict(tokenizer.special_tokens_map), sorted(control_tokens(tokenizer)))

    @property
    def text(self) -> str:
        """All templates as one text, by which the model's family is recognised."""
        return "\n".join(self.templates.values())

    @property
    def reads_date(self) -> bool:
        """Whether a template writes the date."""
        return "strftime_now" in self.text

    def digest(self, day: date | None) -> str:
        """Return a digest that is equal for two sources that render every conversation alike, each on its day."""
        written = str(day) if self.reads_date else ""
        read = (sorted(self.templates.items()), sorted(self.tokens.items()), self.controls, written)
        return hashlib.sha256(repr(read).encode()).hexdigest()


class RenderOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the rows of a file are rendered.

    kind: the kind of row that the job needs. sees: whether the model takes images. images: the most in one message.
    day: the date of the job.
    """

    source: TemplateSource
    kind: Literal["conversations", "pairs", "prompts"]
    sees: bool
    images: int
    day: date

    def digest(self) -> str:
        """Return a digest that is equal for two checks that accept the same rows."""
        return f"{self.source.digest(self.day)}-{self.kind}-{self.images if self.sees else 'text'}"
