"""The evaluation job."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from synth.jobs.resolve.context import ResolveContext, is_written, passthrough
from synth.jobs.resolve.rewards.settings import resolve_eval_rewards
from synth.jobs.resolve.sampling import resolve_repeats, resolve_thinking, resolve_threshold, smallest_limit
from synth.jobs.resolve.source import agreed_model
from synth.jobs.resolve.task_app import (
    EVAL_ENV_KEYS,
    EVAL_POLICY_KEYS,
    POLICY_KEYS,
    given_keys,
    merge_given,
    with_sight,
)
from synth.jobs.resolve.vision import IMAGE_WISHES, check_images, resolve_vision
from synth.jobs.schema.eval import EvalConfig, EvalRolloutSection, EvalSection, FlatEvalConfig
from synth.jobs.schema.rl import ModelSection
from synth.jobs.schema.sections import PolicyConfigSection, copied_fields
from synth.methods.eval import EvalJob
from synth.methods.rollouts import RolloutSettings, Sampling
from synth.methods.seeds import Seeds
from synth.models import ModelSpec


def resolve_eval(config: EvalConfig | FlatEvalConfig, context: ResolveContext) -> EvalJob | None:
    """Resolve, collecting problems in `context`; None when there are any that leave a hole."""
    section: EvalSection = config.eval if isinstance(config, EvalConfig) else config
    beside = config.rollout
    # Each of these may say how the policy samples; the nearest to [eval] wins.
    policies = [section.policy_config, beside.policy_config if beside else None, section.policy]
    if config.policy is not section.policy:
        policies.append(config.policy)
    described = config.model if isinstance(config, EvalConfig) else None
    spec = _model(section, described, policies, context)
    check_images(
        spec,
        [(described, "supports_vision")],
        [(table, key) for table in (section, beside, *policies) for key in IMAGE_WISHES],
        context,
    )
    _refuse_filters(section, context)
    _refuse_client_judges(section, context)
    seeds = _seeds(section, context)
    urls = [(section, "task_app_url"), (config.task_app, "url")]
    url = context.first("rollout.task_url", urls)
    url_table, url_key = next(((t, k) for t, k in urls if t is not None and getattr(t, k) is not None), urls[0])
    turns: list[tuple[BaseModel | None, str]] = [
        *((section, key) for key in ("max_turns", "max_llm_calls")),
        (beside, "max_turns"),
        *((policy, key) for policy in policies for key in ("max_llm_calls", "max_turns")),
    ]
    concurrency = [(section, "concurrency"), (section, "parallel_episodes"), (beside, "max_concurrent_rollouts")]

    either = {*copied_fields(RolloutSettings, EvalSection)} & {*copied_fields(RolloutSettings, EvalRolloutSection)}
    either -= {"env_name", "max_turns", "env_config", "policy_config"}
    rollout = RolloutSettings(
        **{key: context.first(f"rollout.{key}", [(section, key), (beside, key)]) for key in sorted(either)},
        task_url=context.task_url(url, context.at(url_table or section, url_key)),
        env_name=_env_name(section, beside, context),
        max_turns=context.first("rollout.max_turns", turns),
        env_config=merge_given(
            "rollout.env_config",
            context.first("rollout.env_config", [(section, "env_config"), (beside, "env_config"), (config, "env")]),
            given_keys(section, EVAL_ENV_KEYS),
            context,
            called="env_config",
        ),
        policy_config=with_sight(
            merge_given(
                "rollout.policy_config",
                _passthrough(policies, context),
                [*given_keys(section, EVAL_POLICY_KEYS), *(given_keys(beside, POLICY_KEYS) if beside else [])],
                context,
                called="policy_config",
            ),
            spec,
        ),
        evaluation_env_config=context.record("rollout.evaluation_env_config", {}, "default"),
        sampling=_sampling(section, policies, spec, context),
        max_concurrent_rollouts=context.first("rollout.max_concurrent_rollouts", concurrency),
        group_timeout_s=context.record("rollout.group_timeout_s", None, "default"),
        trace_rate=context.record("rollout.trace_rate", 0.0, "default"),
        evaluations_traced=_traced(section, context),
    )
    rewards = resolve_eval_rewards(config, context)
    tags = context.tags(*([config.tags] if section.tags is config.tags else [config.tags, section.tags]))
    repeats = resolve_repeats(section, rollout.sampling.temperature, context)
    threshold = resolve_threshold("", section, context)
    label = context.first("label", [(described, "label")])
    if spec is None or seeds is None or context.problems:
        return None
    return EvalJob(
        label=label,
        model=spec.id,
        base_model=spec.base,
        seeds=seeds,
        rollouts_per_seed=repeats,
        success_threshold=threshold,
        rollout=rollout,
        tags=tags,
        vision=resolve_vision(
            spec,
            None,
            context,
            max_images=[(section, "max_images_per_message"), (described, "max_images_per_message")],
            processor=[(described, "vision_processor_id")],
        ),
        rewards=rewards,
    )


def _model(
    section: EvalSection,
    described: ModelSection | None,
    policies: list[PolicyConfigSection | None],
    context: ResolveContext,
) -> ModelSpec | None:
    """Return the one model that [eval], [model] and the policy tables name, unless --model does."""
    named = [(context.at(table, "model"), table.model) for table in (section, *policies[2:]) if table is not None]
    if described is not None:
        named += [(context.at(described, "base"), described.base), (context.at(described, "source"), described.source)]
    # The policy tables name the served model, which has to be the evaluated one.
    served = [(context.at(table, "model"), table.model) for table in policies[:2] if table is not None]
    if context.overrides.model is not None:
        context.replace([path for path, _ in (*named, *served)], context.overrides.model)
        return context.find_model(None, context.at(section, "model"), use="eval")
    if all(model is None for _, model in named):
        context.problem(
            context.at(section, "model"),
            "there is no model to evaluate",
            expected="a base or fine-tuned model's id",
            fix="set it here, or pass --model",
        )
        return None
    agreed = agreed_model([*named, *served], context, expected="one model, which is served and evaluated")
    return context.find_model(agreed[1], agreed[0], use="eval") if agreed else None


def _refuse_filters(section: EvalSection, context: ResolveContext) -> None:
    for key in ("metadata", "metadata_sql"):
        if getattr(section, key):
            context.problem(
                context.at(section, key),
                f"{key} is a filter on seeds, and filters are not applied here",
                expected="the seeds themselves",
                fix="list them in seeds, and remove this key",
            )


def _refuse_client_judges(section: EvalSection, context: ResolveContext) -> None:
    for key in ("judge", "judges"):
        if getattr(section, key):
            context.problem(
                context.at(section, key),
                f"{key} is a Python function of the client, which runs in it alone",
                expected="[judge.options] provider and model: a model that applies a rubric",
                fix="evaluate with `synth-ai eval`, or name a model that judges",
            )


def _env_name(section: EvalSection, beside: EvalRolloutSection | None, context: ResolveContext) -> str | None:
    """Return the environment that the file names, else its `app_id`."""
    key = "rollout.env_name"
    named: str | None = context.first(key, [(section, "env_name"), (beside, "env_name")])
    if named is None and section.app_id is not None:
        return context.record(key, section.app_id, context.document.where(context.at(section, "app_id")))
    if section.app_id not in (None, named):
        context.warn(context.at(section, "app_id"), f"has no effect: env_name = {named!r} names the environment")
    return named


def _traced(section: EvalSection, context: ResolveContext) -> bool:
    keys = [(section, "return_trace"), (section, "collect_traces")]
    return context.first("rollout.evaluations_traced", keys, True)


def _seeds(section: EvalSection, context: ResolveContext) -> list[int] | None:
    """Return the seeds of the file, the first `num_episodes` of them; older files give a start and a count."""
    path = context.at(section, "seeds")
    seeds: Seeds | None = context.take("seeds", section, "seeds")
    episodes = section.num_episodes
    if seeds is None:
        if episodes is None:
            context.problem(path, "there are no seeds", expected='a list, "0-99", or {start = 0, count = 100}')
            return None
        context.take("seeds", section, "num_episodes")
        seeds = Seeds(start=section.seed_start, count=episodes)
    elif is_written(section, "seed_start"):
        context.warn(context.at(section, "seed_start"), f"has no effect: {context.document.label(path)} decides")
    if episodes is not None and episodes > len(seeds):
        context.warn(context.at(section, "num_episodes"), f"= {episodes} becomes {len(seeds)}: there are no more seeds")
    return context.first_seeds(seeds, episodes, path)


def _sampling(
    section: EvalSection,
    policies: list[PolicyConfigSection | None],
    spec: ModelSpec | None,
    context: ResolveContext,
) -> Sampling:
    temperatures: list[tuple[BaseModel | None, str]] = [(section, "temperature")]
    limits: list[tuple[BaseModel | None, str]] = [(section, "max_tokens")]
    for policy in policies:
        temperatures.append((policy, "temperature"))
        limits += [(policy, "max_tokens"), (policy, "max_completion_tokens")]
    budgets = [(table, "thinking_budget") for table in (section, *policies)]
    top_k = context.first("rollout.sampling.top_k", [(policy, "top_k") for policy in policies])
    return Sampling(
        temperature=context.first("rollout.sampling.temperature", temperatures),
        max_tokens=smallest_limit(limits, spec, context),
        top_p=context.first("rollout.sampling.top_p", [(policy, "top_p") for policy in policies]),
        top_k=max(top_k, 0),
        thinking=resolve_thinking([section, *policies], spec, context),
        thinking_budget=context.first("rollout.sampling.thinking_budget", budgets),
    )


def _passthrough(policies: list[PolicyConfigSection | None], context: ResolveContext) -> dict[str, Any]:
    """Return the policy's other keys for the task app: of all tables, the nearest to [eval] winning."""
    merged: dict[str, Any] = {}
    origin = "default"
    for policy in reversed(policies):
        if policy is not None and (more := passthrough(policy)):
            merged |= more
            origin = context.document.where(context.place(policy))
    return context.record("rollout.policy_config", merged, origin)
