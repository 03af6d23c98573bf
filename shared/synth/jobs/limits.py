"""The largest job of this cluster: the memory and the concurrent work of its collector."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from synth.errors import Problem
from synth.methods.job import Job
from synth.settings import Settings


class JobLimitSettings(Settings):
    """The limits of one job."""

    max_concurrent_rollouts: int = Field(default=4096, ge=1)
    """The largest `max_concurrent_rollouts`, or `concurrency` of an evaluation, that a job may ask for: its collector
    has a task and a connection for each."""

    max_rollouts_an_iteration: int = Field(default=32_768, ge=1)
    """The most rollouts of one iteration, `batch_size` x `group_size`, and of one evaluation, its seeds times
    `rollouts_per_seed`: the collector of a job plans them at once."""

    max_rollout_retries: int = Field(default=100, ge=0)
    """The largest `max_retries` that a job may ask for."""

    max_rollout_timeout_s: float = Field(default=14_400.0, gt=0)
    """The largest `rollout_timeout_s` that a job may ask for: a job whose task app never answers keeps its places at
    the engine and the collector for so long, at each try."""


def beyond_limits(job: Job, limits: JobLimitSettings, origins: Mapping[str, str]) -> list[Problem]:
    """Return the problems of a resolved job that exceeds this cluster's limits. origins: of each value."""
    problems: list[Problem] = []

    def check(value: float, limit: float, what: str, setting: str, *keys: str) -> None:
        if value > limit:
            where = next((origins[key] for key in keys if origins.get(key, "default") != "default"), "")
            problems.append(
                Problem(
                    what=f"{what} is {_number(value)}",
                    expected=f"at most {_number(limit)} on this cluster",
                    fix=f"lower it, or have the operator raise {setting}",
                    where=where,
                )
            )

    if job.play is None:
        return problems
    for field, limit, what in (
        ("max_concurrent_rollouts", "max_concurrent_rollouts", "the number of rollouts at a time"),
        ("max_retries", "max_rollout_retries", "the number of retries of a rollout"),
        ("rollout_timeout_s", "max_rollout_timeout_s", "rollout_timeout_s"),
    ):
        setting = f"SYNTH_{limit.upper()}"
        check(getattr(job.play, field), getattr(limits, limit), what, setting, f"rollout.{field}")
    for what, rollouts, fields in job.rollout_counts:
        check(rollouts, limits.max_rollouts_an_iteration, what, "SYNTH_MAX_ROLLOUTS_AN_ITERATION", *fields)
    return problems


def _number(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else f"{value:,}"
