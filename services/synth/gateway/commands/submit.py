"""The single command that submits a job, for every API: appended once, and returned from the read model."""

from __future__ import annotations

import hashlib
import uuid

import msgspec

from synth.api.limits import MAX_METADATA_BYTES
from synth.blobs.configs import put_config
from synth.errors import Conflict, Problem
from synth.events import JobCreated
from synth.events.catalogue import MAX_EVENT_BYTES
from synth.gateway.commands.quotas import check_gpu_seconds, check_jobs, log_room
from synth.gateway.deps import Gateway
from synth.gateway.errors import ApiError
from synth.gateway.read_model.event_log import read_last
from synth.gateway.read_model.projection import JobRow
from synth.ids import OrgId, job_id_for, new_job_id

#: Half of an event's limit, because the resolved form of a configuration is longer than the configuration.
_MAX_BYTES = MAX_EVENT_BYTES // 2
#: The approximate size of a job's other events until its start, and of the events that end and delete it.
_FACTS_BYTES = 4 << 10


async def submit_job(
    gateway: Gateway, org: OrgId, created: JobCreated, *, route: str, key: str | None
) -> tuple[JobRow, bool]:
    """Append `job.created`; return the job, and whether it is new.

    key: the caller's idempotency key. The same key on the same route returns the same job for the same submission, and
    raises a 422 for another. `body_sha256` is computed here. Raises a 413 for a submission that is too large for an
    event, a 503 if the cluster has no room for it, and a 429 if its organisation has none.
    """
    digest = _digest(created)
    _check_size(created)
    created = msgspec.structs.replace(created, body_sha256=digest)
    id = job_id_for(org, route, key) if key else new_job_id()
    known = gateway.read_model.texts(id)
    if known is not None:
        return await _existing_job(gateway, org, id, known.body_sha256 == digest)
    if gateway.read_model.is_deleted(org, id):
        raise _was_deleted(id)
    check_jobs(gateway, org)
    check_gpu_seconds(gateway, org)
    gateway.capacity.check()
    inline = gateway.settings.config_inline_bytes
    in_log = min(len(msgspec.json.encode(created)), inline + MAX_METADATA_BYTES)
    with log_room(gateway, org, in_log + _FACTS_BYTES, job=True):
        created = await put_config(gateway.blobs, id, created, inline_bytes=inline)
        return await _append(gateway, org, created, id=id)


async def _append(gateway: Gateway, org: OrgId, created: JobCreated, *, id: str) -> tuple[JobRow, bool]:
    try:
        # The id belongs to this request, so that only its own retries count as repeats.
        seq = await gateway.publisher.lifecycle(created, org=org, key=id, id=uuid.uuid4().hex, after=0)
    except Conflict:
        earlier = await read_last(gateway.bus, JobCreated, org, id)
        if earlier is None and gateway.read_model.is_deleted(org, id):
            raise _was_deleted(id) from None
        if earlier is None or not isinstance(earlier.event, JobCreated):
            raise
        await gateway.hub.wait_until_applied(earlier.seq)
        return await _existing_job(gateway, org, id, earlier.event.body_sha256 == created.body_sha256)
    return await gateway.job_at(org, id, seq), True


def _digest(created: JobCreated) -> str:
    """Return a digest of the submission, the same for every key of the organisation."""
    submission = msgspec.to_builtins(msgspec.structs.replace(created, body_sha256="", created_by=""))
    # The gateway sets this field. Without it, digests equal the digests of the version without such blobs.
    del submission["config_blob"]
    return hashlib.sha256(msgspec.json.encode(submission, order="sorted")).hexdigest()


def _check_size(created: JobCreated) -> None:
    metadata = len(msgspec.json.encode(created.metadata))
    if metadata > MAX_METADATA_BYTES:
        problem = Problem(
            what=f"the metadata are {metadata:,} bytes",
            expected=f"at most {MAX_METADATA_BYTES:,}: they stand in every list of jobs",
            fix="put data into files",
            where="metadata",
        )
        raise ApiError(413, problem.text(), param="metadata", problems=[problem])
    size = len(msgspec.json.encode(created))
    if size > _MAX_BYTES:
        problem = Problem(
            what=f"the job's configuration and metadata are {size} bytes",
            expected=f"at most {_MAX_BYTES}",
            fix="put data into files",
        )
        raise ApiError(413, problem.text(), type="invalid_request", problems=[problem])


async def _existing_job(gateway: Gateway, org: str, id: str, same: bool) -> tuple[JobRow, bool]:
    if not same:
        problem = Problem(
            what="this Idempotency-Key was used for another submission",
            expected=f"the body that {id} was submitted with",
            fix="use a new key for a new job",
            where="header Idempotency-Key",
        )
        raise ApiError(422, problem.text(), type="idempotency", problems=[problem])
    if gateway.read_model.is_deleted(org, id):
        raise _was_deleted(id)
    return await gateway.job(org, id), False


def _was_deleted(id: str) -> ApiError:
    problem = Problem(
        what=f"the job of this Idempotency-Key, {id}, was deleted",
        fix="use a new key for a new job",
        where="header Idempotency-Key",
    )
    return ApiError(409, problem.text(), type="idempotency", problems=[problem])
