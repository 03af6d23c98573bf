"""The RL job: source, sampling that is the policy's own, seeds that keep training and evaluation apart."""

from __future__ import annotations

from typing import Any

from synth.jobs.resolved import EvaluationSettings, Mode, RlJob, RolloutSettings, Sampling
from synth.jobs.resolving import DEFAULT_MAX_TOKENS, Resolving, passed_on, plain_tags, thinking
from synth.jobs.rl import Evaluation, RlConfig
from synth.jobs.seeds import Seeds
from synth.jobs.toml import Path
from synth.models import ModelSpec

_LEARNING_RATE = {"full": 1e-6, "lora": 1e-5}
_TRAIN_SEEDS = 100_000
_HELD_OUT_FROM = 1_000_000
_MOST_EVALUATION_SEEDS = 10_000
_POLICY_CONFIG = ("rollout", "policy_config")


def resolve_rl(config: RlConfig, state: Resolving) -> RlJob | None:
    """Resolve, collecting problems in `state`; None when there are any that leave a hole."""
    spec = _source(config, state)
    mode = _mode(config, state)
    training = config.training
    rollout = _rollout(config, state)
    evaluation = _evaluation(config.evaluation, state)
    max_staleness = state.take("max_staleness", training, "max_staleness", training.async_level)
    if max_staleness < training.async_level:
        state.problem(
            ("training", "max_staleness"),
            f"max_staleness = {max_staleness} would drop all that async_level = {training.async_level} collects",
            expected=f"at least {training.async_level}",
        )
    if training.minibatches > training.batch_size * training.group_size:
        state.problem(
            ("training", "minibatches"),
            f"{training.minibatches} minibatches of {training.batch_size} x {training.group_size} rollouts",
            expected=f"at most {training.batch_size * training.group_size}",
        )
    lora = state.lora(mode, config.lora or training.lora, spec, rl=True)
    label = config.model.label or (config.policy.label if config.policy else None)
    if spec is None:
        return None
    return RlJob(
        model=spec.id,
        base_model=spec.base,
        mode=mode,
        lora=lora,
        label=label or spec.base,
        iterations=state.note("iterations", training.num_epochs * training.iterations_per_epoch, "file"),
        batch_size=state.take("batch_size", training, "batch_size"),
        group_size=state.take("group_size", training, "group_size"),
        minibatches=state.take("minibatches", training, "minibatches"),
        clip_low=state.take("clip_low", training, "clip_low"),
        clip_high=state.take("clip_high", training, "clip_high"),
        advantage_std=state.take("advantage_std", training, "advantage_std"),
        async_level=state.take("async_level", training, "async_level"),
        max_staleness=max_staleness,
        lr=state.take("lr", training, "learning_rate", _LEARNING_RATE[mode]),
        schedule=state.take("schedule", training, "lr_scheduler"),
        min_lr_ratio=state.take("min_lr_ratio", training, "min_lr_ratio"),
        warmup_ratio=state.take("warmup_ratio", training, "warmup_ratio"),
        warmup_steps=None,
        betas=tuple(state.take("betas", training, "betas")),
        weight_decay=state.take("weight_decay", training, "weight_decay"),
        clip_norm=state.take("clip_norm", training, "grad_clip"),
        packing=state.packing(training),
        micro_batch_tokens=state.take("micro_batch_tokens", training, "micro_batch_tokens"),
        activation_checkpointing=state.take("activation_checkpointing", training, "activation_checkpointing"),
        rollout=rollout,
        train_seeds=_train_seeds(config, evaluation, state),
        evaluation=evaluation,
        checkpoint_every=state.take("checkpoint_every", training, "checkpoint_every"),
        seed=state.seed(training),
        tags=plain_tags(config.tags),
    )


def _source(config: RlConfig, state: Resolving) -> ModelSpec | None:
    """Exactly one of [model].base and [model].source (or their [policy] namesakes), unless --model names it."""
    policy = config.policy
    named: list[tuple[Path, str | None]] = [
        (("model", "base"), config.model.base),
        (("model", "source"), config.model.source),
        (("policy", "model_name"), policy.model_name if policy else None),
        (("policy", "source"), policy.source if policy else None),
    ]
    given = [(path, value) for path, value in named if value is not None]
    if state.overrides.model is None and len(given) != 1:
        keys = " and ".join(f"[{p[0]}].{p[1]}" for p, _ in given)
        state.problem(
            given[1][0] if given else ("model",),
            f"{keys} are both given" if given else "neither base nor source is given",
            expected="exactly one of [model].base (a base model) and [model].source (a fine-tuned one)",
            fix="remove one" if given else "set one of them, or pass --model",
        )
        return None
    path, value = given[0] if given else (("model",), None)
    return state.model(value, path, use="rl")


def _mode(config: RlConfig, state: Resolving) -> Mode:
    path: Path = ("model", "trainer_mode")
    mode = config.model.trainer_mode
    if mode is None and config.policy is not None:
        path, mode = ("policy", "trainer_mode"), config.policy.trainer_mode
    if mode == "qlora":
        state.warn(path, '= "qlora" becomes "lora": the base is kept in full precision')
    if mode is None:
        has_lora = config.lora is not None or config.training.lora is not None
        return state.note("mode", "lora" if has_lora else "full", "file" if has_lora else "default")
    if mode == "full" and config.lora is not None:
        state.warn(("lora",), 'has no effect: trainer_mode is "full"')
    return state.note("mode", "full" if mode == "full" else "lora", "file")


