"""Encode chat rows as token sequences with a weight for each token: only the assistant's own words are trained.

Invariants: the ids before an assistant turn are exactly the prompt that a server would build (prompt and completion
are tokenised apart, as they are when sampling); the end-of-turn token is trained, any text that the template writes
after it is not; every token that is cut and every row that is dropped is counted.
"""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from synth.chat.messages import TrainingRow, images_in
from synth.chat.template import ChatTemplate
from synth.chat.template_source import TemplateSource
from synth.chat.training_text import Piece, render_row, trim_images
from synth.chat.turn_end import turn_ends
from synth.errors import UserError
from synth.images.prompt_image import PromptImage
from synth.trainer.errors import TrainingFailed
from synth.trainer.learner.data.dataset_file import DatasetFile
from synth.trainer.learner.data.packing import Sequences, SourceT_co
from synth.trainer.learner.data.sft_images import SftImages
from synth.trainer.learner.data.token_cache import TokenCache
from synth.trainer.learner.data.token_chunk import ChunkInfo, TokenChunkWriter, sum_counts
from synth.trainer.learner.data.token_store import StoredSequences
from synth.trainer.learner.data.tokenise import BytesProgress

log = logging.getLogger(__name__)

_FORMAT = "sft-6"
#: Counted only for a model that takes images.
IMAGE_COUNTS = ("images_trimmed", "images_truncated")
#: Characters that are rendered, and then tokenised, at one time.
_BATCH_CHARACTERS = 1 << 20
_UnitT = TypeVar("_UnitT")


@dataclass(frozen=True)
class SftDataset(Generic[SourceT_co]):
    """Tokenised rows: in memory, or on the disk.

    counts: rows, sequences, truncated_rows, truncated_tokens, untrained_rows; for a model that sees, images_trimmed
    (more than a message may have) and images_truncated (beyond the length of a sequence).
    """

    sequences: SourceT_co
    counts: dict[str, float]

    def __len__(self) -> int:
        """Return the number of rows from which a step's are drawn."""
        return len(self.sequences)


@dataclass(frozen=True)
class TextSequence:
    """A rendered sequence, and the images that it shows."""

    pieces: list[Piece]
    images: tuple[PromptImage, ...]


def load_tokenizer(model_dir: Path) -> Any:
    """Return the tokenizer and chat template of a model folder. Raises `TrainingFailed` (bad_model)."""
    from transformers.models.auto.tokenization_auto import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(model_dir), local_files_only=True)
    except (OSError, ValueError) as error:
        raise TrainingFailed("bad_model", f"{model_dir.name} has no tokenizer that loads: {error}") from error
    if not tokenizer.chat_template:
        raise TrainingFailed("bad_model", f"{model_dir.name} has no chat template; SFT renders messages with one")
    return tokenizer


def encode_file(
    dataset: DatasetFile,
    tokenizer: Any,
    *,
    sequence_length: int,
    cache: TokenCache,
    images: SftImages | None = None,
    day: date | None = None,
    makes: bool = True,
    progress: BytesProgress = lambda done, of: None,
) -> SftDataset[StoredSequences]:
    """Tokenise a JSONL file once: chunks in the cache for the same file, tokenizer and template are used again.

    images: for a model that takes images. day: the date that the template is given, today by default. makes: whether
    this process makes the missing chunks; False if another process has made them.
    progress: called with the bytes tokenised so far and in all. Raises `TrainingFailed` (bad_dataset, bad_image,
    disk_full, tokenise_crashed).
    """

    def make(begin: int, end: int, path: Path, report: Callable[[int], None]) -> ChunkInfo:
        before = functools.partial(dataset.before, begin)
        encoder = RowEncoder(tokenizer, sequence_length, images, rows_before=lambda: before()[1], day=day)
        rows = dataset.read(TrainingRow, begin, end, report)
        with TokenChunkWriter(path, vocabulary=vocabulary_of(tokenizer)) as chunk:
            for sequence in _encode_batches(rows, encoder):
                chunk.add(sequence.ids, sequence.weights, sequence.images)
            return chunk.finish(begin=begin, end=end, counts=encoder.count)

    day = day or today()
    key = cache_key(_FORMAT, dataset, tokenizer, (sequence_length, cache.chunk_bytes), images, day)
    folder, chunks = dataset.tokens(cache, key, make if makes else None, progress)
    counts = sum_counts(chunks)
    if not counts["sequences"]:
        raise nothing_trained(counts.get("rows", 0), sequence_length, *_NOTHING)
    banned = () if images is None else images.loader.banned
    return SftDataset(StoredSequences(folder, chunks, banned=banned), as_floats(counts))


