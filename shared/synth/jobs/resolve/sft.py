"""Resolve an SFT or DPO job: the trained weights, the rows of a step, the number of steps."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from synth.jobs.parse.toml import Path
from synth.jobs.resolve.context import ResolveContext, is_written
from synth.jobs.resolve.parallelism import sft_parallelism
from synth.jobs.resolve.vision import check_images, limit_micro_batch, resolve_vision
from synth.jobs.schema.sections import default_of
from synth.jobs.schema.sft import BestModelSection, HyperparametersSection, ParallelismSection, SftConfig
from synth.methods.base import Mode
from synth.methods.dpo import DpoJob, DpoSettings
from synth.methods.sft import SftJob

_OF_DPO = ("beta", "label_smoothing", "loss_type")


def resolve_sft(config: SftConfig, context: ResolveContext, *, uploaded: bool) -> SftJob | DpoJob | None:
    """Resolve, collecting problems in `context`; None when there are any that leave a hole."""
    if config.job.model is None and context.overrides.model is None:
        context.problem(
            ("job", "model"),
            "there is no model to train",
            expected='a model id such as "tiny-qwen3" or "Qwen/Qwen3-0.6B"',
            fix="set it here, or pass --model",
        )
    context.check_algorithm(
        config.algorithm,
        type="offline",
        methods=("sft", "supervised_finetune", "dpo"),
        varieties=("fft", "lora", "qlora"),
    )
    if context.overrides.model is not None:
        context.replace([("job", "model")], context.overrides.model)
    spec = context.find_model(config.job.model, ("job", "model"), use="sft")
    described = config.described_model
    images = (config.model, described)
    check_images(spec, [(table, "supports_vision") for table in images], [(config.job, "modalities")], context)
    mode = _mode(config, context)
    hyper = config.hyperparameters
    method, own = _method(config, context)
    training_file = _training_file(config, context, uploaded=uploaded)
    validation = _validation_file(config, context)
    epochs, steps = _duration(hyper, context)
    batch_size = _batch_size(config, context)
    lora = context.lora_settings(
        mode, [config.lora, config.training.lora, hyper], spec, without_dropout=method.without_dropout
    )
    parallelism = sft_parallelism(hyper, context)
    if hyper.warmup_steps is not None and "warmup_ratio" in hyper.model_fields_set:
        context.warn(("hyperparameters", "warmup_ratio"), "has no effect: warmup_steps decides")
    examples = context.overrides.examples
    if examples is not None:
        context.replace([("job", "examples")], examples)
        if examples < 1:
            context.problem((), f"--examples {examples} leaves nothing to train on", expected="1 or more")
    if spec is None or training_file is None:
        return None
    job = context.build(
        method,
        hyper,
        model=spec.id,
        base_model=spec.base,
        mode=mode,
        lora=lora,
        training_file=training_file,
        examples=(
            context.take("examples", config.job, "examples")
            if examples is None
            else context.record("examples", examples, "--examples")
        ),
        epochs=epochs,
        steps=steps,
        batch_size=batch_size,
        lr=context.take("lr", hyper, "learning_rate", method.learning_rates[mode]),
        packing=context.packing(hyper),
        micro_batch_tokens=limit_micro_batch(
            spec,
            hyper,
            context,
            tokens=context.take("micro_batch_tokens", hyper, "micro_batch_tokens"),
            row=hyper.sequence_length * method.row_sequences,
        ),
        activation_checkpointing=context.first(
            "activation_checkpointing", [(hyper.parallelism or ParallelismSection(), "activation_checkpointing")]
        ),
        parallelism=parallelism,
        validation_file=validation,
        validation_every=_validation_every(config, context),
        best_metric=_best_metric(config, validation, context),
        **own,
        seed=context.seed(hyper),
        tags=context.tags(config.tags),
        vision=resolve_vision(
            spec,
            ("job", "model"),
            context,
            max_images=[(table, "max_images_per_message") for table in images],
            processor=[(table, "vision_processor_id") for table in images],
            frozen=[(table, "freeze_vision_tower") for table in images],
            mode=mode,
        ),
    )
    if job.warmup_steps is not None:
        context.leave_out("warmup_ratio")
    return job


def _method(config: SftConfig, context: ResolveContext) -> tuple[type[SftJob | DpoJob], dict[str, Any]]:
    """Return the method, and the settings that it alone has. A supervised job must not have the keys of DPO."""
    algorithm, hyper = config.algorithm, config.hyperparameters
    if algorithm is None or algorithm.method != "dpo":
        for key in _OF_DPO:
            if is_written(hyper, key):
                context.problem(
                    ("hyperparameters", key),
                    f"{key} is of DPO, and this is a supervised job",
                    fix='remove it, or set [algorithm] method = "dpo" and train on preference pairs',
                )
        context.record("dpo", None, "default")
        return SftJob, {}
    return DpoJob, {"dpo": context.build(DpoSettings, hyper, "dpo.")}


def _mode(config: SftConfig, context: ResolveContext) -> Mode:
    """Return the mode. The keys that set it must agree; `[algorithm] variety` decides only if none is set."""
    training, hyper = config.training, config.hyperparameters
    requested: dict[Path, Mode] = {}
    if training.mode in ("lora", "full_finetune"):
        requested["training", "mode"] = "lora" if training.mode == "lora" else "full"
    if training.use_qlora:
        requested["training", "use_qlora"] = "qlora"
    if hyper.train_kind:
        requested["hyperparameters", "train_kind"] = "lora" if hyper.train_kind == "peft" else "full"
    first = next(iter(requested), None)
    for other in requested:
        if first is not None and (requested[other] == "full") != (requested[first] == "full"):
            context.problem(
                other,
                f"this requests a {requested[other]} fine-tune, [{first[0]}].{first[1]} a {requested[first]} one",
                fix="keep one of the two",
            )
    tables = _lora_tables(config)
    variety = config.algorithm.variety if config.algorithm is not None else "fft"
    if first is None and variety in ("lora", "qlora"):
        first, requested["algorithm", "variety"] = ("algorithm", "variety"), "lora"
    if first is None and tables:
        first, requested[tables[0]] = tables[0], "lora"
    if first is None:
        return context.record("mode", "full", "default")
    if requested[first] == "full":
        for path in tables:
            context.warn(path, f"has no effect: {context.document.label(first)} trains every weight")
        return context.record("mode", "full", context.document.where(first))
    # use_qlora decides the base under the adapter; if it is not set, the variety may.
    if training.use_qlora:
        return context.qlora_mode(context.document.where(("training", "use_qlora")))
    if variety == "qlora" and training.use_qlora is None:
        return context.qlora_mode(context.document.where(("algorithm", "variety")))
    if variety == "qlora":
        context.warn(("algorithm", "variety"), '= "qlora" has no effect: [training].use_qlora decides')
    return context.record("mode", "lora", context.document.where(first))


def _lora_tables(config: SftConfig) -> list[Path]:
    """Return the places of the keys and tables that configure an adapter."""
    tables: list[Path] = []
    if config.lora is not None:
        tables.append(("lora",))
    if config.training.lora is not None:
        tables.append(("training", "lora"))
    hyper = config.hyperparameters
    keys = [k for k in ("lora_rank", "lora_alpha", "lora_dropout", "lora_target_modules") if getattr(hyper, k)]
    return [*tables, *(("hyperparameters", key) for key in keys)]


def _training_file(config: SftConfig, context: ResolveContext, *, uploaded: bool) -> str | None:
    job = config.job
    if context.overrides.training_file is not None:
        context.replace([("job", "data"), ("job", "data_path")], context.overrides.training_file)
        return context.record("training_file", context.overrides.training_file, "--dataset")
    if job.data is not None and job.data_path is not None and job.data != job.data_path:
        context.problem(("job", "data_path"), "data and data_path name two datasets", fix="keep one of them")
    written = job.data if job.data is not None else job.data_path
    path = ("job", "data" if job.data_path is None else "data_path")
    if written is None:
        context.problem(
            path,
            "there is no dataset",
            expected="a JSONL file whose rows have `messages`, or for DPO preference pairs",
            fix="set it here, or pass --dataset",
        )
    elif uploaded and not written.startswith("file_"):
        context.problem(
            path,
            f"the dataset {written!r} is a path, and was not uploaded",
            expected="the id of an uploaded file (file_…)",
            fix="`synthctl submit` uploads it; by hand: `synthctl files upload`",
        )
    return context.record("training_file", written, context.document.where(path))


def _validation_keys(config: SftConfig, key: str) -> list[tuple[BaseModel | None, str]]:
    """Return the tables in which a key of `[training.validation]` may stand, the first wins."""
    hyper = config.hyperparameters
    return [(config.training.validation, key), (hyper, key), (hyper.parallelism, key)]


def _validation_file(config: SftConfig, context: ResolveContext) -> str | None:
    section = config.training.validation
    file, origin = context.overrides.validation_file, "--validation"
    if file is not None:
        context.replace([("data", "validation_path")], file)
    else:
        file, origin = config.data.validation_path, context.document.where(("data", "validation_path"))
    if file is None:
        if section and section.enabled and "enabled" in section.model_fields_set:
            context.warn(("training", "validation"), "has no effect: there is no [data].validation_path")
        return context.record("validation_file", None, "default")
    if section and not section.enabled:
        return context.record("validation_file", None, context.document.where(("training", "validation", "enabled")))
    if context.first("validation_file", _validation_keys(config, "evaluation_strategy")) == "no":
        return None
    return context.record("validation_file", file, origin)


def _validation_every(config: SftConfig, context: ResolveContext) -> int:
    every = context.first("validation_every", _validation_keys(config, "eval_steps"))
    return every or context.record("validation_every", default_of(BestModelSection, "eval_steps"), "default")


def _best_metric(
    config: SftConfig, validation: str | None, context: ResolveContext
) -> Literal["validation_loss"] | None:
    """Return the metric that selects the resulting checkpoint; the keys that name it allow only one value."""
    named = [*_validation_keys(config, "save_best_model_at_end"), *_validation_keys(config, "load_best_model_at_end")]
    best = context.first("best_metric", named)
    return "validation_loss" if validation and best else None


def _duration(hyper: HyperparametersSection, context: ResolveContext) -> tuple[int, int | None]:
    steps = context.first("steps", [(hyper, "total_steps"), (hyper, "train_steps"), (hyper, "steps")])
    if steps is not None and is_written(hyper, "n_epochs"):
        context.warn(("hyperparameters", "n_epochs"), "has no effect: the number of steps decides")
    epochs = context.take("epochs", hyper, "n_epochs")
    if steps is not None:
        context.leave_out("epochs")
    return epochs, steps


def _batch_size(config: SftConfig, context: ResolveContext) -> int:
    """Return the rows of an optimizer step; micro_batch_tokens decides how many fit into memory at once."""
    hyper = config.hyperparameters
    device = context.first("batch_size", [(hyper, "per_device_batch"), (hyper, "batch_size")])
    accumulation = hyper.gradient_accumulation_steps
    written = is_written(hyper, "global_batch")
    if written or (device is None and accumulation is None):
        _without_gpus(config, context)
        if device and accumulation and written and device * accumulation * _gpus(config) != hyper.global_batch:
            context.problem(
                ("hyperparameters", "global_batch"),
                f"global_batch = {hyper.global_batch} is not {_factors(device, accumulation, _gpus(config))}",
                expected=f"{device * accumulation * _gpus(config)}",
                fix="keep global_batch, or the others",
            )
        return context.take("batch_size", hyper, "global_batch")
    if device is None:
        context.take("batch_size", hyper, "gradient_accumulation_steps")
    elif accumulation is None and _gpus(config) == 1:
        return device
    rows = (device or 1) * (accumulation or 1) * _gpus(config)
    return context.record_change("batch_size", rows, _factors(device, accumulation, _gpus(config)))


def _factors(device: int | None, accumulation: int | None, gpus: int) -> str:
    """Describe the factors of a step's rows."""
    rows = f"{device or 1} row{'' if (device or 1) == 1 else 's'} a pass"
    passes = [f"{accumulation} passes a step"] if accumulation is not None else []
    return ", ".join([rows, *passes, *([f"{gpus} GPUs of [compute]"] if gpus > 1 else [])])


def _gpus(config: SftConfig) -> int:
    """Return the GPUs that a file was written for: each passes over the rows of `per_device_batch`."""
    compute = config.compute
    return (compute.gpu_count or 1) * (compute.nodes or 1) if compute is not None else 1


def _without_gpus(config: SftConfig, context: ResolveContext) -> None:
    """Warn of the GPUs of a file if they do not decide the rows of a step."""
    for key in ("gpu_count", "nodes"):
        if config.compute is not None and (getattr(config.compute, key) or 1) > 1:
            decides = context.document.label(("hyperparameters", "global_batch"))
            why = f"{decides} is the rows of a step on all GPUs, and the cluster has the machines that it has"
            context.warn(("compute", key), f"has no effect: {why}")
