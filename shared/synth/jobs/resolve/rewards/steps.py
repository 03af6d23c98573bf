"""Resolve the rewards of single turns, and the settings that the task app needs for them."""

from __future__ import annotations

from typing import Any, cast

from synth.jobs.parse.toml import Path
from synth.jobs.resolve.context import ResolveContext, is_written
from synth.jobs.schema.rewards import RewardsSection
from synth.jobs.schema.rl import RlConfig
from synth.methods.rewards import StepRewards

#: Keys of `[training]` that the task app is given, under its own names.
_OF_THE_APP = {
    "step_rewards_strategy": "strategy",
    "step_rewards_indicator_lambda": "indicator_lambda",
    "step_rewards_weights": "weights",
    "step_rewards_k_limits": "k_limits",
}
_PER_ACHIEVEMENT = ("per_achievement", "complex")


def reward_tables(config: RlConfig) -> list[RewardsSection]:
    """Return the tables that may have the keys of `[training.rewards]`; the first ones take precedence."""
    nested = config.training.rewards
    return [config.training, *([nested] if nested is not None else [])]


def resolve_steps(config: RlConfig, context: ResolveContext) -> StepRewards | None:
    """Return the rewards of single steps; None if they are off."""
    tables = reward_tables(config)

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
            written_at(tables, "event_rewards_kind", context),
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
    """Report keys of step rewards that are switched off. A key that only repeats the default is not reported."""
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
    """Return the configurations of policy and environment with the job's step rewards, as the task app needs them.

    They go into the file's own table `step_rewards` for the app, else into a new one for the policy. A key to which
    both give another value is a problem.
    """
    tables = reward_tables(config)
    enabled = next((t.step_rewards_enabled for t in tables if t.step_rewards_enabled is not None), None)
    mode = next((t.step_rewards_mode for t in tables if t.step_rewards_mode is not None), None)
    if not _steps_are_on(enabled, mode):
        return policy, env
    settings: dict[str, Any] = {"enabled": True, "mode": mode or "decision_stepwise"}
    for key, name in _OF_THE_APP.items():
        value = next((v for t in tables if (v := getattr(t, key, None)) is not None), None)
        if value is not None:
            settings[name] = value
    own = {"policy": policy.get("step_rewards"), "env": env.get("step_rewards")}
    for place, table in own.items():
        for name, value in settings.items():
            other = cast(dict[str, Any], table).get(name, value) if isinstance(table, dict) else value
            if other != value and not _same_strategy(name, value, other):
                context.problem(
                    ("rollout", f"{place}_config", "step_rewards", name),
                    f"the task app would be given step_rewards.{name} = {other!r} and, by [training], {value!r}",
                    expected="one value",
                    fix="remove one of the two",
                )
    if isinstance(own["policy"], dict):
        return policy | {"step_rewards": settings | cast(dict[str, Any], own["policy"])}, env
    if isinstance(own["env"], dict):
        return policy, env | {"step_rewards": settings | cast(dict[str, Any], own["env"])}
    return policy | {"step_rewards": settings}, env


def _same_strategy(name: str, a: Any, b: Any) -> bool:
    """Return whether two words for a strategy mean the same one."""
    return name == "strategy" and (a in _PER_ACHIEVEMENT) == (b in _PER_ACHIEVEMENT)


def written_at(tables: list[RewardsSection], key: str, context: ResolveContext) -> Path:
    """Return the place of a key, in the first of the tables that has it."""
    return context.at(next((t for t in tables if is_written(t, key)), tables[0]), key)
