"""A model's tokenizer as the service uses it: the fast backend, without the cost of the wrapper at each call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synth.chat.families import family_of
from synth.chat.marks import MARKS
from synth.chat.turn_end import turn_ends
from synth.errors import Permanent
from synth.inference.token_bytes import TokenBytes, token_bytes


class NoChatTemplate(Permanent):
    """The model cannot be chatted with: its folder has no chat template."""


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """full: the Hugging Face tokenizer, for its chat template.

    turn_end, turn_end_text: the token with which the template ends a turn, the eos if it has none. ends: every token
    that ends a turn. bytes_of: the bytes of a token, which may be part of a character.
    """

    full: Any
    turn_end: int
    turn_end_text: str
    ends: frozenset[int]
    bytes_of: TokenBytes
    _hidden: frozenset[int]

    def encode(self, text: str) -> list[int]:
        """Return the token ids of text that may hold special tokens; none are added."""
        return self.full.backend_tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids without special tokens, except the markers of calls, channels and reasoning."""
        shown = [i for i in ids if i not in self._hidden]
        return self.full.backend_tokenizer.decode(shown, skip_special_tokens=False)

    def text_of(self, token_id: int) -> str:
        """Return the text of one token, special or not; bytes that are part of a character are shown as U+FFFD."""
        return self.bytes_of(token_id).decode(errors="replace")


class StreamDecoder:
    """Text from token ids that come piece by piece: whole characters, for a token may hold a part of one."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._before: list[int] = []  # some decoders treat the first token of a text otherwise
        self._ids: list[int] = []

    def feed(self, ids: Sequence[int]) -> str:
        self._ids += ids
        text = self._new_text()
        if text.endswith("\ufffd"):
            return ""
        self._before, self._ids = self._ids[-4:] or self._before, []
        return text

    def rest(self) -> str:
        return self._new_text()

    def _new_text(self) -> str:
        if not self._ids:
            return ""
        known = len(self._tokenizer.decode(self._before)) if self._before else 0
        return self._tokenizer.decode([*self._before, *self._ids])[known:]


def load_tokenizer(model_dir: Path) -> Tokenizer:
    """Load from a local directory. Raises `Permanent` without a fast tokenizer, an eos token or a chat template."""
    from transformers import AutoTokenizer

    try:
        full: Any = AutoTokenizer.from_pretrained(model_dir, local_files_only=True)
    except (OSError, ValueError) as error:
        raise Permanent(f"no tokenizer can be loaded from {model_dir.name!r}: {error}") from error
    missing = [
        name
        for name, there in (
            ("a fast tokenizer", getattr(full, "backend_tokenizer", None) is not None),
            ("an eos token", full.eos_token_id is not None),
        )
        if not there
    ]
    if missing:
        raise Permanent(f"the tokenizer of {model_dir.name!r} lacks {' and '.join(missing)}; a chat needs both")
    if not full.chat_template:
        raise NoChatTemplate(
            f"{model_dir.name!r} has no chat template, and a chat is rendered with one; name its instruct variant, or "
            "put a chat_template.jinja into its folder"
        )
    ends = turn_ends(full)
    vocabulary = full.get_vocab()
    kept = {vocabulary[mark] for mark in MARKS if mark in vocabulary}
    # A mark that ends a turn is behind the reply.
    kept |= {vocabulary[mark] for mark in family_of(str(full.chat_template)).marks if mark in vocabulary} - ends
    end = next(iter(ends - {full.eos_token_id}), full.eos_token_id)
    hidden = frozenset({*full.all_special_ids, *ends} - kept)
    own = token_bytes(full.backend_tokenizer)
    return Tokenizer(full, end, full.convert_ids_to_tokens(end), ends, own, hidden)