def _rollout(config: RlConfig, state: Resolving) -> RolloutSettings:
    section, training = config.rollout, config.training
    max_turns = section.max_turns or training.max_turns or 1
    if section.max_turns and training.max_turns and section.max_turns != training.max_turns:
        state.warn(("training", "max_turns"), f"has no effect: [rollout].max_turns = {section.max_turns} decides")
    hint = section.episodes_per_batch
    sizes = (training.batch_size, training.batch_size * training.group_size)
    if hint is not None and hint not in sizes:
        state.warn(
            ("rollout", "episodes_per_batch"),
            f"has no effect: an iteration is batch_size x group_size = {sizes[1]} rollouts",
        )
    concurrent = state.take("rollout.max_concurrent_rollouts", section, "max_concurrent_rollouts")
    if training.async_semaphore_max is not None:
        concurrent = min(concurrent, training.async_semaphore_max)
    return RolloutSettings(
        task_url=state.task_url(config.services.task_url, ("services", "task_url")),
        env_name=state.take("rollout.env_name", section, "env_name"),
        policy_name=state.take("rollout.policy_name", section, "policy_name"),
        max_turns=state.note(
            "rollout.max_turns", max_turns, "file" if section.max_turns or training.max_turns else "default"
        ),
        ops=state.take("rollout.ops", section, "ops"),
        env_config=state.take("rollout.env_config", section, "env_config"),
        policy_config=passed_on(section.policy_config),
        sampling=_sampling(config, state),
        max_concurrent_rollouts=concurrent,
        failure_reward=state.take("rollout.failure_reward", section, "failure_reward"),
        rollout_timeout_s=state.take("rollout.rollout_timeout_s", section, "rollout_timeout_s"),
        max_retries=state.take("rollout.max_retries", section, "max_retries"),
    )


def _sampling(config: RlConfig, state: Resolving) -> Sampling:
    """Training samples from the policy itself: top_p and top_k off, and a temperature above 0 (decision 25)."""
    asked, policy = config.rollout.policy_config, config.policy
    temperature, place = 1.0, (*_POLICY_CONFIG, "temperature")
    if asked.temperature is not None:
        temperature = asked.temperature
    elif policy is not None:
        temperature, place = policy.temperature, ("policy", "temperature")
    if temperature == 0:
        state.problem(
            place,
            "temperature = 0 samples the same reply for a whole group, so nothing can be learned",
            expected="more than 0; 1 is the policy itself",
        )
    clamps: list[tuple[Path, Any]] = [
        ((*_POLICY_CONFIG, "top_p"), asked.top_p if asked.top_p != 1 else None),
        ((*_POLICY_CONFIG, "top_k"), asked.top_k if asked.top_k not in (0, -1) else None),
    ]
    if policy is not None:
        clamps += [
            (("policy", "top_p"), policy.top_p if policy.top_p != 1 else None),
            (("policy", "top_k"), policy.top_k if policy.top_k not in (0, -1) else None),
        ]
    for path, value in clamps:
        if value is not None:
            state.warn(path, f"= {value} is off while training: what is sampled must be the policy's own")
    limits = [
        n
        for n in (
            asked.max_tokens,
            asked.max_completion_tokens,
            config.training.max_completion_tokens,
            policy.max_tokens if policy else None,
        )
        if n is not None
    ]
    return Sampling(
        temperature=state.note(
            "rollout.sampling.temperature", temperature, "default" if asked.temperature is None else "file"
        ),
        max_tokens=state.note(
            "rollout.sampling.max_tokens",
            min(limits, default=DEFAULT_MAX_TOKENS),
            "file" if limits else "default",
        ),
        thinking=thinking(asked),
        thinking_budget=asked.thinking_budget,
    )


def _evaluation(section: Evaluation | None, state: Resolving) -> EvaluationSettings | None:
    if section is None or section.every_n_iters == 0:
        if section is not None and section.seeds is not None and "every_n_iters" not in section.model_fields_set:
            state.warn(("evaluation",), "has no effect: every_n_iters is not given")
        return None
    if section.seeds is None and section.instances is None:
        state.problem(("evaluation", "seeds"), "there are no seeds to evaluate on", fix="set seeds or instances")
        return None
    seeds = section.seeds or Seeds(start=_HELD_OUT_FROM, count=section.instances or 0)
    if section.instances is not None and section.instances > len(seeds):
        state.warn(("evaluation", "instances"), f"becomes {len(seeds)}: there are no more seeds")
    wanted = min(section.instances or len(seeds), len(seeds))
    if wanted > _MOST_EVALUATION_SEEDS:
        state.problem(
            ("evaluation", "seeds"), f"{wanted} seeds", expected=f"at most {_MOST_EVALUATION_SEEDS} an evaluation"
        )
        return None
    return EvaluationSettings(
        every_n_iters=state.take("evaluation.every_n_iters", section, "every_n_iters"),
        seeds=state.note("evaluation.seeds", seeds.values()[:wanted], "file" if section.seeds else "default"),
    )


def _train_seeds(config: RlConfig, evaluation: EvaluationSettings | None, state: Resolving) -> Seeds:
    held_out = set(evaluation.seeds) if evaluation else set[int]()
    if config.data.seeds is not None:
        shared = held_out.intersection(config.data.seeds.values()) if held_out else set[int]()
        if shared:
            state.warn(("data", "seeds"), f"shares {len(shared)} seeds with [evaluation], such as {min(shared)}")
        return state.note("train_seeds", config.data.seeds, "file")
    start = config.data.seed_start or 0
    seeds = Seeds(start=start, count=_TRAIN_SEEDS)
    origin = "default" if config.data.seed_start is None else "file"
    inside = {s for s in held_out if start <= s < start + _TRAIN_SEEDS}
    if inside:
        # A range cannot have holes, and a list of 100000 seeds does not belong into an event: begin after them.
        seeds = Seeds(start=max(inside) + 1, count=_TRAIN_SEEDS)
    return state.note("train_seeds", seeds, origin)
