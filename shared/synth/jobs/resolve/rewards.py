"""What a rollout earns: the environment's steps, the weights of the sources, and the credit that each turn gets."""

from __future__ import annotations

from typing import Any, Literal, cast

from pydantic import BaseModel

from synth.jobs.parse.toml import Path
from synth.jobs.resolve.context import ResolveContext, is_written
from synth.jobs.resolve.judging import JudgeTables, named_judges, resolve_judging
from synth.jobs.resolved import Loss
from synth.jobs.rewards import RewardSettings, RewardWeights, StepRewards
from synth.jobs.schema.eval import EvalConfig, FlatEvalConfig
from synth.jobs.schema.rewards import RewardsSection
from synth.jobs.schema.rl import RlConfig, RolloutSection
from synth.judging.settings import Judging

_WEIGHTS = ("env", "event", "outcome")
#: Keys of `[training]` that the task app is given, under its own names.
_OF_THE_APP = {
    "step_rewards_strategy": "strategy",
    "step_rewards_indicator_lambda": "indicator_lambda",
    "step_rewards_weights": "weights",
    "step_rewards_k_limits": "k_limits",
}
_PER_ACHIEVEMENT = ("per_achievement", "complex")


def resolve_rewards(config: RlConfig, loss: Loss, context: ResolveContext) -> RewardSettings:
    """The rewards of an RL job, collecting problems in `context`."""
    steps = _steps(config, context)
    weights, scores, judging = _sources(JudgeTables(config.judge, config.rubric, groups=True), config.rollout, context)
    per_turn = steps is not None or weights.event > 0
    return RewardSettings(
        steps=steps,
        weights=weights,
        scores=scores,
        judging=judging,
        turn_discount=_turn_discount(config, loss, context, per_turn=per_turn),
    )


def resolve_eval_rewards(config: EvalConfig | FlatEvalConfig, context: ResolveContext) -> RewardSettings:
    """The rewards of an evaluation: the environment's, blended with the judges' scores where there are any."""
    judge = config.judge if isinstance(config, EvalConfig) else None
    weights, scores, judging = _sources(JudgeTables(judge, config.rubric, groups=False), None, context)
    for key in ("steps", "turn_discount"):
        context.record(f"rewards.{key}", None, "default")
    return RewardSettings(weights=weights, scores=scores, judging=judging)


def _tables(config: RlConfig) -> list[RewardsSection]:
    nested = config.training.rewards
    return [config.training, *([nested] if nested is not None else [])]


def _steps(config: RlConfig, context: ResolveContext) -> StepRewards | None:
    tables = _tables(config)

    def take(field: str, key: str) -> Any:
        return context.first(f"rewards.steps.{field}", [(table, key) for table in tables])

    def look(field: str, key: str) -> tuple[Any, str]:
        value = take(field, key)
        return value, context.origins.pop(f"rewards.steps.{field}")

    mode, mode_origin = look("mode", "step_rewards_mode")
    enabled, enabled_origin = look("enabled", "step_rewards_enabled")
    if not _steps_are_on(enabled, mode):
        if enabled is None and mode is None:
            _refuse_details(tables, context)
        return context.record("rewards.steps", None, enabled_origin if enabled is not None else mode_origin)
    strategy, _ = look("strategy", "step_rewards_strategy")
    kind = take("kind", "event_rewards_kind") or "unique"
    for key in ("step_rewards_weights", "step_rewards_k_limits"):
        if getattr(config.training, key) and strategy not in _PER_ACHIEVEMENT:
            context.problem(
                ("training", key),
                f"{key} is for the strategy per_achievement, and step_rewards_strategy is {strategy!r}",
                expected='step_rewards_strategy = "per_achievement"',
                fix="set it, or remove this key",
            )
    if kind == "absolute" and strategy in _PER_ACHIEVEMENT:
        context.problem(
            _written(tables, "event_rewards_kind", context),
            f"event_rewards_kind = 'absolute' counts each achievement alike, and strategy {strategy!r} weighs them",
            expected="one of the two",
            fix='remove event_rewards_kind, or set step_rewards_strategy = "consistent"',
        )
    return StepRewards(
        mode=context.record("rewards.steps.mode", mode or "decision_stepwise", mode_origin),
        kind=kind,
        indicator_lambda=take("indicator_lambda", "step_rewards_indicator_lambda") or 0.0,
        beta=take("beta", "step_rewards_beta") or 0.0,
    )


def _steps_are_on(enabled: bool | None, mode: str | None) -> bool:
    return enabled is not False and mode != "off" and (enabled is True or mode is not None)


