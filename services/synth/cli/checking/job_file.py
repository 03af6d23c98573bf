"""Find the problems for which the cluster would refuse a job: for `config check`, and before a submission.

The file is checked on this machine, then its datasets, line by line. The cluster checks what only it can: its models
and the uploaded files. Without a cluster, a warning names the values that were not checked.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from synth.chat.template_source import RenderOptions
from synth.cli.checking.cluster import AskedCluster
from synth.cli.checking.dataset import check_dataset, render_dataset
from synth.cli.jobs.files import Flags, datasets_of, name_of, read_config, validate_text
from synth.cli.submission import CheckedJob
from synth.cli.transfer.local_file import local_file
from synth.cli.tui import output
from synth.client.submission import LenientRegistry
from synth.datasets.refused import images_refused, rows_refused
from synth.datasets.sources import source_files
from synth.errors import NewerVersion, Problem, UserError
from synth.jobs.resolve.job import ValidationReport
from synth.methods.job import job_from_data
from synth.models import Registry, parse_finetuned


@dataclass(frozen=True)
class JobFile:
    """A job file's name, the outcome of its check, and further warnings."""

    name: str
    found: ValidationReport
    warnings: list[str] = field(default_factory=list[str])


def examine(file: Path, flags: Flags, models_dir: Path) -> JobFile:
    """Look at a file on this machine alone. Raises `UserError`, `UsageProblem`."""
    # A registry of this machine has all of the cluster's models; without one, only the cluster can check the model.
    elsewhere = LenientRegistry()
    registry = Registry(models_dir) if models_dir.is_dir() else elsewhere
    _, result = validate_text(read_config(file), name=name_of(file), flags=flags, registry=registry)
    unsure = [f"{p.where}: {p.what} on this machine; the cluster decides" for p in elsewhere.unknown_models]
    return JobFile(name_of(file), result, unsure)


def check(file: Path, flags: Flags, models_dir: Path, cluster: AskedCluster) -> JobFile:
    """Look at a file, at its datasets, and ask the cluster. Raises `UserError`, `UsageProblem`."""
    name, text = name_of(file), read_config(file)
    # A model of this machine shows nothing about the model of a cluster elsewhere.
    registry = LenientRegistry(models_dir if cluster.here else None)
    _, result = validate_text(text, name=name, flags=flags, registry=registry)
    if result.job is None:
        return JobFile(name, result)
    return check_job(CheckedJob.of(text, name=name, flags=flags, found=result), models_dir, cluster)


def require_fit(job: CheckedJob, models_dir: Path, cluster: AskedCluster) -> None:
    """Check a job before anything of it is sent, and print the cluster's warnings. Raises `UserError`."""
    looked = check_job(job, models_dir, cluster)
    for warning in looked.found.warnings:
        if warning not in job.found.warnings:
            output.warn(warning)
    if cluster.unasked:
        output.warn(f"the cluster could not check the job before it is submitted ({cluster.unasked})")
    if looked.found.problems:
        raise UserError(looked.found.problems)


def check_job(job: CheckedJob, models_dir: Path, cluster: AskedCluster) -> JobFile:
    """Ask the cluster about a job whose file is right, and look at its datasets. Raises `UserError`, `UsageProblem`."""
    name, report = job.name, job.found
    answer = cluster.check(job)
    if answer is None:
        registry = Registry(models_dir) if cluster.here and models_dir.is_dir() else LenientRegistry()
        _, report = validate_text(job.text, name=name, flags=replace(job.flags, settings=()), registry=registry)
        return _looked_at_datasets(JobFile(name, report, _not_asked(report, registry, cluster.unasked)))
    problems = [msgspec.structs.replace(p, where=report.origins.get(p.where, p.where)) for p in answer.problems]
    report = replace(
        report,
        problems=problems,
        warnings=[*report.warnings, *(w for w in answer.warnings if w not in report.warnings)],
    )
    warnings = [f"{id} is still being checked: the problems of its lines are not known yet" for id in answer.unchecked]
    looked = JobFile(name, report, warnings)
    try:
        sees = None if answer.resolved is None else job_from_data(answer.resolved).vision is not None
    except NewerVersion:
        sees = None  # the cluster decides about images
    return _looked_at_datasets(looked, sees=sees, rendering=answer.rendering)


def _looked_at_datasets(
    looked: JobFile, *, sees: bool | None = None, rendering: RenderOptions | None = None
) -> JobFile:
    """Look at the datasets that are still files of this machine.

    sees: whether the model sees images, if known. rendering: how the cluster renders their rows, if known.
    """
    job = looked.found.job
    if job is None or job.rows not in ("conversations", "pairs"):
        return looked
    problems: list[Problem] = []
    warnings: list[str] = []
    for _, path in datasets_of(job):
        total = sum(file.stat().st_size for file in source_files(local_file(path)))
        with output.status(f"checking {path} ({output.size(total)})") as status:
            report = check_dataset(path, read=lambda n, p=path, t=total: status(f"checking {p}: {100 * n // t} %"))
        problems += report.problems
        wrong = rows_refused(
            path.name,
            pairs=report.pairs,
            dpo=job.rows == "pairs",
            unanswered=report.unanswered,
            where=str(path),
        )
        if not report.problems and wrong is not None:
            problems.append(wrong)
        elif not report.problems and rendering is not None and not (report.image_rows and not rendering.sees):
            with output.status(f"rendering {path} ({output.size(total)})") as status:
                rendered = render_dataset(
                    path, rendering, read=lambda n, p=path, t=total: status(f"rendering {p}: {100 * n // t} %")
                )
            problems += rendered
        if not report.problems and report.image_rows and sees is False:
            problems.append(images_refused(path.name, job.model, where=str(path)))
        elif not report.problems and report.image_rows:
            warnings.append(f"{path}: {report.image_rows:,} rows show images, which only the cluster looks at")
    merged = replace(looked.found, problems=[*looked.found.problems, *problems])
    return replace(looked, found=merged, warnings=[*looked.warnings, *warnings])


def _not_asked(found: ValidationReport, registry: Registry, reason: str) -> list[str]:
    """Return warnings about the values that only the cluster could have checked."""
    job = found.job
    if job is None:
        return []
    unseen: list[tuple[str, str]] = []
    if registry.find(job.model).path is None or parse_finetuned(job.model) is not None:
        unseen.append((found.origins["model"], f"the model {job.model!r}"))
    unseen += [(found.origins[field], f"the file {id!r}") for _, id, field in job.files if id.startswith("file_")]
    return [f"{where}: {what} was not checked by the cluster ({reason})" for where, what in unseen]
