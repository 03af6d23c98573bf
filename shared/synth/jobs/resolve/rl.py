"""The RL job: source, sampling that is the policy's own, seeds that keep training and evaluation apart."""

from __future__ import annotations

from typing import Any

from synth.jobs.parse.toml import Path
from synth.jobs.resolve.context import ResolveContext, is_written, passthrough
from synth.jobs.resolve.loss import (
    check_own_keys,
    resolve_advantage,
    resolve_clip,
    resolve_correction,
    resolve_loss,
    resolve_overlong_penalty,
    resolve_reference,
    resolve_truncation,
)
from synth.jobs.resolve.parallelism import rl_parallelism, rl_topology
from synth.jobs.resolve.rewards.distillation import resolve_distillation, resolve_solved_after, taught_loss
from synth.jobs.resolve.rewards.graded import check_graded_rewards, resolve_graded
from synth.jobs.resolve.rewards.settings import resolve_rewards
from synth.jobs.resolve.rewards.steps import given_step_rewards
from synth.jobs.resolve.sampling import max_tokens_per_call, resolve_threshold, training_sampling
from synth.jobs.resolve.source import agreed_model
from synth.jobs.resolve.task_app import POLICY_KEYS, REWARD_KEYS, GivenKey, given_keys, merge_given, with_sight
from synth.jobs.resolve.vision import IMAGE_WISHES, check_images, resolve_vision
from synth.jobs.resolve.watch import check_enough, resolve_curriculum, resolve_watch
from synth.jobs.schema.rl import EvaluationSection, RlConfig, WeightSyncSection
from synth.methods.base import Mode
from synth.methods.losses import LOSSES
from synth.methods.rl import TRAIN_SEEDS, RlJob
from synth.methods.rollouts import EvaluationSettings, GradedRows, RolloutSettings
from synth.methods.seeds import Seeds
from synth.models import ModelSpec

_HELD_OUT_FROM = 1_000_000


