"""How a job's replies are sampled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from pydantic import BaseModel

from synth.jobs.parse.toml import Path
from synth.jobs.resolve.context import ResolveContext, is_written
from synth.jobs.schema.eval import EvalSection
from synth.jobs.schema.rl import EvaluationSection, RlConfig
from synth.methods.rollouts import Sampling
from synth.models import ModelSpec

#: The reward of a rollout that did its whole task, if the file does not set another one.
_FULL_REWARD = 1.0

_N = TypeVar("_N", int, float)
_OFF = "while training, tokens must be sampled from the policy's own distribution"


def training_sampling(config: RlConfig, max_tokens: int, spec: ModelSpec | None, context: ResolveContext) -> Sampling:
    """Return the sampling of training, from the policy itself: top_p and top_k off, a temperature above 0."""
    policy_config, policy = config.rollout.policy_config, config.policy
    key = "rollout.sampling.temperature"
    # [policy] has another default, as in the client that writes it.
    temperature = context.first(
        key, [(policy_config, "temperature"), (policy, "temperature")], policy.temperature if policy else None
    )
    if temperature == 0:
        context.problem(
            (("rollout", "policy_config") if policy_config.temperature == 0 else ("policy",)) + ("temperature",),
            "temperature = 0 samples the same reply for a whole group, so nothing can be learned",
            expected="more than 0; 1 is the policy itself",
        )
    if policy is not None and policy.repetition_penalty != 1:
        context.problem(
            ("policy", "repetition_penalty"),
            f"repetition_penalty = {policy.repetition_penalty:g} would change the distribution of the policy",
            expected="1, which is off",
            fix="remove it",
        )
    return Sampling(
        temperature=temperature,
        max_tokens=max_tokens,
        top_p=_clamp_off("top_p", config, (1,), 1.0, context),
        top_k=_clamp_off("top_k", config, (0, -1), 0, context),
        thinking=resolve_thinking([policy_config], spec, context),
        thinking_budget=context.first("rollout.sampling.thinking_budget", [(policy_config, "thinking_budget")]),
    )


def _clamp_off(name: str, config: RlConfig, off: tuple[int, ...], value: _N, context: ResolveContext) -> _N:
    """Return the `off` value of a truncation of the distribution; training never truncates. Warn of another value."""
    key = f"rollout.sampling.{name}"
    context.record(key, value, "default")
    for section in (config.rollout.policy_config, config.policy):
        if section is None or name not in section.model_fields_set:
            continue
        written = getattr(section, name)
        if written is None or written in off:
            continue
        place = context.at(section, name)
        context.warn(place, f"= {written} becomes {value} (off): {_OFF}")
        context.record(key, value, context.document.where(place))
        context.record_change(key, value, f"{written} becomes {value} (off): {_OFF}")
    return value


def max_tokens_per_call(config: RlConfig, spec: ModelSpec | None, context: ResolveContext) -> int:
    """Return the most sampled tokens of a call: the smallest of the bounds that the file sets."""
    policy_config = config.rollout.policy_config
    named: list[tuple[BaseModel | None, str]] = [
        (policy_config, "max_tokens"),
        (policy_config, "max_completion_tokens"),
        (config.training, "max_completion_tokens"),
        (config.policy, "max_tokens"),
    ]
    return smallest_limit(named, spec, context)


def smallest_limit(named: list[tuple[BaseModel | None, str]], spec: ModelSpec | None, context: ResolveContext) -> int:
    """Return the smallest of several bounds on the tokens of a call, which the model's context must hold."""
    key = "rollout.sampling.max_tokens"
    bounds = [(getattr(s, n), s, n) for s, n in named if s is not None and n in s.model_fields_set]
    bounds = [(bound, s, n) for bound, s, n in bounds if bound is not None]
    if not bounds:
        return context.first(key, named)
    bound, section, name = min(bounds, key=lambda g: g[0])
    if any(other != bound for other, _, _ in bounds):
        others = ", ".join(str(other) for other, _, _ in bounds if other != bound)
        context.record_change(key, bound, f"the smallest of the bounds holds; the others are {others}")
    _check_context(bound, context.at(section, name), spec, context)
    return context.take(key, section, name)


def _check_context(bound: int, place: Path, spec: ModelSpec | None, context: ResolveContext) -> None:
    """Refuse a reply that a model's context never holds. A stand-in's context is a warning: the id promises more."""
    if spec is None or spec.context is None or bound < spec.context:
        return
    if spec.stand_in is not None:
        context.warn(place, f"= {bound}, and the context of the stand-in {spec.stand_in!r} has {spec.context:,} tokens")
        return
    context.problem(
        place,
        f"{place[-1]} = {bound}, and the context of {spec.id!r} has {spec.context:,} tokens, for the prompt and its "
        "reply",
        expected=f"less than {spec.context}",
        fix="lower it, so that the prompt has room beside the reply",
    )


def resolve_thinking(named: Sequence[BaseModel | None], spec: ModelSpec | None, context: ResolveContext) -> bool | None:
    """Return whether the model is to think; None leaves it to the task app. named: the tables, in order."""
    mode = context.first("rollout.sampling.thinking", [(table, "thinking_mode") for table in named])
    if mode is None or spec is None or spec.assumed:
        return None if mode is None else mode == "think"
    table = next(table for table in named if table is not None and is_written(table, "thinking_mode"))
    if mode == "no_think" and spec.thinking:
        context.problem(
            context.at(table, "thinking_mode"),
            f'thinking_mode = "no_think", and {spec.id!r} always thinks: its chat template begins each reply inside '
            "the reasoning",
            expected='"think", or no thinking_mode',
            fix="remove the key and bound the thoughts with thinking_budget, or name an Instruct model",
        )
    if mode == "think" and not spec.can_think:
        context.problem(
            context.at(table, "thinking_mode"),
            f'thinking_mode = "think", and {spec.id!r} never thinks: its chat template has no reasoning',
            expected='"no_think", or no thinking_mode',
            fix="remove the key, or name a model that thinks, such as a Thinking variant",
        )
    return mode == "think"


def resolve_repeats(section: EvalSection, temperature: float, context: ResolveContext) -> int:
    """Return the rollouts of each seed of an evaluation. temperature: of the sampling."""
    repeats: int = context.take("rollouts_per_seed", section, "rollouts_per_seed")
    if repeats > 1 and temperature == 0:
        context.warn(
            context.at(section, "rollouts_per_seed"),
            f"= {repeats} at temperature 0: the rollouts of a seed differ only if the environment does",
        )
    return repeats


def resolve_threshold(prefix: str, section: EvalSection | EvaluationSection, context: ResolveContext) -> float | None:
    """Return the least reward that is a success; None if pass@k is off."""
    default = _FULL_REWARD if section.rollouts_per_seed > 1 else None
    return context.first(f"{prefix}success_threshold", [(section, "success_threshold")], default)
