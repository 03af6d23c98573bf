"""From a parsed job to a resolved one: a pure function, run by the validator service and by the client alike."""

from __future__ import annotations

from dataclasses import dataclass

from synth.errors import Problem, UserError
from synth.jobs.check import Kind, ParsedJob, in_file_order, parse_leniently
from synth.jobs.eval import EvalConfig
from synth.jobs.resolve_eval import resolve_eval
from synth.jobs.resolve_rl import resolve_rl
from synth.jobs.resolve_sft import resolve_sft
from synth.jobs.resolved import ResolvedJob
from synth.jobs.resolving import Overrides, Resolving
from synth.jobs.rl import RlConfig
from synth.jobs.toml import Document
from synth.models import Registry

__all__ = ["Overrides", "check_job", "resolve"]


@dataclass(frozen=True)
class _Outcome:
    job: ResolvedJob | None
    problems: list[Problem]


def resolve(parsed: ParsedJob, overrides: Overrides, registry: Registry, *, uploaded: bool = True) -> ResolvedJob:
    """Apply flags, registry and defaults. Raises UserError with every problem.

    uploaded: False before the upload, when a dataset may still be a path rather than a file id.
    """
    outcome = _resolve(parsed, overrides, registry, uploaded=uploaded)
    if outcome.job is None:
        raise UserError(in_file_order(outcome.problems))
    return outcome.job


def check_job(
    document: Document, *, overrides: Overrides, registry: Registry, kind: Kind | None = None, uploaded: bool = True
) -> ResolvedJob:
    """Check and resolve in one go, so that unknown keys and an unknown model are reported together.

    kind: where whoever sent the job already says it.
    """
    parsed, problems = parse_leniently(document, kind=kind)
    if parsed is None:
        raise UserError(in_file_order(problems))
    outcome = _resolve(parsed, overrides, registry, uploaded=uploaded)
    problems += outcome.problems
    if outcome.job is None or problems:
        raise UserError(in_file_order(problems))
    return outcome.job


def _resolve(parsed: ParsedJob, overrides: Overrides, registry: Registry, *, uploaded: bool) -> _Outcome:
    state = Resolving(parsed.document, overrides, registry, warnings=list(parsed.warnings))
    config = parsed.config
    if isinstance(config, RlConfig):
        job = resolve_rl(config, state)
    elif isinstance(config, EvalConfig):
        job = resolve_eval(config, state)
    else:
        job = resolve_sft(config, state, uploaded=uploaded)
    if job is None or state.problems:
        return _Outcome(None, state.problems)
    return _Outcome(ResolvedJob(job=job, origins=state.origins, warnings=state.warnings), [])
