"""From a parsed job to a resolved one: a pure function, run by the validator service and by the client alike."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Required, TypedDict, Unpack

from synth.errors import Problem, UserError
from synth.jobs.parse.toml import Document, Path
from synth.jobs.parse.validate import Kind, ParsedJob, in_file_order, line_of, parse_leniently
from synth.jobs.resolve.context import Overrides, ResolveContext
from synth.jobs.resolve.eval import resolve_eval
from synth.jobs.resolve.filter import NOT_SUBMITTED, resolve_filter
from synth.jobs.resolve.rl import resolve_rl
from synth.jobs.resolve.sft import resolve_sft
from synth.jobs.schema.filter import FilterConfig
from synth.jobs.schema.rl import RlConfig
from synth.jobs.schema.sft import SftConfig
from synth.methods.job import Job, ResolvedJob, job_to_data
from synth.models import Registry

__all__ = ["Overrides", "ValidationReport", "require_job", "resolve_job", "validate_job"]


@dataclass(frozen=True)
class ValidationReport:
    """The result of checking a job file without running it.

    job: None if there are problems, and for a filter, which is no job of the cluster. values: every resolved value, as
    JSON data. origins: of each field by its dotted name. changed: fields whose value is not the one in the file, and
    why. keys: the key that sets a field, with its table, for fields that one key sets. data: the known
    keys of the file. replaced, defaults: as in `ResolveContext`.
    """

    kind: Kind | None
    job: Job | None
    problems: list[Problem]
    warnings: list[str] = field(default_factory=list[str])
    values: dict[str, Any] = field(default_factory=dict[str, Any])
    origins: dict[str, str] = field(default_factory=dict[str, str])
    changed: dict[str, str] = field(default_factory=dict[str, str])
    keys: dict[str, str] = field(default_factory=dict[str, str])
    data: dict[str, Any] = field(default_factory=dict[str, Any])
    replaced: dict[Path, Any] = field(default_factory=dict[Path, Any])
    defaults: dict[str, tuple[Path, Any]] = field(default_factory=dict[str, "tuple[Path, Any]"])


class ResolveOptions(TypedDict, total=False):
    """How a job file is resolved.

    kind: of the job, if its sender named it. uploaded: False before the upload, when a dataset may still be a path
    rather than a file id. python_graders: whether graders of type `python` are run; if not, they are refused unread.
    """

    overrides: Required[Overrides]
    registry: Required[Registry]
    kind: Kind | None
    uploaded: bool
    python_graders: bool


def validate_job(document: Document, **options: Unpack[ResolveOptions]) -> ValidationReport:
    """Check and resolve a job file in one pass: every problem and every warning is reported."""
    kind = options.get("kind")
    parsed, problems = parse_leniently(document, kind=kind)
    if parsed is None:
        return ValidationReport(kind, None, in_file_order(problems))
    python = options.get("python_graders", True)
    context = ResolveContext.of(parsed, options["overrides"], options["registry"], python_graders=python)
    return _report(parsed, problems, context, uploaded=options.get("uploaded", True))


def resolve_job(document: Document, **options: Unpack[ResolveOptions]) -> ResolvedJob:
    """Resolve a job as `validate_job` does. Raises UserError with every problem."""
    return require_job(validate_job(document, **options), document)


def require_job(report: ValidationReport, document: Document) -> ResolvedJob:
    """Return the job of a report on a document. Raises UserError with every problem."""
    if report.kind == "filter" and not report.problems:
        raise UserError(Problem(**NOT_SUBMITTED, where=document.where(("filter",))))
    if report.job is None:
        raise UserError(report.problems)
    return ResolvedJob(job=report.job, origins=report.origins, warnings=report.warnings)


def _report(parsed: ParsedJob, problems: list[Problem], context: ResolveContext, *, uploaded: bool) -> ValidationReport:
    config = parsed.config
    job: Job | None = None
    values: dict[str, Any] = {}
    match config:
        case RlConfig():
            job = resolve_rl(config, context, uploaded=uploaded)
        case FilterConfig():
            values = resolve_filter(config, context)
        case SftConfig():
            job = resolve_sft(config, context, uploaded=uploaded)
        case _:
            job = resolve_eval(config, context)
    problems = in_file_order([*problems, *context.problems])
    warnings = sorted(context.warnings, key=line_of)
    if problems:
        return ValidationReport(parsed.kind, None, problems, warnings)
    if job is not None:
        values = job_to_data(job)
    return ValidationReport(
        parsed.kind,
        job,
        [],
        warnings,
        values,
        origins=context.origins,
        changed=context.changed,
        keys=context.keys,
        data=parsed.data,
        replaced=context.replaced,
        defaults=context.defaults,
    )
