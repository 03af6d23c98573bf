"""Write a resolved job as the tables of a job file: the reverse of `synth.jobs.resolve`.

Invariant. The file of these tables resolves to the same job, whether the job came from a TOML with flags or from the
payload of a published client. Every setting is written, so that a later release's defaults change nothing.
"""

from __future__ import annotations

from typing import Any

import msgspec

from synth.jobs.rewards_as_file import judging_tables, step_rewards_keys
from synth.jobs.schema.correction import CorrectionSection
from synth.jobs.schema.eval import EvalSection
from synth.jobs.schema.rl import EvaluationSection, RolloutSection, TrainingSection
from synth.jobs.schema.sections import LoraSection, PolicyConfigSection, TopologySection, copied_keys, default_of
from synth.jobs.schema.sft import HyperparametersSection
from synth.jobs.schema.watch import WatchSection
from synth.methods.base import LoraSettings, VisionSettings
from synth.methods.distillation import DistillationSettings
from synth.methods.dpo import DpoJob
from synth.methods.eval import EvalJob
from synth.methods.job import Job
from synth.methods.losses import find_spec
from synth.methods.rl import RlJob
from synth.methods.rollouts import RolloutSettings
from synth.methods.seeds import Seeds
from synth.methods.sft import SftJob
from synth.models import parse_finetuned

Table = dict[str, Any]

#: Above this a list of seeds in a row is a range.
_LISTED = 8
_VARIETY = {"full": "fft", "lora": "lora", "qlora": "qlora"}


def job_file(job: Job) -> Table:
    """Return the tables of the file without the empty ones; they contain only TOML data types."""
    match job:
        case RlJob():
            table = _rl(job)
        case EvalJob():
            table = _eval(job)
        case _:
            table = _of_rows(job)
    return _without_empty(table)


def _rl(job: RlJob) -> Table:
    rollout, evaluation, graded = job.rollout, job.evaluation, job.graded
    return {
        "algorithm": {
            "type": "online",
            "method": "policy_gradient",
            "variety": find_spec(job.loss).name,
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
        "topology": copied_keys(job.topology, TopologySection),
        "vllm": {"limit_mm_per_prompt": {"image": job.vision.max_images_per_prompt if job.vision else None}},
        "reference": {"placement": job.reference},
        "distillation": _distillation(job.distillation),
        "rollout": {
            **copied_keys(rollout, RolloutSection),
            "policy_config": {**rollout.policy_config, **_sampling(rollout)},
            "task_app_origin_rewards_only": job.rewards.scores == "task_app" or None,
        },
        **judging_tables(job.rewards),
        "evaluation": {
            **copied_keys(evaluation, EvaluationSection),
            "seeds": _listed(evaluation.seeds),
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
            **copied_keys(job, TrainingSection),
            "iterations_per_epoch": job.iterations,
            "packing": job.packing == "packed",
            "lora": None,
            "rewards": None,
            # A plugin that gives advantages divides nothing.
            "advantage_std": job.advantage_std if job.advantage is None else None,
            "overlong_penalty": job.overlong_penalty or None,
            "correction": copied_keys(job.correction, CorrectionSection) if job.correction.gates else {"gates": False},
            "weight_sync": {"verify_every_k": job.verify_every_k},
            "watch": {"enabled": False} if job.watch is None else copied_keys(job.watch, WatchSection),
            **step_rewards_keys(job.rewards),
        },
        "tags": job.tags,
    }


def _of_rows(job: SftJob | DpoJob) -> Table:
    parallelism = job.parallelism
    # If one of two keys decides, the other is written only if it is not its default: it would cause a warning.
    epochs = job.epochs if job.steps is None or job.epochs != _default("n_epochs") else None
    ratio = job.warmup_ratio if job.warmup_steps is None or job.warmup_ratio != _default("warmup_ratio") else None
    return {
        "algorithm": {"type": "offline", "method": job.method, "variety": _VARIETY[job.mode]},
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
            **copied_keys(job, HyperparametersSection),
            "n_epochs": epochs,
            "steps": None,
            "total_steps": job.steps,
            "batch_size": None,
            "global_batch": job.batch_size,
            "packing": job.packing == "packed",
            "warmup_ratio": ratio,
            **(msgspec.to_builtins(job.dpo) or {}),
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
            **copied_keys(rollout, EvalSection),
            "rollouts_per_seed": job.rollouts_per_seed,
            "success_threshold": job.success_threshold,
            "concurrency": rollout.max_concurrent_rollouts,
            **sampling,
            "max_images_per_message": job.vision.max_images_per_message if job.vision else None,
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


def _sampling(rollout: RolloutSettings) -> Table:
    sampling = rollout.sampling
    thinking = None if sampling.thinking is None else "think" if sampling.thinking else "no_think"
    return copied_keys(sampling, PolicyConfigSection) | {"thinking_mode": thinking}


def _lora(lora: LoraSettings | None) -> Table:
    if lora is None:
        return {}
    targets = [lora.targets] if lora.targets == "all-linear" else lora.targets
    return {
        **copied_keys(lora, LoraSection),
        # A text is a pattern, which only the registry has: it gives the same one again.
        "target_modules": targets if isinstance(targets, list) else None,
    }


def _distillation(distillation: DistillationSettings | None) -> Table:
    return {} if distillation is None else msgspec.to_builtins(distillation)


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
