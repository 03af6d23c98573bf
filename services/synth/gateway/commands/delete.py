"""The deletion of jobs, files and models: at once for every reader; their blobs go when nothing needs them any more.

Invariant. A blob is removed only after the log was read up to the deletion or beyond, if no live job from before the
deletion is still to be verified, none was verified with the blob, and no existing model is an adapter on it. A later
job is refused. Every gateway removes blobs: removing one twice is no error, and another gateway finishes the work of
one that stops.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
from obstore.exceptions import BaseError

from synth.blobs import BlobCorrupt, BlobMissing, BlobStore
from synth.bus.connection import Connection
from synth.bus.dead_letters import publish_dead_letter
from synth.bus.kv.secrets import ApiKey
from synth.bus.recorded import encode
from synth.errors import Problem, SynthError
from synth.events import BlobRef, FileDeleted, JobDeleted, ModelDeleted
from synth.events.catalogue import subject_of
from synth.gateway.deps import Gateway
from synth.gateway.errors import ApiError, not_found
from synth.gateway.read_model.event_log import is_erased, read_size
from synth.gateway.read_model.live_jobs import live_jobs
from synth.gateway.read_model.projection import FileRow, JobRow, Trash
from synth.gateway.read_model.store import ReadModel
from synth.gateway.read_model.tables import org_totals
from synth.jobs.lifecycle import TERMINAL, State
from synth.runtime import logs

log = logs.get("deleting")

#: The most bytes of a deletion.
_EVENT_BYTES = 4 << 10
#: Deleted jobs and files that are looked up in the log at a time.
_AT_ONCE = 64


async def delete_file(gateway: Gateway, caller: ApiKey, id: str) -> FileRow:
    """Delete a file of the caller's organisation, and return its last row. Raises a 404."""
    row = await gateway.file(caller.org, id)
    event = FileDeleted(requested_by=caller.key_id, uploaded_seq=row.created_seq)
    seq = await _append_deletion(gateway, event, org=caller.org, key=id, id=str(row.created_seq))
    await gateway.hub.wait_until_applied(seq)
    return row


async def delete_job(gateway: Gateway, caller: ApiKey, id: str) -> None:
    """Delete a job that has ended, with its output. Repeating it changes nothing. Raises a 404, a 409."""
    if gateway.read_model.is_deleted(caller.org, id):
        return
    await _check_ended(gateway, caller, id, what="the job", expected="a job", where=id)
    event = JobDeleted(requested_by=caller.key_id)
    seq = await _append_deletion(gateway, event, org=caller.org, key=id, id="deleted")
    await gateway.hub.wait_until_applied(seq)


async def _append_deletion(gateway: Gateway, event: FileDeleted | JobDeleted, *, org: str, key: str, id: str) -> int:
    """Append a deletion, also to a full log: the erasure of deleted events makes room for it (`erasure.sweep`)."""
    size = await read_size(gateway.bus)
    if size.most is not None and size.used + _EVENT_BYTES > size.most:
        await publish_dead_letter(gateway.bus, subject_of(event, org, key), encode(event), reason="the log is full")
    return await gateway.publisher.once(event, org=org, key=key, id=id)


async def delete_model(gateway: Gateway, caller: ApiKey, id: str) -> None:
    """Delete a model that a job made, or a checkpoint of a job that has ended. id: in its full spelling.

    Raises a 404, and a 409 while its job runs.
    """
    result = gateway.read_model.model(caller.org, id) or gateway.read_model.checkpoint(caller.org, id)
    if result is None or result.model.job_id is None:
        raise not_found("model", id)
    job_id = result.model.job_id
    what = f"the job that makes {id}"
    await _check_ended(gateway, caller, job_id, what=what, expected="a model of a job", where="model")
    event = ModelDeleted(model=id, tree=result.tree, requested_by=caller.key_id)
    seq = await gateway.publisher.once(event, org=caller.org, key=job_id, id=id)
    await gateway.hub.wait_until_applied(seq)


async def _check_ended(gateway: Gateway, caller: ApiKey, id: str, *, what: str, expected: str, where: str) -> None:
    """Raise a 409 if the job has not ended, a 404 if there is none."""
    state = (await gateway.job(caller.org, id)).job.state
    if state not in TERMINAL:
        fix = f"wait for its end, or cancel it: synthctl jobs cancel {id}"
        problem = Problem(what=f"{what} is {state}", expected=f"{expected} that has ended", fix=fix, where=where)
        raise ApiError(409, problem.text(), code="still_needed", problems=[problem])


