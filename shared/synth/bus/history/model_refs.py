"""Looks up models: a base model of the registry, or one that a job of the organisation made, by the log.

A job makes its finished model and checkpoints; a checkpoint is a model until it expires or is deleted.
"""

from __future__ import annotations

import difflib

from synth.bus.connection import Connection
from synth.bus.replay import replay
from synth.errors import Problem, UserError
from synth.events import BlobExpired, CheckpointSaved, JobDeleted, ModelDeleted, ModelLeased, ModelPublished, ModelRef
from synth.events.catalogue import subject_of
from synth.models import FineTunedId, Registry, parse_finetuned


async def find_model(
    bus: Connection, org: str, model_id: str, registry: Registry, *, for_job: str | None = None
) -> ModelRef:
    """Return the model's reference. Raises `UserError` for an unknown model, with the nearest id.

    for_job: the job that needs the model; a checkpoint that this job leased before it expired is still available to it.
    """
    finetuned = parse_finetuned(model_id)
    if finetuned is None:
        spec = registry.find(model_id)
        return ModelRef(id=spec.id, path=registry.weights(spec), stand_in=spec.stand_in)
    if finetuned.checkpoint is not None:
        return await _find_checkpoint(bus, org, finetuned, for_job)
    published = await replay(bus, [subject_of(ModelPublished, org, "*")], last_per_subject=True)
    jobs, deleted = await _read_deletions(bus, org, "*")
    models = [
        r.event.model
        for r in published
        if isinstance(r.event, ModelPublished) and r.key not in jobs and r.event.model.id not in deleted
    ]
    result = next((m for m in models if matches(finetuned, m.id)), None)
    if result is None:
        raise UserError(_missing(finetuned, [m.id for m in models]))
    return result


async def _find_checkpoint(bus: Connection, org: str, wanted: FineTunedId, for_job: str | None) -> ModelRef:
    kinds = (CheckpointSaved, BlobExpired, ModelPublished, ModelLeased)
    leased: set[str] = set()
    there: dict[str, ModelRef] = {}
    expired_ids: list[str] = []
    for recorded in await replay(bus, [subject_of(kind, org, wanted.job_id) for kind in kinds]):
        match recorded.event:
            case CheckpointSaved(model=model, tree=tree):
                there[tree.uri] = model
            case BlobExpired(uris=uris):
                expired_ids += [there.pop(uri).id for uri in uris if uri in there and uri not in leased]
            case ModelLeased(tree=tree, job=job) if job == for_job:
                leased.add(tree)
            case ModelPublished(model=model):
                there[model.id] = model
            case _:
                continue
    jobs, deleted = await _read_deletions(bus, org, wanted.job_id)
    there = {} if jobs else {uri: m for uri, m in there.items() if m.id not in deleted}
    result = next((m for m in there.values() if matches(wanted, m.id)), None)
    if result is None:
        expired = any(matches(wanted, id) for id in expired_ids)
        raise UserError(_no_checkpoint(wanted, [m.id for m in reversed(there.values())], expired=expired))
    return result


async def _read_deletions(bus: Connection, org: str, job_id: str) -> tuple[set[str], set[str]]:
    """Return the jobs and the models that were deleted. job_id: of one job, or "*"."""
    jobs: set[str] = set()
    models: set[str] = set()
    for recorded in await replay(bus, [subject_of(kind, org, job_id) for kind in (JobDeleted, ModelDeleted)]):
        if isinstance(recorded.event, ModelDeleted):
            models.add(recorded.event.model)
        elif isinstance(recorded.event, JobDeleted):
            jobs.add(recorded.key)
    return jobs, models


def matches(wanted: FineTunedId, model_id: str) -> bool:
    """Return whether `wanted` is this published model; `ft:` stands for any way of making it (decision 18)."""
    actual = parse_finetuned(model_id)
    if actual is None or wanted.prefix not in ("ft", actual.prefix):
        return False
    if wanted.base.lower() != actual.base.lower():
        return False
    return (wanted.job_id, wanted.checkpoint) == (actual.job_id, actual.checkpoint)


def _no_checkpoint(wanted: FineTunedId, ids: list[str], *, expired: bool) -> Problem:
    """ids: what there is of the job, newest first."""
    return Problem(
        what=f"the checkpoint {str(wanted)!r} {'has expired' if expired else 'was not saved'}",
        expected=f"what its job keeps: {', '.join(ids)}" if ids else "a job that keeps checkpoints",
        fix=f"did you mean {ids[0]!r}?" if ids else "`synthctl jobs ls` shows the jobs",
        where="model",
    )


def _missing(wanted: FineTunedId, ids: list[str]) -> Problem:
    same_job = [i for i in ids if (other := parse_finetuned(i)) and other.job_id == wanted.job_id]
    near = same_job or difflib.get_close_matches(str(wanted), ids, n=1)
    return Problem(
        what=f"the model {str(wanted)!r} has not been published",
        expected="a base model, or a fine-tuned model of your organisation whose job has succeeded",
        fix=f"did you mean {near[0]!r}?" if near else "`synthctl models ls` shows them",
        where="model",
    )
