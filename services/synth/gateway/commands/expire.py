"""The expiry of traces that are too old or too many, and of checkpoints of jobs that failed too long ago.

Every gateway removes them: removing one twice is no error. The log and the settings determine the expired items, so a
rebuilt read model finds them again.
"""

from __future__ import annotations

from datetime import datetime

from synth.blobs import BlobStore
from synth.bus.publish import Publisher
from synth.events import ModelDeleted
from synth.gateway.read_model.store import ReadModel
from synth.gateway.read_model.tables.traces import mark_expired, traces_to_expire
from synth.gateway.settings import GatewaySettings
from synth.runtime import logs

log = logs.get("deleting")

#: Traces that are removed at a time, which takes a remote store some seconds.
_AT_ONCE = 500


async def expire_traces(model: ReadModel, blobs: BlobStore, settings: GatewaySettings, now: datetime) -> bool:
    """Remove the oldest expired traces; return whether there may be more of them.

    The traces of a job that runs stay: its judges may still read them.
    """
    before = None if settings.trace_days is None else now.timestamp() - settings.trace_days * 86_400
    per_job, per_org = settings.traces_per_job, settings.traces_per_organisation
    if before is None and per_job is None and per_org is None:
        return False
    due = traces_to_expire(model.db, before=before, per_job=per_job, per_org=per_org, limit=_AT_ONCE)
    if not due:
        return False
    await blobs.delete([ref.uri for _, row in due for ref in (row.transcript, row.review) if ref is not None])
    mark_expired(model.db, [seq for seq, _ in due])
    log.info("traces removed", traces=len(due))
    return len(due) == _AT_ONCE


async def expire_checkpoints(model: ReadModel, publisher: Publisher, settings: GatewaySettings, now: datetime) -> None:
    """Delete the checkpoints of jobs that failed too long ago. A checkpoint that a live job continues from stays."""
    if settings.failed_checkpoint_days is None:
        return
    before = now.timestamp() - settings.failed_checkpoint_days * 86_400
    for org, job_id, checkpoint in model.checkpoints_of_failed(before=before, limit=_AT_ONCE):
        id = checkpoint.checkpoint.model
        await publisher.once(ModelDeleted(model=id, tree=checkpoint.tree, requested_by=""), org=org, key=job_id, id=id)