def _refuse_details(tables: list[RewardsSection], context: ResolveContext) -> None:
    """Keys of step rewards that nobody has switched on. One that only names the default says nothing."""
    for key in (*_OF_THE_APP, "step_rewards_beta", "event_rewards_kind"):
        for table in tables:
            value = getattr(table, key, None)
            if value in (None, 0, "unique", {}):
                continue
            context.problem(
                context.at(table, key),
                f"{key} = {value!r} has no effect: step rewards are off",
                expected="step_rewards_enabled = true",
                fix="set it, or remove this key",
            )


def given_step_rewards(
    config: RlConfig, policy: dict[str, Any], env: dict[str, Any], context: ResolveContext
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The configurations of policy and environment with what the task app has to know of the job's step rewards.

    It goes into the table `step_rewards` that the file has for the app, else into that of the policy. A key that both
    have with two values is a problem.
    """
    tables = _tables(config)
    enabled = next((t.step_rewards_enabled for t in tables if t.step_rewards_enabled is not None), None)
    mode = next((t.step_rewards_mode for t in tables if t.step_rewards_mode is not None), None)
    if not _steps_are_on(enabled, mode):
        return policy, env
    wanted: dict[str, Any] = {"enabled": True, "mode": mode or "decision_stepwise"}
    for key, name in _OF_THE_APP.items():
        value = next((v for t in tables if (v := getattr(t, key, None)) is not None), None)
        if value is not None:
            wanted[name] = value
    own = {"policy": policy.get("step_rewards"), "env": env.get("step_rewards")}
    for place, table in own.items():
        for name, value in wanted.items():
            other = cast(dict[str, Any], table).get(name, value) if isinstance(table, dict) else value
            if other != value and not _same_strategy(name, value, other):
                context.problem(
                    ("rollout", f"{place}_config", "step_rewards", name),
                    f"the task app would be given step_rewards.{name} = {other!r} and, by [training], {value!r}",
                    expected="one value",
                    fix="remove one of the two",
                )
    if isinstance(own["policy"], dict):
        return policy | {"step_rewards": wanted | cast(dict[str, Any], own["policy"])}, env
    if isinstance(own["env"], dict):
        return policy, env | {"step_rewards": wanted | cast(dict[str, Any], own["env"])}
    return policy | {"step_rewards": wanted}, env


def _same_strategy(name: str, a: Any, b: Any) -> bool:
    """Whether two words for a strategy mean the same one."""
    return name == "strategy" and (a in _PER_ACHIEVEMENT) == (b in _PER_ACHIEVEMENT)


def _sources(
    tables: JudgeTables, rollout: RolloutSection | None, context: ResolveContext
) -> tuple[RewardWeights, Literal["none", "task_app", "judges"], Judging | None]:
    """The weights, who gives the scores, and how judges do."""
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
    found = {key: context.first(f"rewards.weights.{key}", [(table, key) for table in named]) for key in _WEIGHTS}
    if not any(found.values()):
        context.problem(_weights_place(tables), "every weight is 0, so every reward is", expected="one weight above 0")
        return RewardWeights()
    return RewardWeights(**{key: float(value) for key, value in found.items()})


def _turn_discount(config: RlConfig, loss: Loss, context: ResolveContext, *, per_turn: bool) -> float | None:
    tables = _tables(config)
    credit = context.first("rewards.turn_credit", [(table, "turn_credit") for table in tables])
    discount = context.first("rewards.turn_discount", [(table, "turn_discount") for table in tables])
    origin = context.origins.pop("rewards.turn_credit")
    by_turn = credit == "return_to_go" or (credit is None and per_turn and loss != "gspo")
    if discount is not None and not by_turn:
        context.problem(
            _written(tables, "turn_discount", context),
            f"turn_discount = {discount:g} has no effect: a token has the advantage of its whole rollout",
            expected='turn_credit = "return_to_go"',
            fix="set it, or remove turn_discount",
        )
    if credit == "return_to_go":
        place = _written(tables, "turn_credit", context)
        if loss == "gspo":
            context.problem(
                place,
                "gspo has one advantage for a whole sequence, and turn_credit = 'return_to_go' gives each turn its own",
                expected='[training] loss = "gspo_token", "grpo" or "dppo"',
                fix='set loss = "gspo_token", or remove turn_credit',
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


def _written(tables: list[RewardsSection], key: str, context: ResolveContext) -> Path:
    """Where a key stands, in the first of the tables that has it."""
    return context.at(next((t for t in tables if is_written(t, key)), tables[0]), key)
