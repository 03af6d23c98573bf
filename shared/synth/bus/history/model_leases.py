"""Leases on models that jobs made: a job that needs one keeps its files, from its validation until it has ended.

Invariants. A lease is a fact of the job that made the model, so a service that deletes its files reads it. It ends by
the log of the job that needs the model, and by nothing that could be lost: when that job has ended, and no existing
model that it made needs the files. A lease is valid if its model is found after it: the deleting service reads the
leases once more after its own announcement, and keeps the files that were leased before it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec
from nats.errors import Error as NatsError

from synth.bus.connection import Connection
from synth.bus.history.job_log import read_job
from synth.bus.history.model_refs import find_model
from synth.bus.publish import Publisher
from synth.bus.replay import replay
from synth.errors import Problem, SynthError, UserError
from synth.events import (
    BlobExpired,
    CheckpointSaved,
    Continuation,
    JobDeleted,
    ModelDeleted,
    ModelLeased,
    ModelPublished,
    trees_of,
)
from synth.events.catalogue import subject_of
from synth.methods.job import Job
from synth.models import Registry, parse_finetuned
from synth.runtime import logs

log = logs.get("model_leases")


async def lease_models(
    bus: Connection,
    org: str,
    job_id: str,
    job: Job,
    registry: Registry,
    *,
    origins: Mapping[str, str],
    continues: Continuation | None = None,
) -> None:
    """Lease the start model, the teacher and the continued checkpoint of a job, if jobs made them.

    origins: the place in the job's file of each value.

    Raises `UserError` for models that do not exist.
    """
    teacher = None if job.teacher is None else job.teacher.teacher
    problems: list[Problem] = []
    checkpoint = continues.model if continues is not None else None
    needed = (
        (job.model, None),
        (teacher, origins.get("distillation.teacher", "teacher")),
        (checkpoint, f"the checkpoint of {continues.job}" if continues is not None else None),
    )
    for model_id, where in needed:
        try:
            if model_id is not None and parse_finetuned(model_id) is not None:
                await _lease(bus, org, job_id, model_id, registry)
        except UserError as error:
            problems += [msgspec.structs.replace(p, where=where or p.where) for p in error.problems]
    if problems:
        raise UserError(problems)


async def _lease(bus: Connection, org: str, job_id: str, model_id: str, registry: Registry) -> None:
    for tree in trees_of(await find_model(bus, org, model_id, registry, for_job=job_id)):
        lease = ModelLeased(tree=tree, job=job_id)
        # A job stores all its blobs below `jobs/<job>`.
        maker = tree.removeprefix("blob://jobs/").partition("/")[0]
        await Publisher(bus).once(lease, org=org, key=maker, id=f"{job_id}:{tree}")
    await find_model(bus, org, model_id, registry, for_job=job_id)


async def leased_trees(bus: Connection, org: str, job_id: str, trees: Collection[str]) -> set[str]:
    """Return the trees of a job that other jobs need; a job whose log cannot be read needs them.

    Raises an error if the job's own leases cannot be read.
    """
    # A damaged lease may name any tree.
    facts = await replay(bus, [subject_of(ModelLeased, org, job_id)], whole=True)
    leases = [recorded.event for recorded in facts]
    needed: set[str] = set()
    requested: dict[str, set[str] | None] = {}
    for lease in leases:
        if not isinstance(lease, ModelLeased) or lease.tree not in trees or lease.tree in needed:
            continue
        if lease.job not in requested:
            try:
                requested[lease.job] = await _trees_kept(bus, org, lease.job)
            except (SynthError, NatsError, OSError) as error:
                # A damaged log of another job must not end an attempt of this one.
                log.warning("a lease is kept, as its job cannot be read", job=lease.job, error=repr(error))
                requested[lease.job] = None
        kept = requested[lease.job]
        if kept is None or lease.tree in kept:
            needed.add(lease.tree)
    return needed


async def _trees_kept(bus: Connection, org: str, job_id: str) -> set[str] | None:
    """Return the trees of the models that a job has made, and of their base models; None, for all, before its end."""
    history = await read_job(bus, org, job_id)
    if history.state is not None and not history.ended:
        return None
    kinds = (CheckpointSaved, ModelPublished, BlobExpired, ModelDeleted, JobDeleted)
    models: dict[str, list[str]] = {}
    for recorded in await replay(bus, [subject_of(kind, org, job_id) for kind in kinds], whole=True):
        match recorded.event:
            case CheckpointSaved(model=model) | ModelPublished(model=model):
                models[model.id] = trees_of(model)
            case BlobExpired(uris=uris):
                expired_uris = set(uris)
                models = {id: trees for id, trees in models.items() if not trees or trees[0] not in expired_uris}
            case ModelDeleted(model=id):
                models.pop(id, None)
            case JobDeleted():
                models.clear()
            case _:
                continue
    return {tree for trees in models.values() for tree in trees}
