"""Files: upload, look at, download."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import PurePosixPath
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from starlette.responses import Response, StreamingResponse

from synth.blobs import BlobStore
from synth.events import BlobRef, FileUploaded
from synth.gateway.auth import Caller
from synth.gateway.event_log import last_of
from synth.gateway.failures import not_found
from synth.gateway.openapi import json_response, listing, many, one
from synth.gateway.projection import File, FileRow
from synth.gateway.state import Gateway, Parts
from synth.gateway.upload import UPLOADS, Received, bad_upload, receive
from synth.ids import OrgId, file_id_for

router = APIRouter(prefix="/api/files", tags=["files"])

_PROJECTED_WITHIN_S = 10.0
_FORM = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["file"],
                "properties": {"purpose": {"type": "string"}, "file": {"type": "string", "format": "binary"}},
            }
        }
    },
}


@router.post(
    "",
    status_code=201,
    summary="Upload a file",
    responses=one(File, status=201) | one(File, "These bytes are here already"),
    openapi_extra={"requestBody": _FORM},
)
async def upload(request: Request, caller: Caller, parts: Parts) -> Response:
    """Upload a file (multipart `purpose` and `file`). The same bytes again are the same file (200)."""
    limit = parts.settings.max_upload_bytes
    if int(request.headers.get("content-length", "0")) > limit:
        raise bad_upload(f"the body is larger than {limit:,} bytes", status=413, fix="split the file into several")
    content_type = request.headers.get("content-type", "")
    received = await receive(request.stream(), content_type, parts.settings.work_dir / UPLOADS, limit=limit)
    try:
        if received.size == 0:
            raise bad_upload(f"the file {received.name!r} is empty")
        return await _kept(parts, caller.org, received)
    finally:
        received.path.unlink(missing_ok=True)


@router.get("", summary="List files, newest first", responses=many(File))
async def list_files(
    caller: Caller,
    parts: Parts,
    limit: Annotated[int, Query(ge=1, le=200)] = 20,
    after: Annotated[str | None, Query(description="Go on after this file id")] = None,
) -> Response:
    """Your organisation's files."""
    before = _find(parts, caller.org, after).created_seq if after else None
    rows = parts.model.files(caller.org, limit=limit + 1, before=before)
    return listing([row.file for row in rows[:limit]], more=len(rows) > limit)


@router.get("/{file_id}", summary="One file", responses=one(File))
async def get_file(file_id: str, caller: Caller, parts: Parts) -> Response:
    """Its status (`processing`, `ready`, `failed`), its counts, and the first lines that are wrong."""
    return json_response(_find(parts, caller.org, file_id).file)


@router.get("/{file_id}/content", summary="A file's bytes")
async def content(file_id: str, caller: Caller, parts: Parts) -> Response:
    """The bytes as they were uploaded."""
    row = _find(parts, caller.org, file_id)
    return await download(parts.blobs, row.blob, row.file.filename)


async def download(blobs: BlobStore, ref: BlobRef, name: str) -> Response:
    """A blob as a response. Raises `BlobMissing` before the first byte is sent."""
    pieces = blobs.stream(ref)
    first = await anext(pieces, b"")

    async def body() -> AsyncIterator[bytes]:
        yield first
        async for piece in pieces:
            yield piece

    disposition = f"attachment; filename*=UTF-8''{quote(PurePosixPath(name).name, safe='')}"
    headers = {"Content-Length": str(ref.size), "Content-Disposition": disposition, "ETag": f'"{ref.sha256}"'}
    return StreamingResponse(body(), media_type="application/octet-stream", headers=headers)


async def _kept(parts: Gateway, org: OrgId, received: Received) -> Response:
    id = file_id_for(org, received.sha256)
    known = parts.model.file(org, id)
    if known is not None:
        return json_response(known.file)
    earlier = await last_of(parts.bus, FileUploaded, org, id)
    if earlier is None:
        blob = await parts.blobs.put_file(f"orgs/{org}/files/{received.sha256}", received.path, move=True)
        event = FileUploaded(name=received.name, purpose=received.purpose, blob=blob)
        seq = await parts.publisher.once(event, org=org, key=id, id=received.sha256)
    else:
        seq = earlier.seq
    await parts.hub.reached(seq, timeout=_PROJECTED_WITHIN_S)
    return json_response(_find(parts, org, id).file, 201 if earlier is None else 200)


def _find(parts: Gateway, org: str, id: str) -> FileRow:
    row = parts.model.file(org, id)
    if row is None:
        raise not_found("file", id)
    return row
