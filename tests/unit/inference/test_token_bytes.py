"""The bytes of single tokens: joined, they are the text, wherever its characters are cut."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from synth.inference.token_bytes import token_bytes

TEXTS = [
    "plain words here",
    "a\u2028b c\u0085d",
    "né 漢字 👩\u200d👩\u200d👧 🏳\ufe0f",
    "a\ttab\n\n  spaces ",
    "▁under <0x41> Ġ Ċ",
]
_LEARNT = ["plain words here and there, né 漢字"] * 5
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def byte_level() -> tuple[Any, str]:
    bpe: Any = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        _LEARNT, trainers.BpeTrainer(vocab_size=280, initial_alphabet=alphabet, show_progress=False)
    )
    return bpe, ""


def sentencepiece(*, strips: bool) -> tuple[Any, str]:
    """As of Llama 2 and Mistral, which put a space before a text, or as of Gemma, which does not."""
    words = ["▁plain", "▁words", "▁", "a", "b", "c", "né", "漢", " "]
    vocabulary = {piece: n for n, piece in enumerate(["<unk>", *_BYTES, *words])}
    bpe: Any = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if strips:
        bpe.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        bpe.normalizer = normalizers.Replace(" ", "▁")
    bpe.decoder = decoders.Sequence(steps)
    return bpe, " " if strips else ""


TOKENIZERS = {
    "byte-level": byte_level(),
    "llama": sentencepiece(strips=True),
    "gemma": sentencepiece(strips=False),
}


def joined(backend: Any, text: str) -> bytes:
    of = token_bytes(backend)
    return b"".join(of(id) for id in backend.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_bytes_of_the_tokens_are_those_of_the_text(name: str, text: str):
    backend, before = TOKENIZERS[name]
    # SentencePiece writes a space as U+2581, and cannot tell the two apart.
    text = text if name == "byte-level" else text.replace("▁", "")
    assert joined(backend, text) == (before + text).encode()


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="▁"), min_size=1))
@pytest.mark.parametrize("name", TOKENIZERS)
def test_any_text_is_its_tokens_bytes(name: str, text: str):
    backend, before = TOKENIZERS[name]
    assert joined(backend, text) == (before + text).encode()


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_token_that_is_part_of_a_character_has_its_own_bytes(name: str):
    backend, _ = TOKENIZERS[name]
    of = token_bytes(backend)
    assert [of(id) for id in backend.encode("👩", add_special_tokens=False).ids][-4:] == [
        b"\xf0",
        b"\x9f",
        b"\x91",
        b"\xa9",
    ]


@pytest.mark.parametrize("mark", ["<|im_end|>", "<think>", "é\u2028", "Ġ"])
@pytest.mark.parametrize("special", [True, False])
def test_a_token_that_was_added_has_the_bytes_of_its_text(mark: str, special: bool):
    backend, _ = byte_level()
    backend.add_tokens([AddedToken(mark, special=special, normalized=False)])
    assert token_bytes(backend)(backend.token_to_id(mark)) == mark.encode()
    assert joined(backend, f"a{mark}b") == f"a{mark}b".encode()


def test_a_decoder_that_is_not_known_has_each_token_decoded():
    backend: Any = Tokenizer(models.WordLevel({"[UNK]": 0, "play": 1}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    assert token_bytes(backend)(1) == b"play"
    assert token_bytes(backend)(99) == b""
