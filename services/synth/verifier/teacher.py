"""Check that a job's teacher exists, and find its weights."""

from __future__ import annotations

import msgspec

from synth.bus.connection import Connection
from synth.bus.history.model_refs import find_model
from synth.errors import UserError
from synth.events import ModelRef
from synth.jobs.resolved import Job, RlJob
from synth.models import Registry


async def find_teacher(
    bus: Connection, org: str, job: Job, registry: Registry, *, where: str, for_job: str | None = None
) -> ModelRef | None:
    """Return the teacher's reference; None if the job has none. Raises `UserError`.

    where: the field that an error names. for_job: the job whose teacher it is, if the job has been submitted.
    """
    distillation = job.distillation if isinstance(job, RlJob) else None
    if distillation is None:
        return None
    try:
        return await find_model(bus, org, distillation.teacher, registry, for_job=for_job)
    except UserError as error:
        raise UserError([msgspec.structs.replace(problem, where=where) for problem in error.problems]) from error
