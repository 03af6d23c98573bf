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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from torch import Tensor

from synth.chat.messages import TrainingRow, images_in
from synth.chat.template import ChatTemplate
from synth.chat.turn_end import turn_ends
from synth.errors import UserError
from synth.images.prompt_image import PromptImage
from synth.trainer.errors import TrainingFailed
from synth.trainer.learner.data.packing import Sequences, sequences_from_tensors, sequences_to_tensors
from synth.trainer.learner.data.sft_images import SftImages
from synth.weights.tensor_file import load_tensors, save_tensors

log = logging.getLogger(__name__)

_FORMAT = "sft-4"
#: In the counts of a model that sees alone.
IMAGE_COUNTS = ("images_trimmed", "images_truncated")
_RowT = TypeVar("_RowT", bound=TrainingRow)


@dataclass(frozen=True)
class SftDataset:
    """Tokenised rows.

    counts: rows, sequences, truncated_rows, truncated_tokens, untrained_rows; for a model that sees, images_trimmed
    (more than a message may have) and images_truncated (beyond the length of a sequence).
    """

    sequences: Sequences
    counts: dict[str, float]

    def __len__(self) -> int:
        """How many there are to draw a step's from."""
        return len(self.sequences)


@dataclass(frozen=True)
class _Piece:
    """A part of a rendered text (see `synth.chat.template`), and the weight of its tokens (0: context)."""

    text: str
    weight: float


@dataclass(frozen=True)
class RenderedSequence:
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


