"""Which tokens of a chat are trained, to the token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from synth.trainer.errors import TrainingFailed
from synth.trainer.learner.data.sft_dataset import SftDataset, encode_rows, load_tokenizer
from tests.unit.trainer.sft_rows import training_rows


@pytest.fixture(scope="module")
def tokenizer(model_dir: Path) -> Any:
    return load_tokenizer(model_dir)


def chat(*turns: tuple[str, str], **last: Any) -> dict[str, Any]:
    messages: list[dict[str, Any]] = [{"role": r, "content": c} for r, c in turns]
    messages[-1] |= last
    return {"messages": messages}


def encoded(tokenizer: Any, *rows: dict[str, Any], length: int = 512) -> SftDataset:
    return encode_rows(training_rows(list(rows)), tokenizer, sequence_length=length)


def texts(tokenizer: Any, data: SftDataset, i: int = 0) -> tuple[str, str]:
    """All of sequence i, and its trained part with a bar between stretches."""
    s = data.sequences
    span = slice(s.cu_seqlens[i], s.cu_seqlens[i + 1])
    ids, weights = s.tokens[span].tolist(), s.weights[span].tolist()
    trained, inside = "", False
    for token, weight in zip(ids, weights, strict=True):
        if weight:
            trained += ("" if inside or not trained else "|") + tokenizer.decode([token])
        inside = bool(weight)
    return tokenizer.decode(ids), trained


def test_the_assistant_words_and_their_end_are_trained_and_the_newline_is_not(tokenizer: Any) -> None:
    data = encoded(tokenizer, chat(("user", "hello"), ("assistant", "hi there")))
    whole, trained = texts(tokenizer, data)
    assert whole == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\nhi there<|im_end|>\n"
    assert trained == "hi there<|im_end|>"


def test_every_assistant_turn_is_trained_in_one_sequence(tokenizer: Any) -> None:
    row = chat(("system", "s"), ("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"), ("user", "e"))
    data = encoded(tokenizer, row)
    whole, trained = texts(tokenizer, data)
    assert len(data.sequences) == 1
    assert trained == "b<|im_end|>|d<|im_end|>"
    assert whole.endswith("d<|im_end|>\n")


def test_a_message_of_weight_zero_is_context(tokenizer: Any) -> None:
    row = chat(("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"))
    row["messages"][1]["weight"] = 0
    assert texts(tokenizer, encoded(tokenizer, row))[1] == "d<|im_end|>"


def test_a_weight_is_the_weight_of_its_tokens(tokenizer: Any) -> None:
    data = encoded(tokenizer, chat(("user", "a"), ("assistant", "b"), weight=0.5))
    assert set(data.sequences.weights.tolist()) == {0.0, 0.5}


def test_the_context_is_tokenised_as_a_server_prompts_with_it(tokenizer: Any) -> None:
    row = chat(("user", "a"), ("assistant", "\n12"))
    data = encoded(tokenizer, row)
    prompt = tokenizer.apply_chat_template(row["messages"][:1], add_generation_prompt=True)["input_ids"]
    assert data.sequences.tokens[: len(prompt)].tolist() == prompt
    assert data.sequences.weights[: len(prompt)].max() == 0
    assert data.sequences.weights[len(prompt)] == 1


def test_a_turn_whose_thinking_is_stripped_later_is_a_sequence_of_its_own(tokenizer: Any) -> None:
    row = chat(("user", "a"), ("assistant", "<think>\nx\n</think>\nb"), ("user", "c"), ("assistant", "d"))
    data = encoded(tokenizer, row)
    assert len(data.sequences) == 2
    assert texts(tokenizer, data, 0)[1] == "<think>\nx\n</think>\nb<|im_end|>"
    whole, trained = texts(tokenizer, data, 1)
    assert trained == "b<|im_end|>|d<|im_end|>" or trained == "d<|im_end|>"
    assert "<think>" not in whole


def test_what_the_user_types_as_an_end_token_trains_nothing_more(tokenizer: Any) -> None:
    data = encoded(tokenizer, chat(("user", "a<|im_end|>\n<|im_start|>assistant\nz"), ("assistant", "b")))
    assert texts(tokenizer, data)[1] == "b<|im_end|>"


def test_truncation_is_counted_and_rows_left_without_a_trained_token_are_dropped(tokenizer: Any) -> None:
    short = chat(("user", "a"), ("assistant", "b"))
    long_answer = chat(("user", "a"), ("assistant", "b " * 60))
    long_prompt = chat(("user", "a " * 60), ("assistant", "b"))
    silent = chat(("user", "a"))
    data = encoded(tokenizer, short, long_answer, long_prompt, silent, length=40)
    assert data.counts["rows"] == 4
    assert data.counts["sequences"] == 2
    assert data.counts["truncated_rows"] == 2
    assert data.counts["untrained_rows"] == 2
    assert data.counts["truncated_tokens"] > 100
    assert max(data.sequences.lengths([0, 1]).values()) == 40


def test_a_dataset_that_trains_nothing_is_refused(tokenizer: Any) -> None:
    with pytest.raises(TrainingFailed, match="none of the 1 rows"):
        encoded(tokenizer, chat(("user", "a")))
