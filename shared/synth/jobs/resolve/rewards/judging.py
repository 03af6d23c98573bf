"""Who judges the rollouts of a job, by which rubric, and within which limits."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
from pydantic import BaseModel

from synth.base_url import base_url_fault
from synth.errors import Problem
from synth.jobs.parse.toml import Path
from synth.jobs.resolve.context import ResolveContext, is_written
from synth.jobs.schema.rewards import JudgeOptionsSection, JudgeSection, RubricSection
from synth.judging.rubric import rubric_from_table
from synth.judging.settings import Criterion, JudgeModel, Judging, Rubric
from synth.methods.rewards import RewardWeights

_OPTIONS = ("judge", "options")


class JudgeTables(NamedTuple):
    """The tables of a file that say how rollouts are judged. groups: whether each seed is played by a group."""

    judge: JudgeSection | None
    rubric: RubricSection | None
    groups: bool


def named_judges(tables: JudgeTables, context: ResolveContext) -> list[JudgeModel]:
    """Return the judges that the file names; none if it switches them off."""
    judge, rubric = tables.judge, tables.rubric
    if judge is not None and judge.enabled is False:
        return []
    options = judge.options if judge is not None else None
    by_options = options is not None and options.model is not None
    of_rubric = rubric is not None and rubric.enabled is not False and rubric.model is not None
    if rubric is not None and of_rubric and options is not None and rubric.model == options.model:
        # One judge, named twice: the address is the published platform's own.
        of_rubric = False
        for key in ("api_base", "api_key_env"):
            if is_written(rubric, key):
                context.warn(("rubric", key), "has no effect: [judge.options] names who serves the judge's model")
    ways = [by_options, of_rubric, bool(judge and judge.judges)]
    if sum(ways) > 1:
        context.problem(
            ("judge", "judges") if ways[2] else ("rubric", "model"),
            "judges are named in several places",
            expected="one of [judge.options] model, [rubric] model and [[judge.judges]]",
            fix="list all of them in [[judge.judges]]",
        )
    if judge is not None and judge.judges:
        judges = [JudgeModel(**section.model_dump()) for section in judge.judges]
    elif options is not None and options.model is not None:
        provider = context.first("judge.provider", [(options, "provider"), (judge, "type")])
        context.origins.pop("judge.provider")
        judges = [JudgeModel(model=options.model, provider=provider)]
    elif of_rubric and rubric is not None and rubric.model is not None:
        judges = [JudgeModel(model=rubric.model, url=rubric.api_base, key=rubric.api_key_env)]
    else:
        if judge is not None and judge.enabled is True:
            context.problem(
                ("judge", "enabled"),
                "judging is on, and no judge is named",
                expected="[judge.options] provider and model, or [[judge.judges]]",
            )
        _warn_of_no_judge(tables, context)
        return []
    place: Path = ("judge", "judges") if ways[2] else _OPTIONS if by_options else ("rubric",)
    context.record("rewards.judging.judges", judges, context.document.where(place))
    for number, named in enumerate(judges):
        _check_judge(named, (*place, number) if ways[2] else place, context)
    return judges


def _warn_of_no_judge(tables: JudgeTables, context: ResolveContext) -> None:
    """Warn of the keys that would configure the judges, if any were named."""
    options = tables.judge.options if tables.judge is not None else None
    rubric = None if tables.rubric is not None and tables.rubric.enabled is False else tables.rubric
    for table, passed in ((tables.judge, ("options", "reward_blend")), (options, ()), (rubric, ("weights",))):
        if table is None:
            continue
        for key in sorted(table.model_fields_set):
            if key not in passed and is_written(table, key):
                context.warn(context.at(table, key), "has no effect: no judge is named")


def _check_judge(judge: JudgeModel, place: Path, context: ResolveContext) -> None:
    if (judge.provider is None) == (judge.url is None):
        context.problem(
            place,
            f"the judge {judge.model!r} has {'both a provider and a url' if judge.url else 'neither provider nor url'}",
            expected='provider (one of the cluster\'s, or "synth"), or the address of an API of your own',
        )
    elif judge.url is not None and (fault := base_url_fault(judge.url)):
        what = f"{judge.url[:80]!r} is not the address of an API: it {fault}"
        context.problem(place, what, expected="such as https://…/v1")
    if judge.key is not None and judge.url is None:
        context.problem(place, "key opens an API of your own, and the judge has a provider", expected="url, or no key")


def resolve_judging(
    tables: JudgeTables, judges: list[JudgeModel], weights: RewardWeights, context: ResolveContext
) -> Judging:
    """Return the settings of these judges: their tasks and the limits on their calls."""
    judge = context.table(tables.judge, JudgeSection, ("judge",))
    options = context.table(judge.options, JudgeOptionsSection, _OPTIONS)
    if options.metadata:
        context.problem(
            (*_OPTIONS, "metadata"), "the cluster calls the judges, and metadata is sent nowhere", fix="remove it"
        )

    def take(key: str, *named: tuple[BaseModel, str]) -> Any:
        return context.first(f"rewards.judging.{key}", list(named))

    event = take("event", (options, "event"))
    outcome = take("outcome", (options, "outcome"))
    event = weights.event > 0 if event is None else event
    outcome = weights.outcome > 0 or not event if outcome is None else outcome
    for name, scored in (("event", event), ("outcome", outcome)):
        if getattr(weights, name) and not scored:
            context.problem(
                (*_OPTIONS, name),
                f"{name} = false, and [rubric.weights] {name} = {getattr(weights, name):g} pays it",
                expected="one of the two",
            )
    if not event and not outcome:
        context.problem((*_OPTIONS, "event"), "the judges have nothing to score", expected="event or outcome true")
    if judge.ranking and not tables.groups:
        context.problem(
            ("judge", "ranking"), "an evaluation plays each seed once, so there is no group to rank", fix="remove it"
        )
    if judge.ranking and not outcome:
        context.problem(("judge", "ranking"), "a ranking is a score of the outcome", expected="outcome = true")
    return Judging(
        judges=judges,
        rubric=_rubric(tables.rubric, options, context, event=event, outcome=outcome),
        event=event,
        outcome=outcome,
        ranking=take("ranking", (judge, "ranking")),
        **resolve_limits(tables, judges, context),
    )


def resolve_limits(tables: JudgeTables, judges: list[JudgeModel], context: ResolveContext) -> dict[str, Any]:
    """Return the limits on the number and the time of calls: the fields of `Judging` with these names."""
    judge = context.table(tables.judge, JudgeSection, ("judge",))
    options = context.table(judge.options, JudgeOptionsSection, _OPTIONS)
    if judge.max_cost is not None and all(j.url is not None or j.provider == "synth" for j in judges):
        context.problem(
            ("judge", "max_cost"),
            f"max_cost = {judge.max_cost:g} counts by the prices of SYNTH_JUDGE_PROVIDERS, and no judge is of one",
            expected="a judge of a provider with prices, or max_calls",
            fix="set max_calls in its place",
        )

    prefix = "rewards.judging."
    return {
        **context.copied(Judging, judge, prefix, leaving=("judges", "ranking", "timeout_s")),
        "max_concurrency": context.take(f"{prefix}max_concurrency", options, "max_concurrency"),
        "timeout_s": context.first(f"{prefix}timeout_s", [(options, "timeout_s"), (judge, "timeout_s")]),
    }


def _rubric(
    section: RubricSection | None,
    options: JudgeOptionsSection,
    context: ResolveContext,
    *,
    event: bool,
    outcome: bool,
) -> Rubric | None:
    """Return the file's rubric; None if the task app's own is applied."""
    context.record("rewards.judging.rubric", None, "default")
    place: Path = (*_OPTIONS, "rubric_overrides")
    table: dict[str, Any] = dict(options.rubric_overrides or {})
    own = {
        track: {"criteria": result.criteria}
        for track in ("event", "outcome")
        if section is not None and (result := getattr(section, track)) is not None and result.criteria
    }
    if table:
        for track in own:
            context.warn(("rubric", track, "criteria"), "has no effect: [judge.options] rubric_overrides decides")
    elif own:
        table, place = own, ("rubric",)
    named = options.rubric_id or next(
        (t.rubric_id for t in (section.event, section.outcome) if t and t.rubric_id) if section else iter(()), None
    )
    if not table:
        if named is not None:
            context.problem(
                (*_OPTIONS, "rubric_id"),
                f"no rubric {named!r} is stored here",
                expected="its criteria, in [judge.options.rubric_overrides]",
                fix="write them there, or remove rubric_id: then the task app's own rubric is applied",
            )
        if options.tracks or options.weights:
            context.problem(
                (*_OPTIONS, "tracks" if options.tracks else "weights"),
                "tracks and weights are of criteria in the file, and the task app's own rubric is applied",
                expected="criteria in [judge.options.rubric_overrides]",
            )
        return None
    rubric = rubric_from_table(table, where=context.document.where(place))
    context.record("rewards.judging.rubric", rubric, context.document.where(place))
    if isinstance(rubric, Problem):
        context.problems.append(rubric)
        return None
    rubric = msgspec.structs.replace(
        rubric, event=_of_tracks(rubric.event, options), outcome=_of_tracks(rubric.outcome, options)
    )
    for name, wanted, criteria in (("event", event, rubric.event), ("outcome", outcome, rubric.outcome)):
        if wanted and not criteria:
            context.problem(
                place, f"the rubric has no criteria for the {name}, which is scored", expected=f"{name}.criteria"
            )
    return rubric


def _of_tracks(criteria: list[Criterion], options: JudgeOptionsSection) -> list[Criterion]:
    """Return the criteria of the tracks that are scored, with the weights of their tracks."""
    selected: list[Criterion] = []
    for criterion in criteria:
        track = criterion.id.partition(".")[0]
        factor = (options.weights or {}).get(track, 1.0)
        if (options.tracks is None or track in options.tracks) and factor > 0:
            selected.append(msgspec.structs.replace(criterion, weight=criterion.weight * factor))
    return selected
