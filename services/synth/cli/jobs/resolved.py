"""A job as the text of a job file that can be submitted again."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from synth.api.schemas import JobWithConfig
from synth.client.submission import LenientRegistry
from synth.errors import UserError
from synth.jobs.complete_file import complete_file, value_at
from synth.jobs.parse.kinds import Kind
from synth.jobs.parse.toml import read_data, read_toml
from synth.jobs.resolve.job import Overrides, validate_job
from synth.methods.job import job_from_data


def job_tables(stored: JobWithConfig) -> dict[str, Any] | None:
    """Return the submitted tables, with the values of flags and every default; None before the job is validated.

    Raises `NewerVersion` for a job with settings that this version does not have, `UserError` if this version refuses
    its file.
    """
    if stored.resolved is None or stored.config is None:
        return None
    job_from_data(stored.resolved)
    origins = stored.origins or {}
    flags = {field: value_at(stored.resolved, field) for field, origin in origins.items() if origin.startswith("--")}
    if stored.config.lstrip().startswith("{"):
        document = read_data(msgspec.json.decode(stored.config), name=stored.id)
    else:
        document = read_toml(stored.config, name=stored.id)
    overrides = Overrides(
        model=flags.get("model"),
        training_file=flags.get("training_file", flags.get("graded.training_file")),
        validation_file=flags.get("validation_file", flags.get("graded.validation_file")),
        task_url=flags.get("rollout.task_url"),
        examples=flags.get("examples"),
        seed=flags.get("seed"),
        allow_experimental=True,
    )
    report = validate_job(document, overrides=overrides, registry=LenientRegistry(), kind=cast("Kind", stored.kind))
    if report.problems:
        raise UserError(report.problems)
    return complete_file(report, stored.resolved)
