"""The evaluation job."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from synth.jobs.resolve.context import Resolving, passed_on
from synth.jobs.resolve.sampling import smallest, thinking
from synth.jobs.resolved import EvalJob, RolloutSettings, Sampling
from synth.jobs.schema.eval import Eval, EvalConfig, FlatEval
from synth.jobs.schema.sections import PolicyConfig
from synth.jobs.seeds import Seeds

_MOST_SEEDS = 100_000
_CONCURRENCY = 16


def resolve_eval(config: EvalConfig | FlatEval, state: Resolving) -> EvalJob | None:
    """Resolve, collecting problems in `state`; None when there are any that leave a hole."""
    section: Eval = config.eval if isinstance(config, EvalConfig) else config
    beside = config.rollout
    # Each of these may say how the policy samples; the nearest to [eval] wins.
    policies = [section.policy_config, beside.policy_config if beside else None, section.policy]
    if config.policy is not section.policy:
        policies.append(config.policy)
    model = state.first("model", [(section, "model"), *((p, "model") for p in policies[2:])])
    if model is None and state.overrides.model is None:
        state.problem(
            state.at(section, "model"),
            "there is no model to evaluate",
            expected="a base or fine-tuned model's id",
            fix="set it here, or pass --model",
        )
    named = next((p for p in [section, *policies[2:]] if p is not None and p.model is not None), section)
    spec = state.model(model, state.at(named, "model"), use="eval")
    for policy in policies[:2]:
        if policy is not None and policy.model is not None and policy.model != model:
            state.warn(state.at(policy, "model"), "has no effect: the model that is evaluated is served")
    seeds = _seeds(section, state)
    urls = [(section, "task_app_url"), (config.task_app, "url")]
    url = state.first("rollout.task_url", urls)
    url_table, url_key = next(((t, k) for t, k in urls if t is not None and getattr(t, k) is not None), urls[0])
    turns: list[tuple[BaseModel | None, str]] = [
        *((section, key) for key in ("max_turns", "max_llm_calls")),
        (beside, "max_turns"),
        *((policy, key) for policy in policies for key in ("max_llm_calls", "max_turns")),
    ]
    concurrency = [(section, "concurrency"), (section, "parallel_episodes")]
    rollout = RolloutSettings(
        task_url=state.task_url(url, state.at(url_table or section, url_key)),
        env_name=state.first("rollout.env_name", [(section, "env_name"), (beside, "env_name")], section.app_id),
        policy_name=state.first("rollout.policy_name", [(section, "policy_name"), (beside, "policy_name")], "policy"),
        max_turns=state.first("rollout.max_turns", turns, 1),
        ops=state.first("rollout.ops", [(section, "ops"), (beside, "ops")], ["agent", "env"]),
        env_config=state.first(
            "rollout.env_config", [(section, "env_config"), (beside, "env_config"), (config, "env")], {}
        ),
        policy_config=_passed_on(policies, state),
        sampling=_sampling(section, policies, state),
        max_concurrent_rollouts=state.first("rollout.max_concurrent_rollouts", concurrency, _CONCURRENCY),
        failure_reward=state.take("rollout.failure_reward", section, "failure_reward"),
        rollout_timeout_s=state.take("rollout.rollout_timeout_s", section, "rollout_timeout_s"),
        max_retries=state.take("rollout.max_retries", section, "max_retries"),
        constrain_tools=state.take("rollout.constrain_tools", section, "constrain_tools"),
        group_timeout_s=state.note("rollout.group_timeout_s", None, "default"),
        app_id=state.take("rollout.app_id", section, "app_id"),
    )
    tags = state.tags(*([config.tags] if section.tags is config.tags else [config.tags, section.tags]))
    if spec is None or seeds is None or state.problems:
        return None
    return EvalJob(model=spec.id, base_model=spec.base, seeds=seeds, rollout=rollout, tags=tags)


def _seeds(section: Eval, state: Resolving) -> list[int] | None:
    """The seeds of the file, the first `num_episodes` of them; older files give a start and a count."""
    path = state.at(section, "seeds")
    seeds: Seeds | None = state.take("seeds", section, "seeds")
    wanted = section.num_episodes
    if seeds is None:
        if wanted is None:
            state.problem(path, "there are no seeds", expected='a list, "0-99", or {start = 0, count = 100}')
            return None
        state.take("seeds", section, "num_episodes")
        seeds = Seeds(start=section.seed_start or 0, count=wanted)
    elif section.seed_start is not None:
        state.warn(state.at(section, "seed_start"), f"has no effect: {state.document.label(path)} decides")
    if len(seeds) > _MOST_SEEDS:
        state.problem(path, f"{len(seeds)} seeds", expected=f"at most {_MOST_SEEDS}")
        return None
    if wanted is not None and wanted > len(seeds):
        state.warn(state.at(section, "num_episodes"), f"= {wanted} becomes {len(seeds)}: there are no more seeds")
    return seeds.values()[:wanted]


def _sampling(section: Eval, policies: list[PolicyConfig | None], state: Resolving) -> Sampling:
    temperatures: list[tuple[BaseModel | None, str]] = [(section, "temperature")]
    limits: list[tuple[BaseModel | None, str]] = [(section, "max_tokens")]
    for policy in policies:
        temperatures.append((policy, "temperature"))
        limits += [(policy, "max_tokens"), (policy, "max_completion_tokens")]
    budgets = [(table, "thinking_budget") for table in (section, *policies)]
    top_k = state.first("rollout.sampling.top_k", [(policy, "top_k") for policy in policies], 0)
    return Sampling(
        temperature=state.first("rollout.sampling.temperature", temperatures, 1.0),
        max_tokens=smallest(limits, state),
        top_p=state.first("rollout.sampling.top_p", [(policy, "top_p") for policy in policies], 1.0),
        top_k=max(top_k, 0),
        thinking=thinking(policies, state, also=section),
        thinking_budget=state.first("rollout.sampling.thinking_budget", budgets),
    )


def _passed_on(policies: list[PolicyConfig | None], state: Resolving) -> dict[str, Any]:
    """What the task app's policy is given beside the sampling: all tables, the nearest to [eval] winning."""
    merged: dict[str, Any] = {}
    origin = "default"
    for policy in reversed(policies):
        if policy is not None and (more := passed_on(policy)):
            merged |= more
            origin = state.document.where(state.place(policy))
    return state.note("rollout.policy_config", merged, origin)