def read_rows(dataset: Path, row: type[_RowT]) -> Iterator[_RowT]:
    """The rows of a JSONL file. Raises `TrainingFailed` (bad_dataset) with the line."""
    decoder = msgspec.json.Decoder(row)
    expected = "messages[]" if row is TrainingRow else "messages[], chosen[] and rejected[]"
    with dataset.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                yield decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise TrainingFailed(
                    "bad_dataset", f"{dataset.name}:{number}: not a row to train on ({error!r}); expected {expected}"
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

    def encode() -> tuple[dict[str, Tensor], dict[str, float]]:
        rows = itertools.islice(read_rows(dataset, TrainingRow), examples)
        data = encode_rows(rows, tokenizer, sequence_length=sequence_length, images=images, progress=progress)
        return sequences_to_tensors(data.sequences), data.counts

    key = cache_key(_FORMAT, dataset, tokenizer, (sequence_length, examples), images)
    tensors, counts = read_or_encode(cache, key, encode)
    return SftDataset(sequences_from_tensors(tensors), counts)


def read_or_encode(
    cache: Path | None, key: str, encode: Callable[[], tuple[dict[str, Tensor], dict[str, float]]]
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """The tensors and counts of a tokenised file: of the cache where it was written under this key, else made anew."""
    if cache is not None and cache.is_file():
        tensors, header = load_tensors(cache)
        if header.get("key") == key:
            return tensors, json.loads(header["counts"])
    tensors, counts = encode()
    if cache is not None:
        save_tensors(cache, tensors, header={"key": key, "counts": json.dumps(counts)})
    return tensors, counts


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
    encoder = RowEncoder(tokenizer, sequence_length, images)
    rendered: list[RenderedSequence] = []
    for row in rows:
        encoder.count["rows"] += 1
        of_row = encoder.render(row)
        encoder.count["untrained_rows"] += not of_row
        rendered += of_row
        if progress is not None:
            progress(encoder.count["rows"])
    encoded = encoder.encode(rendered)
    kept = [sequence for sequence in encoded if sequence.is_trained]
    encoder.count["untrained_rows"] += len(encoded) - len(kept)
    if not kept:
        raise encoder.nothing_trained("has an assistant token to train", "assistant messages with weight above 0")
    return SftDataset(encoder.sequences(kept), encoder.counts(len(kept)))


@dataclass(frozen=True)
class EncodedSequence:
    """A sequence as it is trained. ids: int32, weights: float32, one for each token. length: before it was cut."""

    ids: npt.NDArray[np.int32]
    weights: npt.NDArray[np.float32]
    images: tuple[PromptImage, ...]
    length: int

    @property
    def is_trained(self) -> bool:
        """Whether any of its tokens is: its first one is never, as nothing predicts it."""
        return bool(self.weights[1:].any())


class RowEncoder:
    """Renders rows and tokenises them, and counts what is cut or left out. count: see `SftDataset.counts`."""

    def __init__(self, tokenizer: Any, sequence_length: int, images: SftImages | None) -> None:
        self.count = {"rows": 0, "truncated_rows": 0, "truncated_tokens": 0, "untrained_rows": 0}
        self.count |= {} if images is None else dict.fromkeys(IMAGE_COUNTS, 0)
        self._template = ChatTemplate(tokenizer, sees=images is not None)
        self._ends = turn_ends(tokenizer)
        self._sequence_length = sequence_length
        self._images = images

    def render(self, row: TrainingRow) -> list[RenderedSequence]:
        """The sequences of the row that was counted last. Raises `TrainingFailed` (bad_dataset, bad_image)."""
        images, number = self._images, self.count["rows"]
        shown = images_in(row.messages)
        if shown and images is None:
            raise TrainingFailed(
                "bad_dataset",
                f"row {number} shows an image, and the model sees none; expected rows of text, or a vision "
                "model; upload the conversations without their images",
            )
        if shown and images is not None:
            row, trimmed = images.trim(row)
            self.count["images_trimmed"] += trimmed
            if trimmed:
                log.debug("row %d: %d images more than a message may have are left out", number, trimmed)
        try:
            return _render(row, self._template, images)
        except UserError as error:
            raise TrainingFailed("bad_dataset", f"row {number}: {error}") from error

    def encode(self, per_sequence: list[RenderedSequence]) -> list[EncodedSequence]:
        """Tokenise, and cut what is too long. Raises `TrainingFailed` (bad_dataset)."""
        texts = [piece.text for rendered in per_sequence for piece in rendered.pieces]
        encoded = iter(self._template.encode_all(texts))
        images = self._images
        found: list[EncodedSequence] = []
        for rendered in per_sequence:
            ids, weights = _tokens(rendered.pieces, [next(encoded) for _ in rendered.pieces], self._ends)
            kept = rendered.images
            length = min(len(ids), self._sequence_length)
            if images is not None:
                try:
                    ids, weights = images.expand(ids, weights, kept)
                except UserError as error:
                    raise TrainingFailed("bad_dataset", str(error)) from error
                length, kept = images.whole_within(min(len(ids), self._sequence_length), ids, kept)
                self.count["images_truncated"] += len(rendered.images) - len(kept)
            self.count["truncated_rows"] += len(ids) > length
            self.count["truncated_tokens"] += len(ids) - length
            found.append(EncodedSequence(ids[:length], weights[:length], kept, len(ids)))
        return found

    def sequences(self, kept: list[EncodedSequence]) -> Sequences:
        """These sequences end to end."""
        shown = tuple(sequence.images for sequence in kept)
        return Sequences(
            tokens=np.concatenate([sequence.ids for sequence in kept]),
            weights=np.concatenate([sequence.weights for sequence in kept]),
            cu_seqlens=np.cumsum([0, *(len(sequence.ids) for sequence in kept)], dtype=np.int64),
            images=shown if any(shown) else (),
            banned=() if self._images is None else self._images.loader.banned,
        )

    def counts(self, sequences: int) -> dict[str, float]:
        """All counts. sequences: how many are trained."""
        return {name: float(value) for name, value in (self.count | {"sequences": sequences}).items()}

    def nothing_trained(self, what: str, expected: str) -> TrainingFailed:
        """The error of a file of which no row is trained. what: each row lacks."""
        return TrainingFailed(
            "bad_dataset",
            f"none of the {self.count['rows']} rows {what} within {self._sequence_length} tokens; "
            f"expected {expected}; raise sequence_length if rows are long",
        )


def _render(row: TrainingRow, template: ChatTemplate, images: SftImages | None) -> list[RenderedSequence]:
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
    rendered = map(RenderedSequence, sequences, shown)
    return [sequence for sequence in rendered if any(p.weight for p in sequence.pieces)]


def _tokens(pieces: list[_Piece], encoded: list[list[int]], ends: frozenset[int]) -> tuple[Any, Any]:
    """ids (int32) and weights (float32) of one sequence. Of a completion, what follows its last end-of-turn token is
    the template's, not the model's."""
    ids: list[int] = []
    weights: list[float] = []
    for piece, piece_ids in zip(pieces, encoded, strict=True):
        own = len(piece_ids)
        if piece.weight:
            own -= next((n for n, id in enumerate(reversed(piece_ids)) if id in ends), 0)
        ids += piece_ids
        weights += [piece.weight] * own + [0.0] * (len(piece_ids) - own)
    return np.asarray(ids, dtype=np.int32), np.asarray(weights, dtype=np.float32)


def cache_key(format: str, dataset: Path, tokenizer: Any, options: tuple[Any, ...], images: SftImages | None) -> str:
    """What a tokenised file depends on, as a digest."""
    seen = None if images is None else (images.loader.fingerprint, images.max_per_message)
    digest = hashlib.sha256(f"{format}\n{(*options, seen)}\n{tokenizer.chat_template}\n".encode())
    digest.update(tokenizer.backend_tokenizer.to_str().encode())
    with dataset.open("rb") as file:
        digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
