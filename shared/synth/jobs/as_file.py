"""Write a resolved job as the tables of a job file: the reverse of `synth.jobs.resolve`.

Invariant. The file of these tables resolves to the same job, whether the job came from a TOML with flags or from the
payload of a published client. Every setting is written, so that a later release's defaults change nothing.
"""

from __future__ import annotations

from typing import Any

import msgspec

from synth.jobs.distillation import DistillationSettings
from synth.jobs.resolved import (
    CorrectionSettings,
    EvalJob,
    Job,
    LoraSettings,
    RlJob,
    RolloutSettings,
    SftJob,
    TrainingJob,
    VisionSettings,
    WatchSettings,
)
from synth.jobs.rewards_as_file import judging_tables, step_rewards_keys
from synth.jobs.schema.plugins import LOSSES
from synth.jobs.schema.sections import default_of
from synth.jobs.schema.sft import HyperparametersSection
from synth.jobs.seeds import Seeds
from synth.models import parse_finetuned

Table = dict[str, Any]

#: Above this a list of seeds in a row is a range.
_LISTED = 8
#: The loss whose clip a plugin of `[training] loss` has by default.
_PLUGIN_VARIETY = "grpo"
_VARIETY = {"full": "fft", "lora": "lora", "qlora": "qlora"}


def job_file(job: Job) -> Table:
    """Return the tables of the file without the empty ones; they contain only TOML data types."""
    if isinstance(job, RlJob):
        return _without_empty(_rl(job))
    if isinstance(job, SftJob):
        return _without_empty(_sft(job))
    return _without_empty(_eval(job))


def _rl(job: RlJob) -> Table:
    rollout, evaluation, graded = job.rollout, job.evaluation, job.graded
    return {
        "algorithm": {
            "type": "online",
            "method": "policy_gradient",
            "variety": job.loss if job.loss in LOSSES else _PLUGIN_VARIETY,
        },
        "services": {"task_url": rollout.task_url or None},
        "job": {"data": graded.training_file if graded else None},
        "grader": graded.grader if graded else {},
        "model": {
            "source" if parse_finetuned(job.model) else "base": job.model,
            "trainer_mode": job.mode,
            "label": job.label,
            **_images(job.vision),
        },
        "lora": _lora(job.lora),
        "topology": {
            "gpus_for_vllm": job.topology.gpus_for_vllm,
            "gpus_for_training": job.topology.gpus_for_training,
            "gpus_for_ref": job.topology.gpus_for_ref,
        },
        "vllm": {"limit_mm_per_prompt": {"image": job.vision.max_images_per_prompt if job.vision else None}},
        "reference": {"placement": job.reference},
        "distillation": _distillation(job.distillation),
        "rollout": {
            **_rollout(rollout),
            "max_concurrent_rollouts": rollout.max_concurrent_rollouts,
            "group_timeout_s": rollout.group_timeout_s,
            "env_config": rollout.env_config,
            "policy_config": {**rollout.policy_config, **_sampling(rollout)},
            "trace_rate": rollout.trace_rate,
            "task_app_origin_rewards_only": job.rewards.scores == "task_app" or None,
        },
        **judging_tables(job.rewards),
        "evaluation": {
            "every_n_iters": evaluation.every_n_iters,
            "seeds": _listed(evaluation.seeds),
            "rollouts_per_seed": evaluation.rollouts_per_seed,
            "success_threshold": evaluation.success_threshold,
        }
        if evaluation
        else {},
        "data": {
            "validation_path": graded.validation_file if graded else None,
            "seeds": _seeds(job.train_seeds),
            "curriculum": [_seeds(seeds) for seeds in job.curriculum] or None,
            "evaluation_split": rollout.evaluation_env_config.get("split"),
        },
        "training": {
            "iterations_per_epoch": job.iterations,
            "batch_size": job.batch_size,
            "group_size": job.group_size,
            "minibatches": job.minibatches,
            **_optimization(job),
            "warmup_ratio": job.warmup_ratio,
            "loss": job.loss,
            "clip_low": job.clip_low,
            "clip_high": job.clip_high,
            "dual_clip": job.dual_clip,
            "token_truncation": job.token_truncation,
            "loss_reduction": job.loss_reduction,
            "kl_beta": job.kl_beta,
            # A plugin that gives advantages divides nothing.
            "advantage_std": job.advantage_std if job.advantage is None else None,
            "advantage": job.advantage,
            "overlong": job.overlong,
            "overlong_penalty": job.overlong_penalty or None,
            "dynamic_sampling": job.dynamic_sampling,
            "async_level": job.async_level,
            "max_staleness": job.max_staleness,
            "activation_checkpointing": job.activation_checkpointing,
            "correction": _correction(job.correction),
            "weight_sync": {"verify_every_k": job.verify_every_k},
            "solved_after": job.solved_after,
            "watch": _watch(job.watch),
            **step_rewards_keys(job.rewards),
        },
        "tags": job.tags,
    }


