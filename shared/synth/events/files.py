"""The events of an uploaded file."""

from __future__ import annotations

import msgspec

from synth.events.catalogue import Event, Reading, Role, event
from synth.events.references import BlobRef


@event("file.uploaded", by=Role.GATEWAY, reads={Role.FILES: Reading.QUEUE})
class FileUploaded(Event, frozen=True, kw_only=True):
    """A file's bytes are stored. name is metadata, never a path."""

    name: str
    purpose: str
    blob: BlobRef


@event("file.ready", by=Role.FILES, reads={Role.VERIFIER: Reading.FOLLOW})
class FileReady(Event, frozen=True, kw_only=True):
    """The file can be trained on. rows: one per conversation, or per pair; characters: of all message text.

    tokens: an estimate from a sample. lengths[i]: conversations of 2^i up to 2^(i+1) characters. images: the number in
    all rows; a job sets how many of a message are trained. pairs: rows that are preference pairs: all or none. prompts:
    rows whose last message is the user's. unanswered: rows without any message of an assistant. converted: how many
    rows came in another shape than the trained one, by that shape; for Parquet all rows. annotations: in how many rows
    a column stands that no model gets, by its name; for prompts also the further fields, which a grader may refer to.
    rewritten: the rows as they are trained on, if they differ from the uploaded bytes (other shapes, images that are
    now blobs); else None.
    """

    rows: int
    messages: int
    characters: int
    tokens: int = 0
    lengths: list[int] = msgspec.field(default_factory=list[int])
    images: int = 0
    pairs: int = 0
    prompts: int = 0
    unanswered: int = 0
    converted: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    annotations: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    rewritten: BlobRef | None = None


class LineProblem(msgspec.Struct, frozen=True, kw_only=True):
    """The fault of one line of a file. path: the place inside it, as `$.messages[0].role`."""

    line: int
    path: str
    reason: str


@event("file.rejected", by=Role.FILES, reads={Role.VERIFIER: Reading.FOLLOW})
class FileRejected(Event, frozen=True, kw_only=True):
    """The file cannot be trained on: the first problems, and how many lines have one.

    unchecked: it could not be checked, and may well be good: its dead letter can be retried, for another verdict.
    """

    bad_lines: int
    problems: list[LineProblem]
    unchecked: bool = False


@event("file.deleted", by=Role.GATEWAY, reads={Role.VERIFIER: Reading.FOLLOW})
class FileDeleted(Event, frozen=True, kw_only=True):
    """The file is deleted, except for jobs that were verified before; its bytes are deleted when those have ended.

    uploaded_seq: the upload that this ends. The same bytes uploaded afterwards are the same id again, and another file.
    """

    requested_by: str
    uploaded_seq: int