def encode_rows(
    rows: Iterable[TrainingRow],
    tokenizer: Any,
    *,
    sequence_length: int,
    images: SftImages | None = None,
) -> SftDataset[Sequences]:
    """Render and tokenise chat rows, in memory.

    A row is one sequence. If the template renders earlier turns again (Qwen3 strips their `<think>` blocks), each
    assistant turn that does not continue the text before it starts another sequence, so that every turn is trained in
    the context that a server would give it. A sequence that is too long ends before the first image that would be cut.
    images: for a model that takes images. Raises `TrainingFailed`: bad_dataset for a row that the template cannot
    render, for
    an image without `images`, and when nothing at all is trained; bad_image.
    """
    encoder = RowEncoder(tokenizer, sequence_length, images)
    kept = list(_encode_batches(rows, encoder))
    if not kept:
        raise nothing_trained(encoder.count["rows"], sequence_length, *_NOTHING)
    return SftDataset(encoder.sequences(kept), as_floats(encoder.count | {"sequences": len(kept)}))


#: The error if no row of a file can be trained: what every row lacks, and what was expected.
_NOTHING = ("has an assistant token to train", "assistant messages with weight above 0")


def _encode_batches(rows: Iterable[TrainingRow], encoder: RowEncoder) -> Iterator[EncodedSequence]:
    """Yield the trained sequences of rows, some rows at a time."""
    for batch in encoder.batches(encoder.render(row) for row in encoder.counted(rows)):
        encoder.count["untrained_rows"] += sum(not of_row for of_row in batch)
        for sequence in encoder.encode([sequence for of_row in batch for sequence in of_row]):
            encoder.count["untrained_rows"] += not sequence.is_trained
            if sequence.is_trained:
                yield sequence


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
    """Renders and tokenises rows, and counts the tokens and rows that are left out. count: see `SftDataset.counts`."""

    def __init__(
        self,
        tokenizer: Any,
        sequence_length: int,
        images: SftImages | None,
        *,
        rows_before: Callable[[], int] = lambda: 0,
        day: date | None = None,
    ) -> None:
        """rows_before: how many rows of the dataset come before the first one; called for an error.

        day: the date that the template is given, today by default.
        """
        self.count = {"rows": 0, "truncated_rows": 0, "truncated_tokens": 0, "untrained_rows": 0}
        self.count |= {} if images is None else dict.fromkeys(IMAGE_COUNTS, 0)
        self._template = ChatTemplate(tokenizer, sees=images is not None, day=day or today())
        self._ends = turn_ends(tokenizer)
        self._sequence_length = sequence_length
        self._images = images
        self._rows_before = functools.cache(rows_before)

    def number_of(self, row: int) -> int:
        """Return the number in its dataset of a row that was counted as this one."""
        return self._rows_before() + row

    def counted(self, rows: Iterable[_UnitT]) -> Iterator[_UnitT]:
        """Yield the rows, each counted as it is taken."""
        for row in rows:
            self.count["rows"] += 1
            yield row

    def batches(self, rendered: Iterable[list[TextSequence]], *, sides: int = 1) -> Iterator[list[list[TextSequence]]]:
        """Yield the sequences of rows, some rows at a time: as many as are worth a call of the tokenizer.

        sides: of one row, which stay together.
        """
        batch: list[list[TextSequence]] = []
        characters = 0
        for sequences in rendered:
            batch.append(sequences)
            characters += sum(len(piece.text) for sequence in sequences for piece in sequence.pieces)
            if characters >= _BATCH_CHARACTERS and len(batch) % sides == 0:
                yield batch
                batch, characters = [], 0
        if batch:
            yield batch

    def render(self, row: TrainingRow) -> list[TextSequence]:
        """Return the sequences of the row that was counted last. Raises `TrainingFailed` (bad_dataset, bad_image)."""
        images = self._images

        def number() -> int:
            return self.number_of(self.count["rows"])

        shown = images_in(row.messages)
        if shown and images is None:
            raise TrainingFailed(
                "bad_dataset",
                f"row {number()} shows an image, and the model sees none; expected rows of text, or a vision "
                "model; upload the conversations without their images",
            )
        if shown and images is not None:
            row, trimmed = trim_images(row, images.max_per_message)
            self.count["images_trimmed"] += trimmed
            if trimmed and log.isEnabledFor(logging.DEBUG):
                log.debug("row %d: %d images more than a message may have are left out", number(), trimmed)
        try:
            return [
                TextSequence(s.pieces, () if images is None else images.shown_by(row.messages[: s.context]))
                for s in render_row(row, self._template)
            ]
        except UserError as error:
            raise TrainingFailed("bad_dataset", f"row {number()}: {error}") from error

    def encode(self, per_sequence: list[TextSequence]) -> list[EncodedSequence]:
        """Tokenise sequences, and cut the ones that are too long. Raises `TrainingFailed` (bad_dataset)."""
        texts = [piece.text for rendered in per_sequence for piece in rendered.pieces]
        encoded = iter(self._template.encode_all(texts))
        images = self._images
        sequences: list[EncodedSequence] = []
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
            sequences.append(EncodedSequence(ids[:length], weights[:length], kept, len(ids)))
        return sequences

    def sequences(self, kept: list[EncodedSequence]) -> Sequences:
        """Join these sequences end to end."""
        shown = tuple(sequence.images for sequence in kept)
        return Sequences(
            tokens=np.concatenate([sequence.ids for sequence in kept]),
            weights=np.concatenate([sequence.weights for sequence in kept]),
            cu_seqlens=np.cumsum([0, *(len(sequence.ids) for sequence in kept)], dtype=np.int64),
            images=shown if any(shown) else (),
            banned=() if self._images is None else self._images.loader.banned,
        )


