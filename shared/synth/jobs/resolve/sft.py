"""The SFT job: what is trained, on how many rows a step, for how many steps."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from synth.jobs.parse.toml import Path
from synth.jobs.resolve.context import Resolving
from synth.jobs.resolve.parallelism import sft_parallelism
from synth.jobs.resolve.vision import row_at_a_time, vision_of
from synth.jobs.resolved import Mode, SftJob
from synth.jobs.schema.sft import Hyperparameters, SftConfig

LEARNING_RATE = {"full": 1e-5, "lora": 2e-4, "qlora": 2e-4}
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
    state.algorithm(
        config.algorithm,
        type="offline",
        methods=("sft", "supervised_finetune"),
        varieties=("fft", "lora", "qlora"),
    )
    spec = state.model(config.job.model, ("job", "model"), use="sft")
    mode = _mode(config, state)
    hyper = config.hyperparameters
    training_file = _training_file(config, state, uploaded=uploaded)
    validation = _validation_file(config, state)
    epochs, steps = _length(hyper, state)
    batch_size = _batch_size(hyper, state)
    lora = state.lora(mode, [config.lora, config.training.lora, hyper], spec, rl=False)
    parallelism = sft_parallelism(hyper, state)
    if hyper.warmup_steps is not None and "warmup_ratio" in hyper.model_fields_set:
        state.warn(("hyperparameters", "warmup_ratio"), "has no effect: warmup_steps decides")
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
        examples=state.note("examples", examples, "--examples" if examples else "default"),
        epochs=epochs,
        steps=steps,
        batch_size=batch_size,
        sequence_length=state.take("sequence_length", hyper, "sequence_length"),
        lr=state.take("lr", hyper, "learning_rate", LEARNING_RATE[mode]),
        schedule=state.take("schedule", hyper, "lr_scheduler"),
        min_lr_ratio=state.take("min_lr_ratio", hyper, "min_lr_ratio"),
        warmup_ratio=state.take("warmup_ratio", hyper, "warmup_ratio"),
        warmup_steps=state.take("warmup_steps", hyper, "warmup_steps"),
        betas=tuple(state.take("betas", hyper, "betas")),
        weight_decay=state.take("weight_decay", hyper, "weight_decay"),
        clip_norm=state.take("clip_norm", hyper, "grad_clip"),
        packing=state.packing(hyper),
        micro_batch_tokens=row_at_a_time(
            spec,
            hyper,
            state,
            tokens=state.take("micro_batch_tokens", hyper, "micro_batch_tokens"),
            row=hyper.sequence_length,
        ),
        activation_checkpointing=state.first(
            "activation_checkpointing", [(hyper.parallelism, "activation_checkpointing")], False
        ),
        parallelism=parallelism,
        validation_file=validation,
        validation_every=_validation_every(config, state),
        best_metric=_best_metric(config, validation, state),
        checkpoint_every=state.take("checkpoint_every", hyper, "checkpoint_every"),
        checkpoints_kept=state.take("checkpoints_kept", hyper, "keep_checkpoints"),
        seed=state.seed(hyper),
        tags=state.tags(config.tags),
        vision=vision_of(spec, ("job", "model"), state, rl=None),
    )


def _mode(config: SftConfig, state: Resolving) -> Mode:
    """What is trained: the keys that say so must agree; `[algorithm] variety` decides only when none does."""
    training, hyper = config.training, config.hyperparameters
    said: dict[Path, Mode] = {}
    if training.mode in ("lora", "full_finetune"):
        said["training", "mode"] = "lora" if training.mode == "lora" else "full"
    if training.use_qlora:
        said["training", "use_qlora"] = "qlora"
    if hyper.train_kind:
        said["hyperparameters", "train_kind"] = "lora" if hyper.train_kind == "peft" else "full"
    first = next(iter(said), None)
    for other in said:
        if first is not None and (said[other] == "full") != (said[first] == "full"):
            state.problem(
                other,
                f"this asks for a {said[other]} fine-tune, [{first[0]}].{first[1]} for a {said[first]} one",
                fix="keep one of the two",
            )
    tables = _lora_tables(config)
    variety = config.algorithm.variety if config.algorithm is not None else "fft"
    if first is None and variety in ("lora", "qlora"):
        first, said["algorithm", "variety"] = ("algorithm", "variety"), "lora"
    if first is None and tables:
        first, said[tables[0]] = tables[0], "lora"
    if first is None:
        return state.note("mode", "full", "default")
    if said[first] == "full":
        for path in tables:
            state.warn(path, f"has no effect: {state.document.label(first)} asks for every weight")
        return state.note("mode", "full", state.document.where(first))
    # use_qlora alone speaks of the base under the adapter; where it does not, the variety may.
    if training.use_qlora:
        return state.qlora(state.document.where(("training", "use_qlora")))
    if variety == "qlora" and training.use_qlora is None:
        return state.qlora(state.document.where(("algorithm", "variety")))
    if variety == "qlora":
        state.warn(("algorithm", "variety"), '= "qlora" has no effect: [training].use_qlora decides')
    return state.note("mode", "lora", state.document.where(first))


def _lora_tables(config: SftConfig) -> list[Path]:
    """Where the file speaks of an adapter."""
    tables: list[Path] = []
    if config.lora is not None:
        tables.append(("lora",))
    if config.training.lora is not None:
        tables.append(("training", "lora"))
    hyper = config.hyperparameters
    keys = [k for k in ("lora_rank", "lora_alpha", "lora_dropout", "lora_target_modules") if getattr(hyper, k)]
    return [*tables, *(("hyperparameters", key) for key in keys)]


def _training_file(config: SftConfig, state: Resolving, *, uploaded: bool) -> str | None:
    job = config.job
    if state.overrides.training_file is not None:
        return state.note("training_file", state.overrides.training_file, "--dataset")
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
    return state.note("training_file", written, state.document.where(path))


def _measured_by(config: SftConfig, key: str) -> list[tuple[BaseModel | None, str]]:
    """The tables in which a key of `[training.validation]` may stand, the first wins."""
    hyper = config.hyperparameters
    return [(config.training.validation, key), (hyper, key), (hyper.parallelism, key)]


def _validation_file(config: SftConfig, state: Resolving) -> str | None:
    section = config.training.validation
    file, origin = state.overrides.validation_file, "--validation"
    if file is None:
        file, origin = config.data.validation_path, state.document.where(("data", "validation_path"))
    if file is None:
        if section and section.enabled and "enabled" in section.model_fields_set:
            state.warn(("training", "validation"), "has no effect: there is no [data].validation_path")
        return state.note("validation_file", None, "default")
    if section and not section.enabled:
        return state.note("validation_file", None, state.document.where(("training", "validation", "enabled")))
    if state.first("validation_file", _measured_by(config, "evaluation_strategy")) == "no":
        return None
    return state.note("validation_file", file, origin)


def _validation_every(config: SftConfig, state: Resolving) -> int:
    asked = state.first("validation_every", _measured_by(config, "eval_steps"))
    return asked or state.note("validation_every", _VALIDATION_EVERY, "default")


def _best_metric(config: SftConfig, validation: str | None, state: Resolving) -> Literal["validation_loss"] | None:
    """What picks the checkpoint that is kept; the keys that name the metric allow one value only."""
    named = [*_measured_by(config, "save_best_model_at_end"), *_measured_by(config, "load_best_model_at_end")]
    best = state.first("best_metric", named, True)
    return "validation_loss" if validation and best else None


def _length(hyper: Hyperparameters, state: Resolving) -> tuple[int, int | None]:
    steps = state.first("steps", [(hyper, "total_steps"), (hyper, "train_steps"), (hyper, "steps")])
    if steps is not None and hyper.n_epochs is not None:
        state.warn(("hyperparameters", "n_epochs"), "has no effect: the number of steps decides")
    return state.take("epochs", hyper, "n_epochs", 1), steps


def _batch_size(hyper: Hyperparameters, state: Resolving) -> int:
    """Rows an optimizer step. What fits into memory at once is micro_batch_tokens' business."""
    device = state.first("batch_size", [(hyper, "per_device_batch"), (hyper, "batch_size")])
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
    if accumulation is None:
        return device or state.note("batch_size", _BATCH, "default")
    if device is None:
        return state.take("batch_size", hyper, "gradient_accumulation_steps")
    return state.change("batch_size", device * accumulation, f"{device} rows a pass, {accumulation} passes a step")
