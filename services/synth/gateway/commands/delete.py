"""Deleting: what is deleted is gone for every reader at once; its blobs go when no job needs them any more.

Invariant. A blob is removed only by the log as it was read up to the deletion or beyond: no live job that came before
the deletion is still to be verified, and none was verified with the blob. A job that comes later is refused.
"""

from __future__ import annotations

from synth.blobs import BlobStore
from synth.bus.kv.secrets import ApiKey
from synth.events import FileDeleted
from synth.gateway.deps import Gateway
from synth.gateway.read_model.projection import FileRow, JobRow, Trash
from synth.gateway.read_model.store import ReadModel
from synth.jobs.lifecycle import State
from synth.runtime import logs

log = logs.get("deleting")


async def delete_file(gateway: Gateway, caller: ApiKey, id: str) -> FileRow:
    """Delete a file of the caller's organisation; returns what it was. Raises a 404."""
    row = await gateway.file(caller.org, id)
    event = FileDeleted(requested_by=caller.key_id, uploaded_seq=row.created_seq)
    seq = await gateway.publisher.once(event, org=caller.org, key=id, id=str(row.created_seq))
    await gateway.hub.wait_until_applied(seq)
    return row


async def empty_trash(model: ReadModel, blobs: BlobStore) -> None:
    """Remove the blobs of what was deleted, where no job needs them. Every gateway does so: twice is no error."""
    trash = model.trash()
    if not trash:
        return
    live = model.live_jobs()
    for item in trash:
        if not any(_is_needed(row, item) for row in live):
            await blobs.delete(item.uris)
            model.delete_trash(item)
            log.info("blobs of a deleted file removed", org=item.org, blobs=len(item.uris))


def _is_needed(row: JobRow, item: Trash) -> bool:
    if row.org != item.org or row.created_seq > item.deleted_seq:
        return False
    return row.job.state in (State.CREATED, State.VALIDATED) or not set(item.uris).isdisjoint(row.data_uris)