def _sft(job: SftJob) -> Table:
    parallelism = job.parallelism
    # If one of two keys decides, the other is written only if it is not its default: it would cause a warning.
    epochs = job.epochs if job.steps is None or job.epochs != _default("n_epochs") else None
    ratio = job.warmup_ratio if job.warmup_steps is None or job.warmup_ratio != _default("warmup_ratio") else None
    return {
        "algorithm": {"type": "offline", "method": "dpo" if job.dpo else "sft", "variety": _VARIETY[job.mode]},
        "job": {"model": job.model, "data": job.training_file, "examples": job.examples},
        "model": _images(job.vision),
        "data": {"validation_path": job.validation_file},
        "training": {
            "mode": "full_finetune" if job.mode == "full" else "lora",
            "use_qlora": job.mode == "qlora" or None,
            "validation": {
                "eval_steps": job.validation_every,
                "save_best_model_at_end": job.best_metric is not None,
            },
        },
        "lora": _lora(job.lora),
        "hyperparameters": {
            "n_epochs": epochs,
            "total_steps": job.steps,
            "global_batch": job.batch_size,
            "sequence_length": job.sequence_length,
            **_optimization(job),
            "warmup_ratio": ratio,
            "warmup_steps": job.warmup_steps,
            "beta": job.dpo.beta if job.dpo else None,
            "label_smoothing": job.dpo.label_smoothing if job.dpo else None,
            "world_size": parallelism.world_size,
            "parallelism": {
                "fsdp": {"parameters": True, "replicated": False}.get(parallelism.sharding),
                "deepspeed_stage": 2 if parallelism.sharding == "gradients" else None,
                "bf16": None if parallelism.dtype is None else parallelism.dtype == "bf16",
                "activation_checkpointing": job.activation_checkpointing,
            },
        },
        "tags": job.tags,
    }


def _images(vision: VisionSettings | None) -> Table:
    if vision is None:
        return {}
    return {
        "max_images_per_message": vision.max_images_per_message,
        "vision_processor_id": vision.processor_id,
        "freeze_vision_tower": None if vision.freeze_vision_tower else False,
    }


def _eval(job: EvalJob) -> Table:
    rollout = job.rollout
    sampling = _sampling(rollout)
    # Keys of `[eval]` that are also keys of its `policy_config` stand in `[eval]`, which comes first.
    beside = {name: sampling.pop(name) for name in ("top_p", "top_k")}
    return {
        "eval": {
            "model": job.model,
            "task_app_url": rollout.task_url,
            "seeds": _listed(job.seeds),
            "rollouts_per_seed": job.rollouts_per_seed,
            "success_threshold": job.success_threshold,
            **_rollout(rollout),
            "concurrency": rollout.max_concurrent_rollouts,
            **sampling,
            "max_images_per_message": job.vision.max_images_per_message if job.vision else None,
            "env_config": rollout.env_config,
            "policy_config": {**rollout.policy_config, **beside},
            "return_trace": None if rollout.evaluations_traced else False,
            "tags": job.tags,
        },
        "model": {
            "label": job.label,
            "vision_processor_id": job.vision.processor_id if job.vision else None,
        },
        "rollout": {"task_app_origin_rewards_only": job.rewards.scores == "task_app" or None},
        **judging_tables(job.rewards),
    }


