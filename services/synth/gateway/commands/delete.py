"""Deleting: what is deleted is gone for every reader at once; its blobs go when nothing needs them any more.

Invariant. A blob is removed only by the log as it was read up to the deletion or beyond: no live job that came before
the deletion is still to be verified, none was verified with the blob, and no model that is there lies over it. A job
that comes later is refused. Every gateway removes: twice is no error, and what one did not live to remove another does.
"""

from __future__ import annotations

import msgspec

from synth.blobs import BlobMissing, BlobStore
from synth.bus.kv.secrets import ApiKey
from synth.errors import Problem
from synth.events import BlobRef, FileDeleted, JobDeleted, ModelDeleted
from synth.gateway.deps import Gateway
from synth.gateway.errors import ApiError, not_found
from synth.gateway.read_model.projection import FileRow, JobRow, Trash
from synth.gateway.read_model.store import ReadModel
from synth.jobs.lifecycle import TERMINAL, State
from synth.runtime import logs

log = logs.get("deleting")


async def delete_file(gateway: Gateway, caller: ApiKey, id: str) -> FileRow:
    """Delete a file of the caller's organisation; returns what it was. Raises a 404."""
    row = await gateway.file(caller.org, id)
    event = FileDeleted(requested_by=caller.key_id, uploaded_seq=row.created_seq)
    seq = await gateway.publisher.once(event, org=caller.org, key=id, id=str(row.created_seq))
    await gateway.hub.wait_until_applied(seq)
    return row


async def delete_job(gateway: Gateway, caller: ApiKey, id: str) -> None:
    """Delete a job that has ended, with all that it made. Repeating it changes nothing. Raises a 404, a 409."""
    if gateway.read_model.is_deleted(caller.org, id):
        return
    row = await gateway.job(caller.org, id)
    if row.job.state not in TERMINAL:
        raise _refused(
            f"the job is {row.job.state}",
            expected="a job that has ended",
            fix=f"wait for its end, or cancel it: synthctl jobs cancel {id}",
            where=id,
        )
    event = JobDeleted(requested_by=caller.key_id)
    seq = await gateway.publisher.once(event, org=caller.org, key=id, id="deleted")
    await gateway.hub.wait_until_applied(seq)


async def delete_model(gateway: Gateway, caller: ApiKey, id: str) -> None:
    """Delete a model that a job made, or a checkpoint of a job that has ended. id: in its full spelling.

    Raises a 404, and a 409 while its job runs.
    """
    found = gateway.read_model.model(caller.org, id) or gateway.read_model.checkpoint(caller.org, id)
    if found is None or found.model.job_id is None:
        raise not_found("model", id)
    job_id = found.model.job_id
    row = await gateway.job(caller.org, job_id)
    if row.job.state not in TERMINAL:
        raise _refused(
            f"the job that makes {id} is {row.job.state}",
            expected="a model of a job that has ended",
            fix=f"wait for its end, or cancel it: synthctl jobs cancel {job_id}",
            where="model",
        )
    event = ModelDeleted(model=id, tree=found.tree, requested_by=caller.key_id)
    seq = await gateway.publisher.once(event, org=caller.org, key=job_id, id=id)
    await gateway.hub.wait_until_applied(seq)


def _refused(what: str, *, expected: str, fix: str, where: str) -> ApiError:
    problem = Problem(what=what, expected=expected, fix=fix, where=where)
    return ApiError(409, problem.text(), code="still_needed", problems=[problem])


async def empty_trash(model: ReadModel, blobs: BlobStore) -> None:
    """Remove the blobs of what was deleted, where nothing needs them. Every gateway does so: twice is no error."""
    trash = model.trash()
    if not trash:
        return
    live = model.live_jobs()
    for item in trash:
        if item.uris:
            if any(_is_needed(row, item) for row in live):
                continue
            await blobs.delete(item.uris)
        elif any(_is_unverified(row, item) for row in live) or not await _remove_made(model, blobs, item, live):
            continue
        model.delete_trash(item)
        log.info("blobs of what was deleted removed", org=item.org, folder=item.folder, blobs=len(item.uris))


def _is_needed(row: JobRow, item: Trash) -> bool:
    if row.org != item.org or row.created_seq > item.deleted_seq:
        return False
    return _is_unverified(row, item) or not set(item.uris).isdisjoint(row.data_uris)


def _is_unverified(row: JobRow, item: Trash) -> bool:
    """Whether a job that came before the deletion may still be verified with what was deleted."""
    before = row.org == item.org and row.created_seq <= item.deleted_seq
    return before and row.job.state in (State.CREATED, State.VALIDATED)


async def _remove_made(model: ReadModel, blobs: BlobStore, item: Trash, live: list[JobRow]) -> bool:
    """Remove a deleted model, or what a deleted job made, except for what is needed; says whether nothing was."""
    needed = model.kept_trees(item.org) | {tree for row in live if row.org == item.org for tree in row.source_trees}
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
    """Remove a tree, its manifest last: it says what is left to do, should this process die."""
    try:
        files = (await blobs.manifest(tree)).files
    except BlobMissing:
        return
    await blobs.delete([*(ref.uri for ref in files.values()), tree.uri])
