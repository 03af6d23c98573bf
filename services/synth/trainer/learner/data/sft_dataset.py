"""Chat rows into token sequences, with a weight for each token: the assistant's own words, and nothing else.

Invariants: the ids before an assistant turn are exactly those that a server would prompt with (prompt and completion
are tokenised apart, as they are when sampling); the end-of-turn token is trained, what the template writes after it
is not; what is cut or dropped is counted.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from synth.chat.messages import TrainingRow, images_in
from synth.chat.template import ChatTemplate
from synth.errors import UserError
from synth.images.prompt_image import PromptImage
from synth.trainer.errors import TrainingFailed
from synth.trainer.learner.data.packing import Sequences, sequences_from_tensors, sequences_to_tensors
from synth.trainer.learner.data.sft_images import SftImages
from synth.weights.policy_file import load_tensors, save_tensors

log = logging.getLogger(__name__)

_FORMAT = "sft-4"
#: In the counts of a model that sees alone.
IMAGE_COUNTS = ("images_trimmed", "images_truncated")
_decoder = msgspec.json.Decoder(TrainingRow)


@dataclass(frozen=True)
class SftDataset:
    """Tokenised rows.

    counts: rows, sequences, truncated_rows, truncated_tokens, untrained_rows; for a model that sees, images_trimmed
    (more than a message may have) and images_truncated (beyond the length of a sequence).
    """

    sequences: Sequences
    counts: dict[str, float]


@dataclass(frozen=True)
class _Piece:
    """A part of a rendered text (see `synth.chat.template`), and the weight of its tokens (0: context)."""

    text: str
    weight: float


@dataclass(frozen=True)
class _Rendered:
    """A sequence as text, and the images that it shows."""

    pieces: list[_Piece]
    images: tuple[PromptImage, ...]


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
    images: SftImages | None = None,
    cache: Path | None = None,
    progress: Callable[[int], None] | None = None,
) -> SftDataset:
    """Tokenise a JSONL file once: a cache written for the same file, tokenizer and template is read instead.

    examples: only the first rows. images: for a model that sees. progress: called with the number of rows rendered.
    Raises `TrainingFailed` (bad_dataset, bad_image).
    """
    seen = None if images is None else (images.loader.fingerprint, images.max_per_message)
    key = _cache_key(dataset, tokenizer, (sequence_length, examples, seen))
    if cache is not None and cache.is_file():
        tensors, header = load_tensors(cache)
        if header.get("key") == key:
            return SftDataset(sequences_from_tensors(tensors), json.loads(header["counts"]))
    data = encode_rows(
        itertools.islice(read_rows(dataset), examples),
        tokenizer,
        sequence_length=sequence_length,
        images=images,
        progress=progress,
    )
    if cache is not None:
        tensors = sequences_to_tensors(data.sequences)
        save_tensors(cache, tensors, header={"key": key, "counts": json.dumps(data.counts)})
    return data


def encode_rows(
    rows: Iterable[TrainingRow],
    tokenizer: Any,
    *,
    sequence_length: int,
    images: SftImages | None = None,
    progress: Callable[[int], None] | None = None,
) -> SftDataset:
    """Render and tokenise chat rows.

    A row is one sequence; where the template renders earlier turns anew (Qwen3 strips their `<think>` blocks), each
    assistant turn that no longer continues the text before it opens another, so that every turn is trained in the
    context that a server would give it. A sequence that is too long ends before the first image that would be cut.
    images: for a model that sees. Raises `TrainingFailed`: bad_dataset for a row that the template cannot render, for
    an image without `images`, and when nothing at all is trained; bad_image.
    """
    template = ChatTemplate(tokenizer, sees=images is not None)
    per_sequence: list[_Rendered] = []
    count = {"rows": 0, "sequences": 0, "truncated_rows": 0, "truncated_tokens": 0, "untrained_rows": 0}
    count |= {} if images is None else dict.fromkeys(IMAGE_COUNTS, 0)
    for row in rows:
        count["rows"] += 1
        shown = images_in(row.messages)
        if shown and images is None:
            raise TrainingFailed(
                "bad_dataset",
                f"row {count['rows']} shows an image, and the model sees none; expected rows of text, or a vision "
                "model; upload the conversations without their images",
            )
        if shown and images is not None:
            row, trimmed = images.trim(row)
            count["images_trimmed"] += trimmed
            if trimmed:
                log.debug("row %d: %d images more than a message may have are left out", count["rows"], trimmed)
        try:
            rendered = _render(row, template, images)
        except UserError as error:
            raise TrainingFailed("bad_dataset", f"row {count['rows']}: {error}") from error
        count["untrained_rows"] += not rendered
        per_sequence += rendered
        if progress is not None:
            progress(count["rows"])
    texts = [piece.text for rendered in per_sequence for piece in rendered.pieces]
    encoded = iter(template.encode_all(texts))
    tokens: list[np.ndarray[Any, Any]] = []
    weights: list[np.ndarray[Any, Any]] = []
    kept_images: list[tuple[PromptImage, ...]] = []
    for rendered in per_sequence:
        ids, weight = _tokens(rendered.pieces, [next(encoded) for _ in rendered.pieces], tokenizer.eos_token_id)
        kept = rendered.images
        length = min(len(ids), sequence_length)
        if images is not None:
            try:
                ids, weight = images.expand(ids, weight, kept)
            except UserError as error:
                raise TrainingFailed("bad_dataset", str(error)) from error
            length, kept = images.whole_within(min(len(ids), sequence_length), ids, kept)
            count["images_truncated"] += len(rendered.images) - len(kept)
        count["truncated_rows"] += len(ids) > length
        count["truncated_tokens"] += len(ids) - length
        ids, weight = ids[:length], weight[:length]
        if not weight[1:].any():
            count["untrained_rows"] += 1
            continue
        tokens.append(ids)
        weights.append(weight)
        kept_images.append(kept)
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
            images=tuple(kept_images) if any(kept_images) else (),
            banned=() if images is None else images.loader.banned,
        ),
        {name: float(value) for name, value in count.items()},
    )


def _render(row: TrainingRow, template: ChatTemplate, images: SftImages | None) -> list[_Rendered]:
    """The sequences of a row, as alternating context and completion; those without a trained turn are left out."""
    prepared = template.prepare(row.conversation())
    sequences: list[list[_Piece]] = []
    shown: list[tuple[PromptImage, ...]] = []
    so_far = ""
    for i, message in enumerate(row.messages):
        if message.role != "assistant":
            continue
        prompt, whole = template.assistant_turn(prepared, i)
        if not (so_far and prompt.startswith(so_far)):
            so_far = ""
            sequences.append([])
            shown.append(())
        sequences[-1] += [
            _Piece(prompt[len(so_far) :], 0.0),
            _Piece(whole[len(prompt) :], 1.0 if message.weight is None else float(message.weight)),
        ]
        so_far = whole
        if images is not None:
            shown[-1] = images.shown_by(row.messages[:i])
    rendered = map(_Rendered, sequences, shown)
    return [sequence for sequence in rendered if any(p.weight for p in sequence.pieces)]


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


def _cache_key(dataset: Path, tokenizer: Any, options: tuple[Any, ...]) -> str:
    digest = hashlib.sha256(f"{_FORMAT}\n{options}\n{tokenizer.chat_template}\n".encode())
    digest.update(tokenizer.backend_tokenizer.to_str().encode())
    with dataset.open("rb") as file:
        digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
