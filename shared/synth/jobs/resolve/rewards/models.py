"""Resolve the judges that a job's grader calls: the file must name each of its models."""

from __future__ import annotations

from collections import Counter

from pydantic import BaseModel

from synth.jobs.parse.toml import Path
from synth.jobs.resolve.context import ResolveContext, is_written
from synth.jobs.resolve.rewards.judging import JudgeTables, named_judges, resolve_limits
from synth.jobs.schema.rl import RlConfig
from synth.judging.settings import Judging

_NAMED = '[[judge.judges]] model = "…", with provider = "synth" for a model of this cluster, another provider, or a url'
#: Keys of `[judge.options]` and of `[judge]` that say how a rubric is applied.
_OF_RUBRICS = ("event", "outcome", "rubric_id", "rubric_overrides", "tracks", "weights", "metadata")


def resolve_grader_judging(models: list[str], config: RlConfig, context: ResolveContext) -> Judging | None:
    """Return how the models of `[grader]` are called; None if no judge is named. models: each once."""
    _check_no_rubric(config, context)
    tables = JudgeTables(config.judge, None, groups=False)
    judges = named_judges(tables, context)
    named = Counter(judge.model for judge in judges)
    place: Path = ("judge", "judges") if config.judge is not None and config.judge.judges else ("judge", "options")
    for model in models:
        if named[model] != 1:
            what = "no judge is named so" if not named[model] else f"{named[model]} judges are named so"
            context.problem(
                ("grader",) if not named[model] else place,
                f"the grader asks {model[:80]!r}, and {what}",
                expected=f"one: {_NAMED}",
            )
    for judge in judges:
        if judge.model not in models:
            context.problem(
                place,
                f"the judge {judge.model[:80]!r} is called by no grader",
                expected=f"a judge for each of {', '.join(models)[:200]}",
                fix="remove it",
            )
        if judge.weight != 1.0:
            what = "weights average judges, and each model of [grader] gives a score of its own"
            context.problem(place, what, fix="remove it, and weigh the scores in calculate_output")
    if not judges:
        return context.record("rewards.judging", None, "default")
    for key in ("rubric", "event", "outcome", "ranking"):
        context.record(f"rewards.judging.{key}", None, "default")
    return Judging(judges=judges, outcome=False, **resolve_limits(tables, judges, context))


def _check_no_rubric(config: RlConfig, context: ResolveContext) -> None:
    """Report settings that would have the rollouts judged by a rubric as well as by the grader."""
    judge, options = config.judge, config.judge.options if config.judge else None
    written: list[tuple[BaseModel | None, str, Path]] = [
        (config, "rubric", ("rubric",)),
        *((options, key, ("judge", "options", key)) for key in _OF_RUBRICS),
        (judge, "reward_blend", ("judge", "reward_blend")),
        (judge, "ranking", ("judge", "ranking")),
        (config.rollout, "rubric_rewards_only", ("rollout", "rubric_rewards_only")),
        (config.rollout, "task_app_origin_rewards_only", ("rollout", "task_app_origin_rewards_only")),
    ]
    for table, key, path in written:
        if table is not None and is_written(table, key) and getattr(table, key) is not False:
            context.problem(
                path,
                f"{key} has the rollouts judged by a rubric, and this grader calls the judges itself",
                expected="a rubric, or score_model and label_model",
                fix="remove one of them",
            )