def resolve_rl(config: RlConfig, context: ResolveContext, *, uploaded: bool) -> RlJob | None:
    """Resolve, collecting problems in `context`; None when there are any that leave a hole.

    uploaded: False before the upload, when the files of a graded job may still be paths.
    """
    context.check_algorithm(config.algorithm, type="online", methods=("policy_gradient",), varieties=tuple(LOSSES))
    spec = _source(config, context)
    mode = _mode(config, context)
    training = config.training
    policy_config = config.rollout.policy_config
    check_images(
        spec,
        [(table, "supports_vision") for table in (config.model, training)],
        [(table, key) for table in (config.rollout, policy_config) for key in IMAGE_WISHES],
        context,
    )
    topology = rl_topology(config, context)
    graded, graders_models = resolve_graded(config, context, uploaded=uploaded)
    rollout = _rollout(config, spec, context)
    evaluation = _evaluation(config.evaluation, graded, context)
    max_staleness = context.take("max_staleness", training, "max_staleness", training.async_level)
    if max_staleness < training.async_level:
        context.problem(
            ("training", "max_staleness"),
            f"max_staleness = {max_staleness} would drop all rollouts of async_level = {training.async_level}",
            expected=f"at least {training.async_level}",
        )
    loss = taught_loss(config, resolve_loss(config, context), context)
    distillation = resolve_distillation(config, spec, rollout.sampling, context)
    rewards = resolve_rewards(config, loss, graders_models, context)
    if graded is not None:
        check_graded_rewards(rewards, context)
    if config.services.judge_url is not None:
        context.warn(("services", "judge_url"), "has no effect: this cluster's own judge service calls the judges")
    clip_low, clip_high = resolve_clip(training, loss, context)
    reference = resolve_reference(config, mode, context)
    lora = context.lora_settings(mode, [config.lora, training.lora], spec, without_dropout=RlJob.without_dropout)
    iterations = _iterations(config, context)
    held_out = set(evaluation.seeds) if evaluation and not (graded and graded.validation_file) else set[int]()
    batch_size = _batch_size(config, context)
    train_seeds = _train_seeds(config, held_out, batch_size, context)
    if spec is None:
        return None
    check_own_keys(training, loss, context)
    sync = context.table(training.weight_sync, WeightSyncSection, ("training", "weight_sync"))
    job = context.build(
        RlJob,
        training,
        model=spec.id,
        base_model=spec.base,
        mode=mode,
        lora=lora,
        label=context.first("label", [(config.model, "label"), (config.policy, "label")]),
        iterations=iterations,
        batch_size=batch_size,
        minibatches=_minibatches(config, context),
        loss=loss,
        clip_low=clip_low,
        clip_high=clip_high,
        token_truncation=resolve_truncation(training, loss, context),
        correction=resolve_correction(training.correction, context),
        reference=reference,
        advantage=resolve_advantage(training, context),
        overlong_penalty=resolve_overlong_penalty(training, context),
        max_staleness=max_staleness,
        verify_every_k=context.take("verify_every_k", sync, "verify_every_k"),
        lr=context.take("lr", training, "learning_rate", RlJob.learning_rates[mode]),
        warmup_steps=context.record("warmup_steps", None, "default"),
        packing=context.packing(training),
        parallelism=rl_parallelism(topology, context),
        topology=topology,
        rollout=rollout,
        train_seeds=train_seeds,
        curriculum=resolve_curriculum(config, held_out, batch_size, context),
        evaluation=evaluation,
        watch=resolve_watch(training.watch, context),
        solved_after=resolve_solved_after(config, context),
        rewards=rewards,
        graded=graded,
        distillation=distillation,
        seed=context.seed(training),
        tags=context.tags(config.tags),
        vision=resolve_vision(
            spec,
            ("model",),
            context,
            max_images=[(config.model, "max_images_per_message"), (training, "max_images_per_message")],
            per_step=[(config.rollout, "max_images_per_step")],
            per_prompt=config.vllm.limit_mm_per_prompt if config.vllm else None,
            processor=[(config.model, "vision_processor_id")],
            frozen=[(config.model, "freeze_vision_tower")],
            mode=mode,
        ),
    )
    if job.advantage is not None:
        context.leave_out("advantage_std")
    return job


def _source(config: RlConfig, context: ResolveContext) -> ModelSpec | None:
    """Return the one model that [model], [policy] and policy_config name, unless --model names it."""
    policy = config.policy
    named: list[tuple[Path, str | None]] = [
        (("model", "base"), config.model.base),
        (("model", "source"), config.model.source),
        (("policy", "model_name"), policy.model_name if policy else None),
        (("policy", "model"), policy.model if policy else None),
        (("policy", "source"), policy.source if policy else None),
    ]
    served = ("rollout", "policy_config", "model")
    if context.overrides.model is not None:
        context.replace([*(path for path, _ in named), served], context.overrides.model)
        return context.find_model(None, ("model",), use="rl")
    if all(model is None for _, model in named):
        context.problem(
            ("model",),
            "neither base nor source is given",
            expected="exactly one of [model].base (a base model) and [model].source (a fine-tuned one)",
            fix="set one of them, or pass --model",
        )
        return None
    # The model of policy_config is the one that the task app calls, so it has to be the same.
    named.append((served, config.rollout.policy_config.model))
    agreed = agreed_model(named, context, expected="one model, which is trained and served")
    return context.find_model(agreed[1], agreed[0], use="rl") if agreed else None


def _mode(config: RlConfig, context: ResolveContext) -> Mode:
    named = [(config.model, "trainer_mode"), (config.policy, "trainer_mode")]
    mode = context.first("mode", named)
    place = context.origins["mode"]
    tables = [(path, t) for path, t in ((("lora",), config.lora), (("training", "lora"), config.training.lora)) if t]
    if mode is None:
        origin = context.document.where(tables[0][0]) if tables else "default"
        return context.record("mode", "lora" if tables else "full", origin)
    if mode == "qlora":
        return context.qlora_mode(place)
    if mode == "full":
        for path, _ in tables:
            context.warn(path, 'has no effect: trainer_mode is "full"')
    return mode


