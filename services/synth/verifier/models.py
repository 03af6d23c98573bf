"""Check the models that a job names beside its base: its teacher, and the one whose image processor it uses."""

from __future__ import annotations

from pathlib import Path

import msgspec

from synth.bus.connection import Connection
from synth.bus.history.model_refs import find_model
from synth.errors import Problem, UserError
from synth.events import ModelRef
from synth.methods.job import Job
from synth.models import Registry
from synth.models.folder import processor_settings


async def find_teacher(
    bus: Connection, org: str, job: Job, registry: Registry, *, where: str, for_job: str | None = None
) -> ModelRef | None:
    """Return the teacher's reference; None if the job has none. Raises `UserError`.

    where: the field that an error names. for_job: the job whose teacher it is, if the job has been submitted.
    """
    if job.teacher is None:
        return None
    try:
        return await find_model(bus, org, job.teacher.teacher, registry, for_job=for_job)
    except UserError as error:
        raise UserError([msgspec.structs.replace(problem, where=where) for problem in error.problems]) from error


def processor_problems(job: Job, registry: Registry, *, where: str) -> list[Problem]:
    """Return the problems of a job's processor; none for a text model, or if the weights are not on this machine.

    Trainer and engines read the processor of the base model. Another model's processor is accepted if its settings are
    equal; otherwise the job would run with other settings than it names. where: the key that names it.
    """
    if job.vision is None or job.vision.processor_id == job.base_model:
        return []
    try:
        base, named = registry.find(job.base_model), registry.find(job.vision.processor_id, where=where)
    except UserError as error:
        return error.problems
    if base.path is None:
        return []
    if named.path is None or processor_settings(Path(named.path)) != processor_settings(Path(base.path)):
        why = "is not on this cluster" if named.path is None else "prepares images otherwise"
        return [
            Problem(
                what=f"{named.id!r} {why}, and {job.base_model!r} is trained and served with its own image processor",
                expected=f"{job.base_model}, or a model whose processor has the same settings",
                fix="leave the key out",
                where=where,
            )
        ]
    return []
