"""Resolve the rewards of a rollout: the weights of the sources, and the credit of each turn."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from synth.jobs.parse.toml import Path
from synth.jobs.resolve.context import ResolveContext
from synth.jobs.resolve.rewards.judging import JudgeTables, named_judges, resolve_judging
from synth.jobs.resolve.rewards.models import resolve_grader_judging
from synth.jobs.resolve.rewards.steps import resolve_steps, reward_tables, written_at
from synth.jobs.schema.eval import EvalConfig, EvalRolloutSection, FlatEvalConfig
from synth.jobs.schema.rl import RlConfig, RolloutSection
from synth.judging.settings import Judging
from synth.methods.losses import find_spec, list_losses
from synth.methods.rewards import RewardSettings, RewardWeights
from synth.methods.rl import Loss

_WEIGHTS = ("env", "event", "outcome")


def resolve_rewards(config: RlConfig, loss: Loss, models: list[str], context: ResolveContext) -> RewardSettings:
    """Return the rewards of an RL job, collecting problems in `context`. models: the models that its grader calls."""
    steps = resolve_steps(config, context)
    if models:
        weights, scores = _weights(JudgeTables(None, None, groups=True), context), "grader"
        judging = resolve_grader_judging(models, config, context)
        context.record("rewards.scores", scores, context.document.where(("grader",)))
    else:
        tables = JudgeTables(config.judge, config.rubric, groups=True)
        weights, scores, judging = _sources(tables, config.rollout, context)
    per_turn = steps is not None or weights.event > 0
    return RewardSettings(
        steps=steps,
        weights=weights,
        scores=scores,
        judging=judging,
        turn_discount=_turn_discount(config, loss, context, per_turn=per_turn),
    )


def resolve_eval_rewards(config: EvalConfig | FlatEvalConfig, context: ResolveContext) -> RewardSettings:
    """Return the rewards of an evaluation: the environment's, blended with the judges' scores if there are judges."""
    judge = config.judge if isinstance(config, EvalConfig) else None
    weights, scores, judging = _sources(JudgeTables(judge, config.rubric, groups=False), config.rollout, context)
    for key in ("steps", "turn_discount"):
        context.record(f"rewards.{key}", None, "default")
    return RewardSettings(weights=weights, scores=scores, judging=judging)


def _sources(
    tables: JudgeTables, rollout: RolloutSection | EvalRolloutSection | None, context: ResolveContext
) -> tuple[RewardWeights, Literal["none", "task_app", "judges"], Judging | None]:
    """Return the weights, the source of the scores, and the settings of the judges."""
    of_the_app = rollout is not None and rollout.task_app_origin_rewards_only is True
    rubric_only = rollout is not None and rollout.rubric_rewards_only is True
    weights = _weights(tables, context)
    if rubric_only:
        place: Path = ("rollout", "rubric_rewards_only")
        if of_the_app:
            context.problem(place, "rubric_rewards_only and task_app_origin_rewards_only are both true", expected="one")
        if not (weights.event or weights.outcome):
            context.problem(
                place,
                "rubric_rewards_only = true leaves the environment's reward out, and nothing else has a weight",
                expected="[rubric.weights] event or outcome above 0",
            )
        weights = RewardWeights(env=0.0, event=weights.event, outcome=weights.outcome)
        context.record("rewards.weights.env", 0.0, context.document.where(place))
    if rollout is not None:
        context.take("rewards.scores", rollout, "task_app_origin_rewards_only")
    else:
        context.record("rewards.scores", "none", "default")
    judges = [] if of_the_app else named_judges(tables, context)
    if judges:
        judging = resolve_judging(tables, judges, weights, context)
        context.record("rewards.scores", "judges", context.origins["rewards.judging.judges"])
        return weights, "judges", judging
    context.record("rewards.judging", None, "default")
    if not of_the_app and (weights.event or weights.outcome):
        context.problem(
            _weights_place(tables),
            f"the weights pay scores of events ({weights.event:g}) and of the outcome ({weights.outcome:g}), and no "
            "judge is named that would give them",
            expected="[judge.options] provider and model, or [[judge.judges]]",
            fix="name a judge, or let the task app's own scores count: [rollout] task_app_origin_rewards_only = true",
        )
    return weights, "task_app" if of_the_app else "none", None


def _weights_place(tables: JudgeTables) -> Path:
    blend = tables.judge is not None and tables.judge.reward_blend is not None
    written = tables.rubric is not None and tables.rubric.weights is not None
    return ("rubric", "weights") if written or not blend else ("judge", "reward_blend")


def _weights(tables: JudgeTables, context: ResolveContext) -> RewardWeights:
    rubric, judge = tables.rubric, tables.judge
    named: list[BaseModel | None] = [
        rubric.weights if rubric is not None and rubric.enabled is not False else None,
        judge.reward_blend if judge is not None and judge.enabled is not False else None,
    ]
    if all(table is None for table in named):
        for key in _WEIGHTS:
            context.record(f"rewards.weights.{key}", getattr(RewardWeights(), key), "default")
        return RewardWeights()
    weights = {key: context.first(f"rewards.weights.{key}", [(table, key) for table in named]) for key in _WEIGHTS}
    if not any(weights.values()):
        context.problem(_weights_place(tables), "every weight is 0, so every reward is", expected="one weight above 0")
        return RewardWeights()
    return RewardWeights(**{key: float(value) for key, value in weights.items()})


def _turn_discount(config: RlConfig, loss: Loss, context: ResolveContext, *, per_turn: bool) -> float | None:
    tables = reward_tables(config)
    credit = context.first("rewards.turn_credit", [(table, "turn_credit") for table in tables])
    discount = context.first("rewards.turn_discount", [(table, "turn_discount") for table in tables])
    origin = context.origins.pop("rewards.turn_credit")
    of_plugin = config.training.advantage is not None
    by_turn = credit == "return_to_go" or (credit is None and per_turn and find_spec(loss).per_token and not of_plugin)
    if discount is not None and not by_turn:
        context.problem(
            written_at(tables, "turn_discount", context),
            f"turn_discount = {discount:g} has no effect: a token has the advantage of its whole rollout",
            expected='turn_credit = "return_to_go"',
            fix="set it, or remove turn_discount",
        )
    if credit == "return_to_go":
        place = written_at(tables, "turn_credit", context)
        if not find_spec(loss).per_token:
            context.problem(
                place,
                f"{loss} has one advantage for a whole sequence, and turn_credit = 'return_to_go' gives each turn its "
                "own",
                expected=f"[training] loss = {list_losses(per_token=True)}",
                fix='set loss = "gspo_token", or remove turn_credit',
            )
        if of_plugin:
            context.problem(
                place,
                "turn_credit = 'return_to_go' gives each turn an advantage, and [training] advantage each rollout",
                expected="one of the two",
                fix="remove turn_credit, or advantage",
            )
        if not per_turn:
            context.problem(
                place,
                "no turn has a reward of its own: step rewards are off, and events have no weight",
                expected="step_rewards_enabled = true, or [rubric.weights] event above 0",
                fix="set one of them, or remove turn_credit",
            )
    if not by_turn:
        return context.record("rewards.turn_discount", None, origin)
    return 1.0 if discount is None else float(discount)