def _batch_size(config: RlConfig, context: ResolveContext) -> int:
    """Return the groups of an iteration: the sum over all the batches of a step."""
    groups: int = context.take("batch_size", config.training, "batch_size")
    batches: int = config.rollout.batches_per_step
    if batches > 1:
        context.record_change("batch_size", groups * batches, f"batches_per_step = {batches} batches of {groups}")
    return groups * batches


def _minibatches(config: RlConfig, context: ResolveContext) -> int:
    """Return the optimizer steps of a batch: at most its rollouts, each of which has at least one sequence."""
    training = config.training
    minibatches: int = context.take("minibatches", training, "minibatches")
    rollouts = training.batch_size * training.group_size * config.rollout.batches_per_step
    if minibatches <= rollouts:
        return minibatches
    if is_written(training, "minibatches"):
        context.problem(
            ("training", "minibatches"),
            f"minibatches = {minibatches}, and a batch is batch_size x group_size = {rollouts} rollouts",
            expected=f"at most {rollouts}",
            fix="lower it, or raise batch_size",
        )
        return minibatches
    return context.record_change(
        "minibatches", rollouts, f"{minibatches} becomes {rollouts}: a batch is {rollouts} rollouts"
    )


def _iterations(config: RlConfig, context: ResolveContext) -> int:
    training = config.training
    each: int = training.iterations_per_epoch
    if not is_written(training, "iterations_per_epoch"):
        iterations = training.num_epochs * each
        context.warn(("training",), f"does not say iterations_per_epoch: the job runs {iterations} iterations")
        return context.take("iterations", training, "num_epochs") * each
    context.take("iterations", training, "iterations_per_epoch")
    if training.num_epochs > 1:
        context.record_change("iterations", each, f"num_epochs = {training.num_epochs} times {each}")
    return each * training.num_epochs


def _rollout(config: RlConfig, spec: ModelSpec | None, context: ResolveContext) -> RolloutSettings:
    section, training, requested = config.rollout, config.training, config.rollout.policy_config
    hint = section.episodes_per_batch
    sizes = (training.batch_size, training.batch_size * training.group_size)
    if hint is not None and hint not in sizes:
        context.warn(
            ("rollout", "episodes_per_batch"),
            f"has no effect: an iteration is batch_size x group_size = {sizes[1]} rollouts",
        )
    turns = [(section, "max_turns"), (training, "max_turns"), (requested, "max_llm_calls"), (requested, "max_turns")]
    policy_table: dict[str, Any] = passthrough(context.take("rollout.policy_config", section, "policy_config"))
    stop = GivenKey(config.policy, "stop_sequences", "stop")
    env_table = context.take("rollout.env_config", section, "env_config")
    policy_config, env_config = given_step_rewards(
        config,
        merge_given(
            "rollout.policy_config",
            policy_table,
            [*given_keys(section, POLICY_KEYS), stop],
            context,
            called="[rollout.policy_config]",
        ),
        merge_given(
            "rollout.env_config",
            env_table,
            [*given_keys(config.data, ["split"]), *given_keys(training, REWARD_KEYS)],
            context,
            called="[rollout.env_config]",
        ),
        context,
    )
    return context.build(
        RolloutSettings,
        section,
        "rollout.",
        task_url=context.task_url(config.services.task_url, ("services", "task_url"))
        if config.grader is None
        else context.record("rollout.task_url", "", "default"),
        max_turns=context.first("rollout.max_turns", turns),
        ops=context.first("rollout.ops", [(section, "ops"), (training, "ops")]),
        env_config=env_config,
        policy_config=with_sight(policy_config, spec),
        sampling=training_sampling(config, max_tokens_per_call(config, spec, context), spec, context),
        max_concurrent_rollouts=_concurrency(config, context),
        evaluations_traced=context.record("rollout.evaluations_traced", True, "default"),
        evaluation_env_config=_evaluation_env_config(config, context),
    )


