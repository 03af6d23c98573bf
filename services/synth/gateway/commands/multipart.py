"""The receiver of one file in a multipart body: it uses constant memory, and hashes and writes the file on a thread."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from synth.errors import Problem
from synth.gateway.errors import ApiError

#: The folder that receives uploads, below the process's scratch space.
UPLOADS = "uploads"

_SLICE = 1 << 20
# The fields besides the file are short texts (`purpose`), which are never longer than this.
_FIELD_LIMIT = 64 << 10
# The fields are kept in memory until the form ends.
_MAX_FIELDS = 32
_DEFAULT_NAME = "file.jsonl"


@dataclass(frozen=True)
class ReceivedForm:
    """A file that was received whole. name: metadata, never a path. fields: the other fields, with `purpose`."""

    path: Path
    name: str
    purpose: str
    size: int
    sha256: str
    fields: dict[str, str]


def upload_error(what: str, *, status: int = 400, fix: str = "") -> ApiError:
    """Return the error for an upload that cannot be accepted."""
    problem = Problem(what=what, expected="multipart/form-data with the fields `purpose` and `file`", fix=fix)
    return ApiError(status, problem.text(), type="invalid_request", problems=[problem])


def too_large(limit: int) -> ApiError:
    """Return the error for a body that has more bytes than may be uploaded."""
    fix = "split the file into several, or have the operator raise SYNTH_MAX_UPLOAD_BYTES"
    return upload_error(f"the body is larger than {limit:,} bytes", status=413, fix=fix)


async def receive_form(
    chunks: AsyncIterator[bytes], content_type: str, folder: Path, *, limit: int, check_room: Callable[[], None]
) -> ReceivedForm:
    """Write the body's `file` into `folder`; the caller moves or removes it.

    limit: bytes of the whole body. check_room: called before each piece is written; its exceptions end the upload.
    Raises a 400 for a body that is not such a form, and a 413 for a body that is too large.
    """
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise upload_error(f"the body is {content_type[:80]!r}")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"upload-{uuid.uuid4().hex}"
    try:
        with path.open("wb") as out:
            try:
                form = _Form(boundary, out)
            except FormParserError as error:
                raise upload_error(f"the boundary of the form has {len(boundary)} bytes ({error})") from error
            await _feed_form(form, chunks, limit=limit, check_room=check_room)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return ReceivedForm(
        path=path,
        name=form.filename or _DEFAULT_NAME,
        purpose=form.fields.get("purpose", "fine-tune") or "fine-tune",
        size=form.size,
        sha256=form.digest.hexdigest(),
        fields=form.fields,
    )


async def _feed_form(form: _Form, chunks: AsyncIterator[bytes], *, limit: int, check_room: Callable[[], None]) -> None:
    total, pending = 0, bytearray()
    async for chunk in chunks:
        total += len(chunk)
        if total > limit:
            raise too_large(limit)
        pending += chunk
        if len(pending) >= _SLICE:
            check_room()
            await asyncio.to_thread(form.feed, bytes(pending))
            pending.clear()
    await asyncio.to_thread(form.feed, bytes(pending))
    if not form.complete:
        raise upload_error("the body ends before its last boundary", fix="send the file again")
    if form.filename is None:
        raise upload_error("the form has no `file`")


class _Form:
    """A parser of a form: it writes the file's bytes to `out`, and keeps the small fields in memory."""

    def __init__(self, boundary: bytes, out: BinaryIO) -> None:
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self.size = 0
        self.digest = hashlib.sha256()
        self.complete = False
        self._out = out
        self._header: tuple[bytes, bytes] = (b"", b"")
        self._name: str | None = None
        self._in_file = False
        self._value = b""
        self._parts = 0
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._part_begin,
                "on_header_field": self._header_field,
                "on_header_value": self._header_value,
                "on_header_end": self._header_end,
                "on_part_data": self._part_data,
                "on_part_end": self._part_end,
                "on_end": self._end,
            },
        )

    def feed(self, data: bytes) -> None:
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise upload_error(f"the body is not a form ({error})") from error

    def _part_begin(self) -> None:
        self._parts += 1
        if self._parts > _MAX_FIELDS:
            raise upload_error(f"the form has more than {_MAX_FIELDS} fields")
        self._name, self._in_file, self._value = None, False, b""
        self._header = (b"", b"")

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._header = (self._header[0] + data[start:end], self._header[1])

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._header = (self._header[0], self._header[1] + data[start:end])

    def _header_end(self) -> None:
        (field, value), self._header = self._header, (b"", b"")
        if field.lower() != b"content-disposition":
            return
        _, options = parse_options_header(value)
        self._name = options.get(b"name", b"").decode(errors="replace")
        self._in_file = self._name == "file"
        if self._in_file:
            if self.filename is not None:
                raise upload_error("the form has more than one `file`", fix="upload them one by one")
            self.filename = options.get(b"filename", b"").decode(errors="replace")[:255] or _DEFAULT_NAME

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        piece = memoryview(data)[start:end]
        if self._in_file:
            self.digest.update(piece)
            self._out.write(piece)
            self.size += len(piece)
        elif len(self._value) + len(piece) > _FIELD_LIMIT:
            raise upload_error(f"the field {self._name!r} is longer than {_FIELD_LIMIT} bytes")
        else:
            self._value += piece

    def _part_end(self) -> None:
        if self._name and not self._in_file:
            self.fields[self._name] = self._value.decode(errors="replace")

    def _end(self) -> None:
        self.complete = True
