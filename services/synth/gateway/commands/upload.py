"""The single command that uploads a file, for every API: received, stored as a blob, and announced once."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from fastapi import Request

from synth.errors import Transient
from synth.events import FileDeleted, FileRejected, FileUploaded
from synth.gateway.commands.multipart import UPLOADS, ReceivedForm, receive_form, too_large, upload_error
from synth.gateway.commands.quotas import check_file_bytes, check_files_pending, log_room
from synth.gateway.deps import Gateway
from synth.gateway.errors import unavailable
from synth.gateway.read_model.event_log import read_last
from synth.gateway.read_model.projection import FileRow
from synth.http_server.body import declared_size
from synth.ids import OrgId, file_id_for
from synth.runtime import logs

log = logs.get("upload")

#: The delay after a disk error, which an operator must fix.
_DISK_RETRY_S = 15

#: The approximate size of one file's events: its upload, its check and its deletion.
_EVENT_BYTES = 8 << 10


async def upload_file(
    request: Request, gateway: Gateway, org: OrgId, *, check: Callable[[ReceivedForm], None] = lambda _: None
) -> tuple[FileRow, bool]:
    """Receive a multipart form's file; return it, and whether its bytes are new here.

    check: raises for a form that must be refused. Raises a 400, a 413, a 429, or a 503 if there is no room or the disk
    has an error.
    """
    with _disk_errors_are_503():
        return await _upload(request, gateway, org, check)


@contextmanager
def _disk_errors_are_503() -> Generator[None]:
    try:
        yield
    except (ConnectionError, TimeoutError):
        raise  # an error of the bus
    except OSError as error:
        log.error("an upload cannot be stored", error=repr(error))
        what = f"the cluster's disk cannot store the file ({error.strerror})"
        raise unavailable(f"{what}; send it again later", retry_after=_DISK_RETRY_S) from error


async def _upload(
    request: Request, gateway: Gateway, org: OrgId, check: Callable[[ReceivedForm], None]
) -> tuple[FileRow, bool]:
    limit = gateway.settings.max_upload_bytes
    declared = declared_size(request)
    if declared > limit:
        raise too_large(limit)
    gateway.capacity.check(declared)
    check_file_bytes(gateway, org, declared)
    check_files_pending(gateway, org)
    with gateway.admission.upload(org), log_room(gateway, org, _EVENT_BYTES):
        return await _receive(request, gateway, org, limit, check)


async def _receive(
    request: Request, gateway: Gateway, org: OrgId, limit: int, check: Callable[[ReceivedForm], None]
) -> tuple[FileRow, bool]:
    content_type = request.headers.get("content-type", "")
    folder = gateway.settings.work_dir / UPLOADS
    # Check the room during the upload: a body may lack its length, and many bodies arrive at a time.
    received = await receive_form(
        request.stream(), content_type, folder, limit=limit, check_room=gateway.capacity.check
    )
    try:
        if received.size == 0:
            raise upload_error(f"the file {received.name!r} is empty")
        check(received)
        check_file_bytes(gateway, org, received.size)
        check_files_pending(gateway, org)
        return await _store(gateway, org, received)
    finally:
        received.path.unlink(missing_ok=True)


async def _store(gateway: Gateway, org: OrgId, received: ReceivedForm) -> tuple[FileRow, bool]:
    id = file_id_for(org, received.sha256)
    # Read the log, not the read model, because another gateway may have deleted the file a moment ago.
    earlier = await read_last(gateway.bus, FileUploaded, org, id)
    deleted = await read_last(gateway.bus, FileDeleted, org, id)
    ended = deleted.seq if deleted else 0
    if earlier is not None and earlier.seq > ended:
        rejected = await read_last(gateway.bus, FileRejected, org, id)
        if rejected is not None and rejected.seq > earlier.seq:
            # Check the file again: an image that could not be fetched may be available now.
            again = FileDeleted(requested_by="", uploaded_seq=earlier.seq)
            ended = await gateway.publisher.once(again, org=org, key=id, id=str(earlier.seq))
    new = earlier is None or earlier.seq < ended
    if new:
        # Each upload after a deletion has its own blob, so that the removal of the earlier blob cannot remove this one.
        name = f"{received.sha256}.{ended}" if ended else received.sha256
        blob = await gateway.blobs.put_file(
            f"orgs/{org}/files/{name}", received.path, move=True, sha256=received.sha256
        )
        event = FileUploaded(name=received.name, purpose=received.purpose, blob=blob)
        seq = await gateway.publisher.once(event, org=org, key=id, id=name)
    else:
        assert earlier is not None
        seq = earlier.seq
    await gateway.hub.wait_until_applied(seq)
    row = gateway.read_model.file(org, id)
    if row is None:
        raise Transient(f"{id} was deleted while it was uploaded; upload it again")
    return row, new