def _evaluation_env_config(config: RlConfig, context: ResolveContext) -> dict[str, Any]:
    split = context.take("rollout.evaluation_env_config", config.data, "evaluation_split")
    if split is None:
        return {}
    if config.evaluation is None or config.evaluation.every_n_iters == 0:
        context.warn(("data", "evaluation_split"), "has no effect: nothing is evaluated")
    return {"split": split}


def _concurrency(config: RlConfig, context: ResolveContext) -> int:
    key = "rollout.max_concurrent_rollouts"
    concurrency = context.take(key, config.rollout, "max_concurrent_rollouts")
    bound = config.training.async_semaphore_max
    if bound is None or bound >= concurrency:
        return concurrency
    context.record_change(key, bound, f"{concurrency} becomes {bound}: the smaller of the two bounds holds")
    return context.take(key, config.training, "async_semaphore_max")


def _evaluation(
    section: EvaluationSection | None, graded: GradedRows | None, context: ResolveContext
) -> EvaluationSettings | None:
    if section is None or section.every_n_iters == 0:
        if section is not None and section.model_fields_set and "every_n_iters" not in section.model_fields_set:
            context.warn(("evaluation",), "has no effect: every_n_iters is not given")
        origin = "default" if section is None else context.document.where(("evaluation",))
        return context.record("evaluation", None, origin)
    if section.seeds is None and section.instances is None:
        context.problem(("evaluation", "seeds"), "there are no seeds to evaluate on", fix="set seeds or instances")
        return None
    if graded is not None and graded.validation_file is None and section.seeds is None:
        context.problem(
            ("evaluation", "seeds"),
            "the rows to evaluate on are missing",
            expected="numbers of rows of [job].data, from 0, or [data].validation_path",
        )
        return None
    first = _HELD_OUT_FROM if graded is None else 0
    seeds = section.seeds or Seeds(start=first, count=section.instances or 0)
    if section.instances is not None and section.instances > len(seeds):
        context.warn(("evaluation", "instances"), f"becomes {len(seeds)}: there are no more seeds")
    instances = min(section.instances or len(seeds), len(seeds))
    listed = context.first_seeds(seeds, instances, ("evaluation", "seeds"))
    if listed is None:
        return None
    context.take("evaluation.seeds", section, "seeds")
    threshold = resolve_threshold("evaluation.", section, context)
    return context.build(EvaluationSettings, section, "evaluation.", seeds=listed, success_threshold=threshold)


def _train_seeds(config: RlConfig, held_out: set[int], groups: int, context: ResolveContext) -> Seeds:
    """Return the seeds that training draws from. groups: of an iteration, each on a seed of its own."""
    data = config.data
    if data.seeds is not None:
        check_enough(data.seeds, "seeds", groups, context)
        if is_written(data, "seed_start"):
            context.warn(("data", "seed_start"), "has no effect: [data].seeds decides")
        shared = data.seeds.shared_with(held_out)
        if shared:
            context.warn(("data", "seeds"), f"shares {len(shared)} seeds with [evaluation], such as {min(shared)}")
        return context.take("train_seeds", data, "seeds")
    start: int = context.take("train_seeds", data, "seed_start")
    inside = {s for s in held_out if start <= s < start + TRAIN_SEEDS}
    if not inside:
        return Seeds(start=start, count=TRAIN_SEEDS)
    # A range cannot have holes, and a list of so many seeds does not fit into an event: begin after them.
    first = max(inside) + 1
    why = "[evaluation] has the seeds before it"
    if is_written(data, "seed_start"):
        context.warn(("data", "seed_start"), f"= {start} becomes {first}: {why}")
    shifted = Seeds(start=first, count=TRAIN_SEEDS)
    return context.record_change("train_seeds", shifted, f"training begins at seed {first}: {why}")
