"""A job file, as a command line names it: read, and looked at on this machine alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from synth.api.limits import MAX_CONFIG_BYTES
from synth.cli.jobs.set_values import Assignment, set_values
from synth.cli.transfer.local_file import is_regular, open_once
from synth.cli.transfer.upload import check_readable
from synth.client.connections.config import ConfigValue
from synth.console.errors import UsageProblem
from synth.errors import Problem
from synth.jobs.parse.toml import Document
from synth.jobs.resolve.job import Overrides, ValidationReport, validate_job
from synth.methods.job import Job
from synth.models import Registry


@dataclass(frozen=True, kw_only=True)
class Flags:
    """The values of the command line that replace values of the file. settings: keys to write into the file's text."""

    model: str | None = None
    dataset: Path | None = None
    validation: Path | None = None
    task_url: ConfigValue | None = None
    examples: int | None = None
    seed: int | None = None
    allow_experimental: bool = False
    settings: tuple[Assignment, ...] = ()


def name_of(path: Path) -> str:
    """Return the name of a job file in messages."""
    return "stdin" if str(path) == "-" else str(path)


def read_config(path: Path) -> str:
    """Read a job file's text from a file or a pipe, `-` for standard input. Raises `UsageProblem`."""
    if path.is_dir() or (str(path) != "-" and not path.exists()):
        what = "this is a directory" if path.is_dir() else "there is no such file"
        fix = "`synthctl config init` writes one to start from"
        raise UsageProblem(what, expected="a TOML job file", fix=fix, where=str(path))
    is_regular(path, expected="a TOML job file, or a pipe")
    with open_once(path) as file:
        body = file.read(MAX_CONFIG_BYTES + 1)
    if len(body) > MAX_CONFIG_BYTES:
        what, expected = f"it has more than {MAX_CONFIG_BYTES:,} bytes", "a TOML job file"
        raise UsageProblem(what, expected=expected, where=name_of(path))
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        what = f"byte {error.start} is not UTF-8"
        raise UsageProblem(what, expected="a TOML job file in UTF-8", where=str(path)) from error


def validate_text(text: str, *, name: str, flags: Flags, registry: Registry) -> tuple[Document, ValidationReport]:
    """Check a job file on this machine: its keys, its values, the files that it names.

    Raises `UserError` for text that is no TOML, `UsageProblem` for a setting that cannot be put into it.
    """
    _, document = set_values(text, name=name, settings=flags.settings)
    url = flags.task_url
    if url is not None and url.origin != "--task-url" and "grader" in document.data:
        # The address for other jobs is no sign that a grader's job should use it.
        url = None
    overrides = Overrides(
        model=flags.model,
        training_file=_text(flags.dataset),
        validation_file=_text(flags.validation),
        task_url=url.text if url else None,
        examples=flags.examples,
        seed=flags.seed,
        allow_experimental=flags.allow_experimental,
    )
    report = validate_job(document, overrides=overrides, registry=registry, uploaded=False)
    if url is not None:
        problems = [
            msgspec.structs.replace(p, where=url.label) if p.where == "--task-url" else p for p in report.problems
        ]
        origins = {field: url.label if origin == "--task-url" else origin for field, origin in report.origins.items()}
        report = replace(report, problems=problems, origins=origins)
    if report.job is not None and (problems := _unreadable(report.job, report.origins)):
        report = replace(report, job=None, problems=problems)
    return document, report


def _unreadable(job: Job, origins: dict[str, str]) -> list[Problem]:
    """Return the problems of the files that a job names, each at the place that names it."""
    problems: list[Problem] = []
    for field, path in datasets_of(job):
        try:
            check_readable(path)
        except UsageProblem as error:
            problems += [msgspec.structs.replace(p, where=f"{origins[field]} {str(path)!r}") for p in error.problems]
    return problems


def datasets_of(job: Job) -> list[tuple[str, Path]]:
    """Return the datasets that are uploaded with a job: the field that names each, and its path."""
    return [(field, Path(file)) for _, file, field in job.files if not file.startswith("file_")]


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