@dataclass
class _Needs:
    """The blobs that live jobs of one organisation need.

    unverified: the sequence of the first job that may still be verified. data: by blob, the sequence of the first job
    that was verified with it. trees: manifests.
    """

    unverified: int | None = None
    data: dict[str, int] = field(default_factory=dict[str, int])
    trees: set[str] = field(default_factory=set[str])

    def add(self, row: JobRow) -> None:
        """Add a live job. Jobs must be added in the order in which they were created."""
        if self.unverified is None and row.job.state in (State.CREATED, State.VALIDATED):
            self.unverified = row.created_seq
        for uri in row.data_uris:
            self.data.setdefault(uri, row.created_seq)
        self.trees.update(row.source_trees)
        if row.continued_tree is not None:
            self.trees.add(row.continued_tree)

    def may_verify(self, item: Trash) -> bool:
        """Return whether a job from before the deletion may still be verified with the deleted item."""
        return self.unverified is not None and self.unverified <= item.deleted_seq

    def has_data(self, item: Trash) -> bool:
        """Return whether a job from before the deletion was verified with a blob of the item."""
        return any(self.data.get(uri, item.deleted_seq + 1) <= item.deleted_seq for uri in item.uris)


async def count_erased(bus: Connection, model: ReadModel) -> None:
    """Stop counting the events of deleted jobs and files after they are erased from the log."""
    for org, id, deleted in org_totals.unerased(model.db, limit=_AT_ONCE):
        if await is_erased(bus, f"*.*.{org}.{id}", before=deleted):
            org_totals.note_erased(model.db, id, deleted=deleted)


async def empty_trash(model: ReadModel, blobs: BlobStore) -> None:
    """Remove the blobs of deleted items that nothing needs. Every gateway does so: removing one twice is no error."""
    # Read the trash before the jobs, so that each job's state is from after the deletion.
    trash = model.trash()
    if not trash:
        return
    needs = {item.org: _Needs() for item in trash}
    async for page in live_jobs(model, orgs=needs):
        for row in page:
            needs[row.org].add(row)
    for item in trash:
        try:
            if await _remove(model, blobs, item, needs[item.org]):
                model.delete_trash(item)
                log.info("blobs of what was deleted removed", org=item.org, folder=item.folder, blobs=len(item.uris))
        except (SynthError, OSError, BaseError, msgspec.DecodeError):
            # The item is tried again later, and does not delay the others.
            log.exception("blobs of what was deleted cannot be removed", org=item.org, folder=item.folder)


async def _remove(model: ReadModel, blobs: BlobStore, item: Trash, needed: _Needs) -> bool:
    """Remove a deleted item if nothing needs it; return whether all of it is gone."""
    if needed.may_verify(item):
        return False
    if not item.uris:
        return await _remove_made(model, blobs, item, needed.trees)
    if needed.has_data(item):
        return False
    await blobs.delete(item.uris)
    return True


async def _remove_made(model: ReadModel, blobs: BlobStore, item: Trash, sources: set[str]) -> bool:
    """Remove a deleted model or a deleted job's output, except needed files; return whether nothing was needed.

    sources: the manifests that live jobs of the organisation were verified with.
    """
    needed = model.kept_trees(item.org) | sources
    if item.tree is not None:
        if item.tree.uri in needed:
            return False
        await _remove_tree(blobs, item.tree)
        return True
    spared = sorted(tree for tree in needed if tree.startswith(f"blob://{item.folder}/"))
    if spared and spared == item.spared:
        return False
    kept = set(spared)
    for tree in spared:
        kept |= set(await blobs.files_of_tree(tree))
    await blobs.delete([uri for uri in await blobs.uris_below(item.folder) if uri not in kept])
    if spared:
        model.put_trash(msgspec.structs.replace(item, spared=spared))
    return not spared


async def _remove_tree(blobs: BlobStore, tree: BlobRef) -> None:
    """Remove a tree, its manifest last: the manifest lists the remaining work if this process dies."""
    try:
        files = (await blobs.manifest(tree)).files
    except BlobMissing:
        return
    except (BlobCorrupt, msgspec.DecodeError) as error:
        # The names of its files are lost; `synthd bus orphans` finds them.
        log.warning("the files of a damaged tree stay", tree=tree.uri, error=str(error))
        await blobs.delete([tree.uri])
        return
    await blobs.delete([*(ref.uri for ref in files.values()), tree.uri])
