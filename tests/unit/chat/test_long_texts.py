"""Long texts are searched in pieces, and the least number of their tokens is known."""

from __future__ import annotations

import random
import sys
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from synth.chat import json_text, literals
from synth.chat.literals import Literals
from synth.chat.messages import Conversation, Message
from synth.chat.template import ChatTemplate, TooManyTokens
from synth.inference.token_length import most_characters_per_token
from synth.local.tiny_models.tokenizer import make_tokenizer


@pytest.mark.parametrize("start", ["{", '{"a": [', '{"a": NaN, ', '{"a": 1} x', '{"a": ' + "[" * 2000, ""])
def test_a_long_text_is_read_as_a_short_one_is(start: str, monkeypatch: pytest.MonkeyPatch):
    texts = [f'{start}"b": [1, 2.5, -3e4, null, true, "c\\n\\u00e9", {{}}]}}', '{"b": 1}' + " " * 9]
    for text in texts:
        read: list[Any] = []
        for limit in (1 << 16, 1):
            monkeypatch.setattr(json_text, "_C_CALL", limit)
            try:
                read.append(json_text.read_json(text))
            except json_text.BadJson:
                read.append(json_text.BadJson)
        assert read[0] == read[1]


_LITERALS = ["<|im_end|>", "|im_end|", "[INST]", "<s>", "</s>", "\U000f0000", "\U000f0001", "\U000f0002"]
_TEXTS = [*_LITERALS, "<", "|", "<|im_", "end|>", "[INST", "a", "b c"]


@pytest.mark.parametrize("piece", [1, 2, 5, 64])
def test_a_text_in_pieces_is_escaped_as_the_whole(piece: int, monkeypatch: pytest.MonkeyPatch):
    found = Literals(["<|im_end|>", "[INST]", "<s>", "</s>"])
    chance = random.Random(piece)
    texts = ["".join(chance.choices(_TEXTS, k=40)) for _ in range(50)]
    whole = [found.escape(text) for text in texts]
    parts = [list(found.split(text)) for text in texts]
    monkeypatch.setattr(literals, "_PIECE", piece)
    monkeypatch.setattr(literals, "_JOINED", 3)
    assert [found.escape(text) for text in texts] == whole
    assert [found.restore(text) for text in whole] == texts
    assert [list(found.split(text)) for text in texts] == parts
    assert [found.occur_in(text) for text in whole] == [any(one in text for one in _LITERALS) for text in texts]
    assert all(len(text) >= found.least_length(escaped) for text, escaped in zip(texts, whole, strict=True))


def test_no_text_has_fewer_tokens_than_its_characters_tell():
    tokenizer = make_tokenizer(4096)
    template, backend = ChatTemplate(tokenizer), tokenizer.backend_tokenizer
    bound = most_characters_per_token(backend)
    assert bound is not None
    longest = sorted(backend.get_vocab(with_added_tokens=True).items(), key=lambda item: len(item[0]))[-20:]
    texts = [backend.decode([token_id], skip_special_tokens=False) for _, token_id in longest]
    composed = ["u\u0308\u0304", "\u1100\u1161\u11a8", "\u03b1\u0313\u0301\u0345", "\u212a", "\u1fef"]
    for text in [*texts, *composed, "<|im_end|>", "word ", " ", "\U000f0000"]:
        rendered = template.prompt(Conversation([Message(role="user", content=text * 500)]))
        tokens = len(template.encode(rendered))
        assert len(rendered) / 2 <= tokens * bound
        assert template.encode(rendered, most=tokens, characters_per_token=bound)
        with pytest.raises(TooManyTokens) as error:
            template.encode(rendered, most=tokens - 1, characters_per_token=bound)
        assert error.value.tokens <= tokens


def test_nfc_makes_no_more_than_three_characters_of_two_bytes():
    characters = (chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000)
    made = (c for c in characters if unicodedata.is_normalized("NFC", c))
    assert max(len(unicodedata.normalize("NFD", c)) / len(c.encode()) for c in made) == 1.5


def _no_normalizer(backend: Any) -> None:
    backend.normalizer = normalizers.Sequence([])


def _drops_spaces(backend: Any) -> None:
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"\s+"), behavior="removed"), pre_tokenizers.ByteLevel(use_regex=False)]
    )


def _splits_words(backend: Any) -> None:
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.ByteLevel()])


def _compatible(backend: Any) -> None:
    backend.normalizer = normalizers.NFKC()


def _takes_blanks(backend: Any) -> None:
    backend.add_special_tokens([AddedToken("<|blank|>", rstrip=True)])


def _no_bytes(backend: Any) -> None:
    backend.pre_tokenizer = None


def _few_bytes(backend: Any) -> None:
    backend.model = models.BPE(vocab={"a": 0, "b": 1}, merges=[])


def _words(backend: Any) -> None:
    backend.model = models.WordLevel({"a": 0}, unk_token="a")


@pytest.mark.parametrize(
    ("change", "bound"),
    [
        (_no_normalizer, 20.0),
        *((change, None) for change in (_drops_spaces, _splits_words, _compatible, _takes_blanks)),
        *((change, None) for change in (_no_bytes, _few_bytes, _words)),
    ],
)
def test_a_bound_holds_for_tokenizers_that_keep_every_byte(change: Callable[[Any], None], bound: float | None):
    backend = Tokenizer.from_str(make_tokenizer(4096).backend_tokenizer.to_str())
    assert most_characters_per_token(backend) == 30.0
    change(backend)
    assert most_characters_per_token(backend) == bound
