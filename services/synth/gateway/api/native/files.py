"""Routes that upload, show, download and delete files."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import PurePosixPath
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from starlette.responses import Response, StreamingResponse

from synth.api.schemas import Deleted, File, Job
from synth.blobs import BlobStore
from synth.events import BlobRef
from synth.gateway.api.job_lists import find_jobs
from synth.gateway.api.openapi import json_response, list_response, returns, returns_list
from synth.gateway.api.parameters import PageLimit
from synth.gateway.auth import CurrentKey
from synth.gateway.commands.delete import delete_file
from synth.gateway.commands.upload import upload_file
from synth.gateway.deps import GatewayDep
from synth.gateway.read_model.filters import JobFilter

router = APIRouter(tags=["files"])


def form_of_upload(purpose: dict[str, str], *, required: list[str]) -> dict[str, Any]:
    """Describe the form of a route that takes a file. purpose: the schema of that field."""
    properties = {"purpose": purpose, "file": {"type": "string", "format": "binary"}}
    schema = {"type": "object", "required": required, "properties": properties}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}


_After = Annotated[str | None, Query(description="Go on after this id")]


@router.post(
    "/files",
    status_code=201,
    summary="Upload a file",
    responses=returns(File, status=201) | returns(File, "These bytes are here already"),
    openapi_extra=form_of_upload({"type": "string"}, required=["file"]),
)
@router.post("/learning/files", include_in_schema=False)
async def upload(request: Request, caller: CurrentKey, gateway: GatewayDep) -> Response:
    """Upload a file (multipart `purpose` and `file`). The same bytes again are the same file (200)."""
    row, new = await upload_file(request, gateway, caller.org)
    return json_response(row.file, 201 if new else 200)


@router.get("/files", summary="List files, newest first", responses=returns_list(File))
async def list_files(
    caller: CurrentKey, gateway: GatewayDep, purpose: str | None = None, limit: PageLimit = 20, after: _After = None
) -> Response:
    """List your organisation's files."""
    before = (await gateway.file(caller.org, after)).created_seq if after else None
    rows = gateway.read_model.files(caller.org, limit=limit + 1, purpose=purpose, before=before)
    return list_response([row.file for row in rows[:limit]], more=len(rows) > limit)


@router.get("/files/{file_id}", summary="One file", responses=returns(File))
async def get_file(file_id: str, caller: CurrentKey, gateway: GatewayDep) -> Response:
    """Return a file's status (`processing`, `ready`, `failed`), its counts, and its first invalid lines."""
    return json_response((await gateway.file(caller.org, file_id)).file)


@router.delete("/files/{file_id}", summary="Delete a file", responses=returns(Deleted))
async def delete(file_id: str, caller: CurrentKey, gateway: GatewayDep) -> Response:
    """Delete a file at once; its bytes are removed when the jobs that were verified with it have ended.

    A new job that names the file is refused.
    """
    await delete_file(gateway, caller, file_id)
    return json_response(Deleted(id=file_id, object="file"))


@router.get("/files/{file_id}/jobs", summary="The jobs that name a file, newest first", responses=returns_list(Job))
async def jobs_of_file(
    file_id: str, caller: CurrentKey, gateway: GatewayDep, limit: PageLimit = 20, after: _After = None
) -> Response:
    """List the jobs that train or validate on a file."""
    await gateway.file(caller.org, file_id)
    rows, more = await find_jobs(gateway, caller.org, limit=limit, wanted=JobFilter(uses=[file_id]), after=after)
    return list_response([gateway.queue.show(row) for row in rows], more=more)


@router.get("/files/{file_id}/content", summary="A file's bytes")
async def content(file_id: str, caller: CurrentKey, gateway: GatewayDep) -> Response:
    """Return the bytes as they were uploaded."""
    row = await gateway.file(caller.org, file_id)
    return await blob_response(gateway.blobs, row.blob, row.file.filename)


async def blob_response(blobs: BlobStore, ref: BlobRef, name: str) -> Response:
    """Return a response that streams a blob; if the blob is damaged, the response lacks the end.

    Raises `BlobMissing`, and `BlobCorrupt` for a small one, before the first byte is sent.
    """
    pieces = blobs.stream(ref)
    first = await anext(pieces, b"")

    async def body() -> AsyncIterator[bytes]:
        yield first
        async for piece in pieces:
            yield piece

    disposition = f"attachment; filename*=UTF-8''{quote(PurePosixPath(name).name, safe='')}"
    headers = {"Content-Length": str(ref.size), "Content-Disposition": disposition, "ETag": f'"{ref.sha256}"'}
    return StreamingResponse(body(), media_type="application/octet-stream", headers=headers)
