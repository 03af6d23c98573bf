"""Chat rows into token sequences, with a weight for each token: the assistant's own words, and nothing else.

Invariants: the ids before an assistant turn are exactly those that a server would prompt with (prompt and completion
are tokenised apart, as they are when sampling); the end-of-turn token is trained, what the template writes after it
is not; what is cut or dropped is counted.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from synth.chat.messages import TrainingRow, images_in
from synth.chat.template import ChatTemplate
from synth.errors import UserError
from synth.trainer.errors import TrainingFailed
from synth.trainer.learner.data.packing import Sequences
from synth.weights.policy_file import load_tensors, save_tensors

_FORMAT = "sft-3"
_decoder = msgspec.json.Decoder(TrainingRow)


@dataclass(frozen=True)
class SftDataset:
    """Tokenised rows. counts: rows, sequences, truncated_rows, truncated_tokens, untrained_rows."""

    sequences: Sequences
    counts: dict[str, float]


@dataclass(frozen=True)
class _Piece:
    """A part of a rendered text (see `synth.chat.template`), and the weight of its tokens (0: context)."""

    text: str
    weight: float


def load_tokenizer(model_dir: Path) -> Any:
    """The tokenizer and chat template of a model folder. Raises `TrainingFailed` (bad_model)."""
    from transformers.models.auto.tokenization_auto import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(model_dir), local_files_only=True)
    except (OSError, ValueError) as error:
        raise TrainingFailed("bad_model", f"{model_dir.name} has no tokenizer that loads: {error}") from error
    if not tokenizer.chat_template:
        raise TrainingFailed("bad_model", f"{model_dir.name} has no chat template; SFT renders messages with one")
    return tokenizer


def read_rows(dataset: Path) -> Iterable[TrainingRow]:
    """The rows of a JSONL file. Raises `TrainingFailed` (bad_dataset) with the line."""
    with dataset.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                yield _decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise TrainingFailed(
                    "bad_dataset", f"{dataset.name}:{number}: not a chat row ({error!r}); expected messages[]"
                ) from error


def encode_file(
    dataset: Path,
    tokenizer: Any,
    *,
    sequence_length: int,
    examples: int | None = None,
    cache: Path | None = None,
    progress: Callable[[int], None] | None = None,
) -> SftDataset:
    """Tokenise a JSONL file once: a cache written for the same file, tokenizer and template is read instead.

    examples: only the first rows. progress: called with the number of rows rendered.
    Raises `TrainingFailed` (bad_dataset).
    """
    key = _cache_key(dataset, tokenizer, (sequence_length, examples))
    if cache is not None and cache.is_file():
        tensors, header = load_tensors(cache)
        if header.get("key") == key:
            arrays: Any = {name: tensor.numpy() for name, tensor in tensors.items()}
            return SftDataset(Sequences(**arrays), json.loads(header["counts"]))
    data = encode_rows(
        itertools.islice(read_rows(dataset), examples), tokenizer, sequence_length=sequence_length, progress=progress
    )
    if cache is not None:
        s = data.sequences
        arrays = {"tokens": s.tokens, "weights": s.weights, "cu_seqlens": s.cu_seqlens}
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        save_tensors(cache, tensors, header={"key": key, "counts": json.dumps(data.counts)})
    return data


def encode_rows(
    rows: Iterable[TrainingRow],
    tokenizer: Any,
    *,
    sequence_length: int,
    progress: Callable[[int], None] | None = None,
) -> SftDataset:
    """Render and tokenise chat rows.

    A row is one sequence; where the template renders earlier turns anew (Qwen3 strips their `<think>` blocks), each
    assistant turn that no longer continues the text before it opens another, so that every turn is trained in the
    context that a server would give it. Raises `TrainingFailed` (bad_dataset) for a row with an image, for one that the
    template cannot render, and when nothing at all is trained.
    """
    template = ChatTemplate(tokenizer)
    per_sequence: list[list[_Piece]] = []
    count = {"rows": 0, "sequences": 0, "truncated_rows": 0, "truncated_tokens": 0, "untrained_rows": 0}
    for row in rows:
        count["rows"] += 1
        if images_in(row.messages):
            raise TrainingFailed(
                "bad_dataset",
                f"row {count['rows']} shows an image, and the trainer renders text; expected rows of text; "
                "upload the conversations without their images",
            )
        try:
            rendered = _render(row, template)
        except UserError as error:
            raise TrainingFailed("bad_dataset", f"row {count['rows']}: {error}") from error
        count["untrained_rows"] += not rendered
        per_sequence += rendered
        if progress is not None:
            progress(count["rows"])
    texts = [piece.text for pieces in per_sequence for piece in pieces]
    encoded = iter(template.encode_all(texts))
    tokens: list[np.ndarray[Any, Any]] = []
    weights: list[np.ndarray[Any, Any]] = []
    for pieces in per_sequence:
        ids, weight = _tokens(pieces, [next(encoded) for _ in pieces], tokenizer.eos_token_id)
        count["truncated_rows"] += len(ids) > sequence_length
        count["truncated_tokens"] += max(0, len(ids) - sequence_length)
        ids, weight = ids[:sequence_length], weight[:sequence_length]
        if not weight[1:].any():
            count["untrained_rows"] += 1
            continue
        tokens.append(ids)
        weights.append(weight)
    if not tokens:
        raise TrainingFailed(
            "bad_dataset",
            f"none of the {count['rows']} rows has an assistant token to train within {sequence_length} tokens; "
            "expected assistant messages with weight above 0; raise sequence_length if rows are long",
        )
    count["sequences"] = len(tokens)
    return SftDataset(
        Sequences(
            tokens=np.concatenate(tokens),
            weights=np.concatenate(weights),
            cu_seqlens=np.cumsum([0, *(len(t) for t in tokens)], dtype=np.int64),
        ),
        {name: float(value) for name, value in count.items()},
    )


def _render(row: TrainingRow, template: ChatTemplate) -> list[list[_Piece]]:
    """The sequences of a row, as alternating context and completion; those without a trained turn are left out."""
    prepared = template.prepare(row.conversation())
    sequences: list[list[_Piece]] = []
    so_far = ""
    for i, message in enumerate(row.messages):
        if message.role != "assistant":
            continue
        prompt, whole = template.assistant_turn(prepared, i)
        if not (so_far and prompt.startswith(so_far)):
            so_far = ""
            sequences.append([])
        sequences[-1] += [
            _Piece(prompt[len(so_far) :], 0.0),
            _Piece(whole[len(prompt) :], 1.0 if message.weight is None else float(message.weight)),
        ]
        so_far = whole
    return [pieces for pieces in sequences if any(p.weight for p in pieces)]


def _tokens(pieces: list[_Piece], encoded: list[list[int]], eos_id: int) -> tuple[Any, Any]:
    """ids (int32) and weights (float32) of one sequence. Of a completion, what follows its last end-of-turn token is
    the template's, not the model's."""
    ids: list[int] = []
    weights: list[float] = []
    for piece, piece_ids in zip(pieces, encoded, strict=True):
        own = len(piece_ids)
        if piece.weight and eos_id in piece_ids:
            own -= piece_ids[::-1].index(eos_id)
        ids += piece_ids
        weights += [piece.weight] * own + [0.0] * (len(piece_ids) - own)
    return np.asarray(ids, dtype=np.int32), np.asarray(weights, dtype=np.float32)


def _cache_key(dataset: Path, tokenizer: Any, options: tuple[int, int | None]) -> str:
    digest = hashlib.sha256(f"{_FORMAT}\n{options}\n{tokenizer.chat_template}\n".encode())
    digest.update(tokenizer.backend_tokenizer.to_str().encode())
    with dataset.open("rb") as file:
        digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
