"""The SFT job: what is trained, on how many rows a step, for how many steps."""

from __future__ import annotations

from synth.jobs.resolved import Mode, SftJob
from synth.jobs.resolving import Resolving, plain_tags
from synth.jobs.sft import Hyperparameters, SftConfig

_LEARNING_RATE = {"full": 1e-5, "lora": 2e-4}
_BATCH = 32
_VALIDATION_EVERY = 100


def resolve_sft(config: SftConfig, state: Resolving, *, uploaded: bool) -> SftJob | None:
    """Resolve, collecting problems in `state`; None when there are any that leave a hole."""
    if config.job.model is None and state.overrides.model is None:
        state.problem(
            ("job", "model"),
            "there is no model to train",
            expected='a model id such as "tiny-qwen3" or "Qwen/Qwen3-0.6B"',
            fix="set it here, or pass --model",
        )
    spec = state.model(config.job.model, ("job", "model"), use="sft")
    mode = _mode(config, state)
    hyper = config.hyperparameters
    training_file = _training_file(config, state, uploaded=uploaded)
    validation = _validation_file(config, state)
    section = config.training.validation
    epochs, steps = _length(hyper, state)
    batch_size = _batch_size(hyper, state)
    lora = state.lora(mode, config.lora or config.training.lora, spec, rl=False)
    parallelism = hyper.parallelism
    examples = state.overrides.examples
    if examples is not None and examples < 1:
        state.problem((), f"--examples {examples} leaves nothing to train on", expected="1 or more")
    if spec is None or training_file is None:
        return None
    return SftJob(
        model=spec.id,
        base_model=spec.base,
        mode=mode,
        lora=lora,
        training_file=training_file,
        examples=state.note("examples", examples, "flag" if examples else "default"),
        epochs=epochs,
        steps=steps,
        batch_size=batch_size,
        sequence_length=state.take("sequence_length", hyper, "sequence_length"),
        lr=state.take("lr", hyper, "learning_rate", _LEARNING_RATE[mode]),
        schedule=state.take("schedule", hyper, "lr_scheduler"),
        min_lr_ratio=state.take("min_lr_ratio", hyper, "min_lr_ratio"),
        warmup_ratio=state.take("warmup_ratio", hyper, "warmup_ratio"),
        warmup_steps=state.take("warmup_steps", hyper, "warmup_steps"),
        betas=tuple(state.take("betas", hyper, "betas")),
        weight_decay=state.take("weight_decay", hyper, "weight_decay"),
        clip_norm=state.take("clip_norm", hyper, "grad_clip"),
        packing=state.packing(hyper),
        micro_batch_tokens=state.take("micro_batch_tokens", hyper, "micro_batch_tokens"),
        activation_checkpointing=bool(parallelism and parallelism.activation_checkpointing),
        validation_file=validation,
        validation_every=(section.eval_steps if section else 0) or _VALIDATION_EVERY,
        best_metric="validation_loss" if validation and (section is None or section.save_best_model_at_end) else None,
        checkpoint_every=state.take("checkpoint_every", hyper, "checkpoint_every"),
        seed=state.seed(hyper),
        tags=plain_tags(config.tags),
    )


def _mode(config: SftConfig, state: Resolving) -> Mode:
    """Full or lora: the keys that say so must agree; `[algorithm] variety` decides only when none does."""
    said: dict[tuple[str, str], Mode] = {}
    match config.training.mode:
        case "lora":
            said["training", "mode"] = "lora"
        case "full_finetune":
            said["training", "mode"] = "full"
        case _:
            pass
    if config.training.use_qlora:
        said["training", "use_qlora"] = "lora"
    if config.hyperparameters.train_kind:
        kind = config.hyperparameters.train_kind
        said["hyperparameters", "train_kind"] = "lora" if kind == "peft" else "full"
    if len(set(said.values())) > 1:
        first, *others = said
        for other in others:
            if said[other] != said[first]:
                state.problem(
                    other,
                    f"this asks for a {said[other]} fine-tune, [{first[0]}].{first[1]} for a {said[first]} one",
                    fix="keep one of the two",
                )
    if said:
        return state.note("mode", next(iter(said.values())), "file")
    if config.algorithm and config.algorithm.variety in ("lora", "qlora"):
        return state.note("mode", "lora", "file")
    if config.lora or config.training.lora:
        return state.note("mode", "lora", "file")
    return state.note("mode", "full", "default")


def _training_file(config: SftConfig, state: Resolving, *, uploaded: bool) -> str | None:
    job = config.job
    if state.overrides.training_file is not None:
        return state.note("training_file", state.overrides.training_file, "flag")
    if job.data is not None and job.data_path is not None and job.data != job.data_path:
        state.problem(("job", "data_path"), "data and data_path name two datasets", fix="keep one of them")
    written = job.data if job.data is not None else job.data_path
    path = ("job", "data" if job.data_path is None else "data_path")
    if written is None:
        state.problem(
            path,
            "there is no dataset",
            expected="a JSONL file whose rows have `messages`",
            fix="set it here, or pass --dataset",
        )
    elif uploaded and not written.startswith("file_"):
        state.problem(
            path,
            f"the dataset {written!r} is a path, and was not uploaded",
            expected="the id of an uploaded file (file_…)",
            fix="`synthctl submit` uploads it; by hand: `synthctl files upload`",
        )
    return state.note("training_file", written, "file")


def _validation_file(config: SftConfig, state: Resolving) -> str | None:
    section = config.training.validation
    file, origin = state.overrides.validation_file, "flag"
    if file is None:
        file, origin = config.data.validation_path, "file"
    if file is None:
        if section and section.enabled and "enabled" in section.model_fields_set:
            state.warn(("training", "validation"), "has no effect: there is no [data].validation_path")
        return None
    if section and (not section.enabled or section.evaluation_strategy == "no"):
        return None
    return state.note("validation_file", file, origin)


def _length(hyper: Hyperparameters, state: Resolving) -> tuple[int, int | None]:
    if hyper.total_steps is not None and hyper.n_epochs is not None:
        state.warn(("hyperparameters", "n_epochs"), "has no effect: total_steps decides")
    return state.take("epochs", hyper, "n_epochs", 1), state.take("steps", hyper, "total_steps")


def _batch_size(hyper: Hyperparameters, state: Resolving) -> int:
    """Rows an optimizer step. What fits into memory at once is micro_batch_tokens' business."""
    device = hyper.per_device_batch or hyper.batch_size
    accumulation = hyper.gradient_accumulation_steps
    if hyper.global_batch is not None:
        if device and accumulation and device * accumulation != hyper.global_batch:
            state.problem(
                ("hyperparameters", "global_batch"),
                f"global_batch = {hyper.global_batch} is not {device} rows x {accumulation} accumulation steps",
                expected=f"{device * accumulation}",
                fix="keep global_batch, or the other two",
            )
        return state.take("batch_size", hyper, "global_batch")
    if device is None and accumulation is None:
        return state.note("batch_size", _BATCH, "default")
    return state.note("batch_size", (device or 1) * (accumulation or 1), "file")