def _optimization(job: TrainingJob) -> Table:
    """Return the keys that have one name in `[training]` of RL and in `[hyperparameters]` of SFT."""
    return {
        "learning_rate": job.lr,
        "lr_scheduler": job.schedule,
        "min_lr_ratio": job.min_lr_ratio,
        "betas": list(job.betas),
        "weight_decay": job.weight_decay,
        "grad_clip": job.clip_norm,
        "packing": job.packing == "packed",
        "micro_batch_tokens": job.micro_batch_tokens,
        "optimizer": job.optimizer,
        "optimizer_offload": job.optimizer_offload,
        "checkpoint_every": job.checkpoint_every,
        "keep_checkpoints": job.checkpoints_kept,
        "seed": job.seed,
    }


def _rollout(rollout: RolloutSettings) -> Table:
    return {
        "env_name": rollout.env_name,
        "policy_name": rollout.policy_name,
        "max_turns": rollout.max_turns,
        "ops": rollout.ops,
        "failure_reward": rollout.failure_reward,
        "rollout_timeout_s": rollout.rollout_timeout_s,
        "max_retries": rollout.max_retries,
        "constrain_tools": rollout.constrain_tools,
    }


def _sampling(rollout: RolloutSettings) -> Table:
    sampling = rollout.sampling
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "max_tokens": sampling.max_tokens,
        "thinking_mode": None if sampling.thinking is None else "think" if sampling.thinking else "no_think",
        "thinking_budget": sampling.thinking_budget,
    }


def _lora(lora: LoraSettings | None) -> Table:
    if lora is None:
        return {}
    targets = [lora.targets] if lora.targets == "all-linear" else lora.targets
    return {
        "r": lora.r,
        "alpha": lora.alpha,
        "dropout": lora.dropout,
        # A text is a pattern, which only the registry has: it gives the same one again.
        "target_modules": targets if isinstance(targets, list) else None,
    }


def _distillation(distillation: DistillationSettings | None) -> Table:
    return {} if distillation is None else msgspec.to_builtins(distillation)


def _correction(correction: CorrectionSettings) -> Table:
    if not correction.gates:
        return {"gates": False}
    return {
        "gates": True,
        "on_policy": list(correction.on_policy),
        "off_policy": list(correction.off_policy),
        "gate_tokens": correction.gate_tokens,
        "rejected": correction.rejected,
    }


def _watch(watch: WatchSettings | None) -> Table:
    if watch is None:
        return {"enabled": False}
    return {name: getattr(watch, name) for name in WatchSettings.__struct_fields__}


def _seeds(seeds: Seeds) -> str | list[int]:
    return _listed(seeds.listed) if seeds.listed else f"{seeds.start}-{seeds.start + seeds.count - 1}"


def _listed(seeds: list[int]) -> str | list[int]:
    in_a_row = len(seeds) > _LISTED and seeds == list(range(seeds[0], seeds[0] + len(seeds)))
    return f"{seeds[0]}-{seeds[-1]}" if in_a_row else seeds


def _default(name: str) -> Any:
    return default_of(HyperparametersSection, name)


def _without_empty(table: Table) -> Table:
    """Return the table without its nulls, which TOML does not have, and without empty tables of its own."""
    kept: Table = {}
    for key, value in table.items():
        # Tables that are passed on unchanged are kept unchanged.
        if isinstance(value, dict) and key not in ("env_config", "grader", "tags"):
            value = _without_empty(value)  # pyright: ignore[reportUnknownArgumentType]
        if value is not None and value != {}:
            kept[key] = value
    return kept
