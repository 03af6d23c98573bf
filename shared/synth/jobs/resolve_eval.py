"""The evaluation job."""

from __future__ import annotations

from synth.jobs.eval import EvalConfig
from synth.jobs.resolved import EvalJob, RolloutSettings, Sampling
from synth.jobs.resolving import DEFAULT_MAX_TOKENS, Resolving, passed_on, plain_tags, thinking
from synth.jobs.toml import Path

_MOST_SEEDS = 100_000


def resolve_eval(config: EvalConfig, state: Resolving) -> EvalJob | None:
    """Resolve, collecting problems in `state`; None when there are any that leave a hole."""
    section, asked = config.eval, config.eval.policy_config
    root: Path = ("eval",) if "eval" in state.document.data else ()
    if section.model is None and state.overrides.model is None:
        state.problem(
            (*root, "model"),
            "there is no model to evaluate",
            expected="a base or fine-tuned model's id",
            fix="set it here, or pass --model",
        )
    spec = state.model(section.model, (*root, "model"), use="eval")
    seeds = section.seeds
    if seeds is None:
        state.problem((*root, "seeds"), "there are no seeds", expected='a list, "0-99", or {start = 0, count = 100}')
    elif len(seeds) > _MOST_SEEDS:
        state.problem((*root, "seeds"), f"{len(seeds)} seeds", expected=f"at most {_MOST_SEEDS}")
    temperature = section.temperature if section.temperature is not None else asked.temperature
    limits = [n for n in (section.max_tokens, asked.max_tokens, asked.max_completion_tokens) if n is not None]
    sampling = Sampling(
        temperature=state.note(
            "rollout.sampling.temperature",
            1.0 if temperature is None else temperature,
            "default" if temperature is None else "file",
        ),
        max_tokens=state.note(
            "rollout.sampling.max_tokens",
            min(limits, default=DEFAULT_MAX_TOKENS),
            "file" if limits else "default",
        ),
        top_p=asked.top_p or 1.0,
        top_k=max(asked.top_k or 0, 0),
        thinking=thinking(asked),
        thinking_budget=asked.thinking_budget,
    )
    rollout = RolloutSettings(
        task_url=state.task_url(section.task_app_url, (*root, "task_app_url")),
        env_name=state.take("rollout.env_name", section, "env_name", section.app_id),
        policy_name=state.take("rollout.policy_name", section, "policy_name"),
        max_turns=state.take("rollout.max_turns", section, "max_turns"),
        ops=state.take("rollout.ops", section, "ops"),
        env_config=state.take("rollout.env_config", section, "env_config"),
        policy_config=passed_on(asked),
        sampling=sampling,
        max_concurrent_rollouts=state.take("rollout.max_concurrent_rollouts", section, "concurrency"),
        failure_reward=state.take("rollout.failure_reward", section, "failure_reward"),
        rollout_timeout_s=state.take("rollout.rollout_timeout_s", section, "rollout_timeout_s"),
        max_retries=state.take("rollout.max_retries", section, "max_retries"),
        app_id=state.take("rollout.app_id", section, "app_id"),
    )
    if spec is None or seeds is None or state.problems:
        return None
    return EvalJob(
        model=spec.id,
        base_model=spec.base,
        seeds=state.note("seeds", seeds.values(), "file"),
        rollout=rollout,
        tags=plain_tags(config.tags, section.tags),
    )
