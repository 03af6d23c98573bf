"""A submitted job, read and resolved: the one decision that the validator makes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from synth.errors import Problem, UserError
from synth.events import JobCreated, JobRejected, JobValidated
from synth.events.catalogue import MAX_EVENT_BODY_BYTES
from synth.jobs.fit import cannot_fit
from synth.jobs.limits import JobLimitSettings, beyond_limits
from synth.jobs.parse.toml import Document, read_data, read_toml
from synth.jobs.parse.validate import Kind
from synth.jobs.plan import TrainerDevice
from synth.jobs.resolve.job import Overrides, resolve_job
from synth.methods.job import ResolvedJob, job_to_data
from synth.models import Registry
from synth.models.base_shape import base_shape
from synth.plugins import plugin_refused

_WARNINGS_SHOWN = 100


def validate(
    created: JobCreated,
    registry: Registry,
    *,
    uploaded: bool = True,
    trainer: TrainerDevice | None = None,
    python_graders: bool = False,
    plugins: Collection[str] = (),
    limits: JobLimitSettings | None = None,
) -> JobValidated | JobRejected:
    """Return the resolved job, or every problem with it.

    uploaded: False before the upload, when a dataset may still be a path rather than a file id.
    trainer: what would train it; a job that cannot fit there is refused. python_graders: whether graders of type
    `python` are run. plugins: modules whose functions jobs may name. limits: how large a job may be here.
    """
    overrides = Overrides(
        model=created.model,
        training_file=created.training_file,
        validation_file=created.validation_file,
        task_url=created.task_url,
        examples=created.examples,
        seed=created.seed,
        allow_experimental=created.allow_experimental,
    )
    try:
        resolved = resolve_job(
            _document(created),
            overrides=overrides,
            registry=registry,
            kind=_kind(created),
            uploaded=uploaded,
            python_graders=python_graders,
        )
    except UserError as error:
        return JobRejected(problems=error.problems)
    except RecursionError:
        problem = Problem(
            what="tables or lists are nested too deeply to be read",
            expected="a job file as the examples show it",
            where=created.config_name,
        )
        return JobRejected(problems=[problem])
    if limits is not None and (beyond := beyond_limits(resolved.job, limits, resolved.origins)):
        return JobRejected(problems=beyond)
    if refused := _plugins_refused(resolved, plugins):
        return JobRejected(problems=refused)
    if trainer is not None and (training := resolved.job.training) is not None:
        shape = base_shape(registry, training.base_model)
        too_large = None if shape is None else cannot_fit(training, shape, trainer, where=resolved.origins["model"])
        if too_large is not None:
            return JobRejected(problems=[too_large])
    validated = JobValidated(
        job=job_to_data(resolved.job),
        origins=resolved.origins,
        warnings=resolved.warnings[:_WARNINGS_SHOWN],
        name=resolved.job.title if created.name is None else None,
    )
    size = len(msgspec.json.encode(validated))
    if size > MAX_EVENT_BODY_BYTES:
        problem = Problem(
            what=f"the job, with everything resolved, is {size} bytes",
            expected=f"at most {MAX_EVENT_BODY_BYTES}",
            fix="evaluate on fewer seeds, give long lists of training seeds as ranges, and data as files",
            where=created.config_name,
        )
        return JobRejected(problems=[problem])
    return validated


def _plugins_refused(resolved: ResolvedJob, allowed: Collection[str]) -> list[Problem]:
    problems = [
        plugin_refused(name, allowed, where=resolved.origins[field]) for field, name in resolved.job.plugins.items()
    ]
    return [problem for problem in problems if problem is not None]


def _document(created: JobCreated) -> Document:
    if created.config_format == "json":
        return read_data(msgspec.json.decode(created.config, type=dict[str, Any]), name=created.config_name)
    return read_toml(created.config, name=created.config_name)


def _kind(created: JobCreated) -> Kind | None:
    return created.kind if created.kind in ("rl", "sft", "eval") else None
