"""Whether a job's image processor is the one that its model's trainer and engines use."""

from __future__ import annotations

from pathlib import Path

from synth.errors import Problem, UserError
from synth.jobs.resolved import Job
from synth.models import Registry
from synth.models.folder import processor_settings


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