def as_floats(counts: dict[str, int]) -> dict[str, float]:
    """Return the counts as `SftDataset` has them."""
    return {name: float(value) for name, value in counts.items()}


def nothing_trained(rows: int, sequence_length: int, what: str, expected: str) -> TrainingFailed:
    """Return the error of a file without a trained row. what: the part that each row lacks."""
    return TrainingFailed(
        "bad_dataset",
        f"none of the {rows} rows {what} within {sequence_length} tokens; expected {expected}; raise sequence_length "
        "if rows are long",
    )


def vocabulary_of(tokenizer: Any) -> int:
    """Return a number above every id."""
    return max(tokenizer.get_vocab().values()) + 1


def _tokens(pieces: list[Piece], encoded: list[list[int]], ends: frozenset[int]) -> tuple[Any, Any]:
    """Return ids (int32) and weights (float32) of one sequence. In a completion, the text after its last end-of-turn
    token is the template's, not the model's."""
    ids: list[int] = []
    weights: list[float] = []
    for piece, piece_ids in zip(pieces, encoded, strict=True):
        own = len(piece_ids)
        if piece.weight:
            own -= next((n for n, id in enumerate(reversed(piece_ids)) if id in ends), 0)
        ids += piece_ids
        weights += [piece.weight] * own + [0.0] * (len(piece_ids) - own)
    return np.asarray(ids, dtype=np.int32), np.asarray(weights, dtype=np.float32)


def today() -> date:
    """Return the date that a template is given if no job fixes it."""
    return datetime.now(UTC).date()


def cache_key(
    format: str,
    dataset: DatasetFile,
    tokenizer: Any,
    options: tuple[Any, ...],
    images: SftImages | None,
    day: date | None = None,
) -> str:
    """Return a digest of everything that a tokenised file depends on, the date too if the template writes it."""
    seen = None if images is None else (images.loader.fingerprint, images.max_per_message, images.loader.banned)
    template = TemplateSource.of(tokenizer).digest(day or today())
    depends = (format, options, seen, sorted(turn_ends(tokenizer)), dataset.digest(), template)
    digest = hashlib.sha256(repr(depends).encode())
    digest.update(tokenizer.backend_tokenizer.to_str().encode())
    return digest.hexdigest()
