"""Routes that upload, list, show, download and delete files."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response, StreamingResponse

from synth.errors import Problem
from synth.gateway.api.native.files import blob_response, form_of_upload
from synth.gateway.api.openai.results import FILENAME, find_result, result_csv, result_object
from synth.gateway.api.openai.views import FileObject, file_object
from synth.gateway.api.openapi import json_response, returns, returns_list
from synth.gateway.auth import CurrentKey
from synth.gateway.commands.delete import delete_file
from synth.gateway.commands.multipart import ReceivedForm
from synth.gateway.commands.upload import upload_file
from synth.gateway.deps import GatewayDep
from synth.gateway.errors import ApiError

router = APIRouter(tags=["openai"])

_PURPOSE = "fine-tune"
#: Files that are read at a time: other requests are served between two of them.
_ROWS = 200
_FORM = form_of_upload({"const": _PURPOSE}, required=["file", "purpose"])


@router.post("/files", summary="Upload a file", responses=returns(FileObject), openapi_extra=_FORM)
async def upload(request: Request, caller: CurrentKey, gateway: GatewayDep) -> Response:
    """Upload a JSONL of conversations (multipart `purpose` and `file`). The same bytes again are the same file."""
    row, _ = await upload_file(request, gateway, caller.org, check=_check)
    return json_response(file_object(row))


@router.get("/files", summary="List files", responses=returns_list(FileObject))
async def list_files(
    caller: CurrentKey,
    gateway: GatewayDep,
    purpose: str | None = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    after: Annotated[str | None, Query(description="Go on after this file id")] = None,
    order: Annotated[Literal["asc", "desc"], Query(description="By time of upload")] = "desc",
) -> Response:
    """List your organisation's files."""
    cursor = (await gateway.file(caller.org, after)).created_seq if after else None
    files: list[FileObject] = []
    more = True
    while more and len(files) < limit:
        place = {"before": cursor} if order == "desc" else {"after": cursor or 0}
        most = min(_ROWS, limit - len(files))
        rows = gateway.read_model.files(caller.org, limit=most + 1, purpose=purpose, **place)
        files += [file_object(row) for row in rows[:most]]
        more = len(rows) > most
        cursor = rows[most - 1].created_seq if more else None
        await asyncio.sleep(0)
    return page_response(files, more=more)


@router.get("/files/{file_id}", summary="One file", responses=returns(FileObject))
async def get_file(file_id: str, caller: CurrentKey, gateway: GatewayDep) -> Response:
    """Return a file: `processed` if it can be trained on, `error` with `status_details` if lines are invalid."""
    if (row := await find_result(gateway, caller.org, file_id)) is not None:
        return json_response(await result_object(gateway, row))
    return json_response(file_object(await gateway.file(caller.org, file_id)))


@router.get("/files/{file_id}/content", summary="A file's bytes")
async def content(file_id: str, caller: CurrentKey, gateway: GatewayDep) -> Response:
    """Return the bytes as they were uploaded; for a job's result file, the job's metrics as CSV."""
    if (job := await find_result(gateway, caller.org, file_id)) is not None:
        headers = {"Content-Disposition": f"attachment; filename={FILENAME}"}
        return StreamingResponse(result_csv(gateway, job), media_type="text/csv", headers=headers)
    row = await gateway.file(caller.org, file_id)
    return await blob_response(gateway.blobs, row.blob, row.file.filename)


@router.delete("/files/{file_id}", summary="Delete a file")
async def delete(file_id: str, caller: CurrentKey, gateway: GatewayDep) -> Response:
    """Delete a file at once; a job that names it later is refused."""
    if await find_result(gateway, caller.org, file_id) is not None:
        raise _bad_request("file_id", "the file is made of a job's metrics", fix="delete the job")
    await delete_file(gateway, caller, file_id)
    return json_response({"id": file_id, "object": "file", "deleted": True})


def page_response(items: list[Any], *, more: bool) -> Response:
    """Return one page of a list; the SDK continues after the last item's id."""
    first, last = (items[0].id, items[-1].id) if items else (None, None)
    return json_response({"object": "list", "data": items, "first_id": first, "last_id": last, "has_more": more})


def _check(received: ReceivedForm) -> None:
    """Raise a 400 for a purpose other than training, or for an expiry date."""
    if received.purpose != _PURPOSE:
        raise _bad_request("purpose", f"the purpose is {received.purpose[:40]!r}", expected=f'"{_PURPOSE}"')
    if any(name.startswith("expires_after") for name in received.fields):
        raise _bad_request(
            "expires_after", "files do not expire here", fix="leave it out, and delete the file when done"
        )


def _bad_request(param: str, what: str, *, expected: str = "", fix: str = "") -> ApiError:
    problem = Problem(what=what, expected=expected, fix=fix, where=param)
    return ApiError(400, problem.text(), param=param, problems=[problem])
