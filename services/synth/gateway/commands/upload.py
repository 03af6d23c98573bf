"""The one way in for a file, whichever API it comes through: received, stored as a blob, announced once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fastapi import Request

from synth.errors import Transient
from synth.events import FileDeleted, FileRejected, FileUploaded
from synth.gateway.commands.multipart import UPLOADS, Received, bad_upload, receive
from synth.gateway.read_model.event_log import last_of
from synth.gateway.read_model.projection import FileRow
from synth.ids import OrgId, file_id_for

if TYPE_CHECKING:
    from synth.gateway.deps import Gateway

_PROJECTED_WITHIN_S = 10.0


async def take_file(
    request: Request, parts: Gateway, org: OrgId, *, check: Callable[[Received], None] = lambda _: None
) -> tuple[FileRow, bool]:
    """Receive a multipart form's file; returns it, and whether its bytes are new here. Raises a 400 or 413.

    check: raises on a form that is not to be kept.
    """
    limit = parts.settings.max_upload_bytes
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > limit:
        raise bad_upload(f"the body is larger than {limit:,} bytes", status=413, fix="split the file into several")
    content_type = request.headers.get("content-type", "")
    received = await receive(request.stream(), content_type, parts.settings.work_dir / UPLOADS, limit=limit)
    try:
        if received.size == 0:
            raise bad_upload(f"the file {received.name!r} is empty")
        check(received)
        return await _kept(parts, org, received)
    finally:
        received.path.unlink(missing_ok=True)


async def _kept(parts: Gateway, org: OrgId, received: Received) -> tuple[FileRow, bool]:
    id = file_id_for(org, received.sha256)
    # Asked of the log, not of the read model: another gateway may have deleted it a moment ago.
    earlier = await last_of(parts.bus, FileUploaded, org, id)
    deleted = await last_of(parts.bus, FileDeleted, org, id)
    ended = deleted.seq if deleted else 0
    if earlier is not None and earlier.seq > ended:
        rejected = await last_of(parts.bus, FileRejected, org, id)
        if rejected is not None and rejected.seq > earlier.seq:
            # Its user wants it looked at again: an image that could not be fetched may be there this time.
            again = FileDeleted(requested_by="", uploaded_seq=earlier.seq)
            ended = await parts.publisher.once(again, org=org, key=id, id=str(earlier.seq))
    new = earlier is None or earlier.seq < ended
    if new:
        # Each life of a file has a blob of its own, so that removing the last one's cannot take this one's.
        name = f"{received.sha256}.{ended}" if ended else received.sha256
        blob = await parts.blobs.put_file(f"orgs/{org}/files/{name}", received.path, move=True, sha256=received.sha256)
        event = FileUploaded(name=received.name, purpose=received.purpose, blob=blob)
        seq = await parts.publisher.once(event, org=org, key=id, id=name)
    else:
        assert earlier is not None
        seq = earlier.seq
    await parts.hub.reached(seq, timeout=_PROJECTED_WITHIN_S)
    row = parts.model.file(org, id)
    if row is None:
        raise Transient(f"{id} was deleted while it was uploaded; upload it again")
    return row, new
