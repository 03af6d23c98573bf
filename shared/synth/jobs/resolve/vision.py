"""The vision settings and the limits that the registry sets for a vision model. Text models pass through."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from synth.jobs.parse.toml import Path
from synth.jobs.resolve.context import ResolveContext, is_written
from synth.jobs.schema.rl import LimitPerPromptSection
from synth.jobs.schema.sft import HyperparametersSection
from synth.methods.base import Mode, VisionSettings
from synth.models import ModelSpec

#: Keys of the file, in the tables where they may stand.
Keys = Sequence[tuple[BaseModel | None, str]]

#: Keys of a policy that request images from the task app.
IMAGE_WISHES = ("use_vision", "image_only_mode")

_WHY = "a row of a model that sees may hold an image"


def check_images(spec: ModelSpec | None, claims: Keys, wishes: Keys, context: ResolveContext) -> None:
    """Refuse images for a text model: report one problem, at the first key that requests them.

    claims: keys that describe the model's abilities. wishes: keys that request images, for any model.
    """
    if spec is None or spec.assumed:
        return
    if spec.vision is not None:
        for path in _paths(claims, (False,), context):
            context.problem(
                path, f"{path[-1]} = false, and {spec.id!r} is a vision model", expected="true", fix="remove the key"
            )
        return
    requested = _paths((*claims, *wishes), (True, ["image"], ["text", "image"], ["image", "text"]), context)
    if not requested:
        return
    first, *others = requested
    value = json.dumps(context.document.get(first))
    also = f" ({', '.join(context.document.label(path) for path in others)} requests images too)" if others else ""
    context.problem(
        first,
        f"{first[-1]} = {value}, and {spec.id!r} sees no images{also}",
        expected="text alone, or a vision model such as Qwen/Qwen3-VL-4B-Instruct",
        fix="remove the keys that request images, or name a vision model",
    )


def _paths(named: Keys, values: tuple[Any, ...], context: ResolveContext) -> list[Path]:
    written = [(section, key) for section, key in named if section is not None and is_written(section, key)]
    return [context.at(section, key) for section, key in written if getattr(section, key) in values]


def resolve_vision(
    spec: ModelSpec | None,
    at: Path | None,
    context: ResolveContext,
    *,
    max_images: Keys = (),
    per_step: Keys = (),
    per_prompt: LimitPerPromptSection | None = None,
    processor: Keys = (),
    frozen: Keys = (),
    mode: Mode = "full",
) -> VisionSettings | None:
    """Return the vision block of a job: the file's values, else the registry's. None for a text model.

    at: the key that names the model; None records no changes by the registry. max_images, processor, frozen: the keys
    that may set how many images a message keeps, which model's processor prepares them, and whether the vision tower is
    frozen. per_step: the keys that set the task app's number of images in an observation; if no key sets how many a
    message keeps, it keeps as many. per_prompt: how many images a prompt keeps in all its messages. mode: the job's
    mode.
    """
    if spec is None or spec.vision is None:
        for section, key in (*max_images, *processor, *frozen, (per_prompt, "image")):
            if section is not None and is_written(section, key) and spec is not None and not spec.assumed:
                context.warn(context.at(section, key), f"has no effect: {spec.id!r} sees no images")
        return context.record("vision", None, "registry")
    images = context.first("vision.max_images_per_message", max_images)
    for section, key in per_step:
        if section is None or not is_written(section, key):
            continue
        requested = getattr(section, key)
        if images is None:
            images = context.first("vision.max_images_per_message", [(section, key)])
        elif requested > images:
            context.problem(
                context.at(section, key),
                f"{key} = {requested}, and a message keeps the first {images} images (max_images_per_message)",
                expected=f"at most {images}",
                fix=f"set max_images_per_message = {requested}, or request fewer",
            )
    in_prompt = context.first("vision.max_images_per_prompt", [(per_prompt, "image")])
    processor_id = context.first("vision.processor_id", processor)
    written_images, written_processor = images is not None, processor_id is not None
    if not written_images:
        images = context.record("vision.max_images_per_message", spec.vision.max_images_per_message, "registry")
        context.record_change("vision.max_images_per_message", images, f"{spec.base} is a vision model")
    if not written_processor:
        processor_id = context.record("vision.processor_id", spec.vision.processor_id, "registry")
        context.record_change("vision.processor_id", processor_id, f"{spec.base} is a vision model")
    if per_prompt is not None and in_prompt is not None and in_prompt < images:
        context.problem(
            context.at(per_prompt, "image"),
            f"image = {in_prompt}, and a message alone keeps {images} images",
            expected=f"at least {images}",
            fix="raise it, or lower max_images_per_message",
        )
    added = [
        *([] if written_images else [f"max_images_per_message = {images}"]),
        *([] if written_processor else [f'vision_processor_id = "{processor_id}"']),
    ]
    if added and at is not None:
        context.warn(at, f"{spec.base!r} is a vision model: the registry adds {' and '.join(added)}")
    freeze = context.first("vision.freeze_vision_tower", frozen)
    if freeze is False and mode != "full":
        path = next(context.at(table, key) for table, key in frozen if table is not None and is_written(table, key))
        context.problem(
            path,
            f"freeze_vision_tower = false, and the job trains an adapter (mode {mode})",
            expected="full training, which alone trains the tower",
            fix="name the tower's layers in [lora] target_modules instead, or train every weight",
        )
    return VisionSettings(
        max_images_per_message=images,
        processor_id=processor_id,
        freeze_vision_tower=True if freeze is None else freeze,
        max_images_per_prompt=in_prompt,
    )


def limit_micro_batch(
    spec: ModelSpec | None, hyper: HyperparametersSection, context: ResolveContext, *, tokens: int, row: int
) -> int:
    """Return the tokens of one forward pass of SFT. The default of a vision model is one row.

    The rows of a step stay the same.

    tokens: of a pass, as in the job; row: of the longest row.
    """
    if spec is None or spec.vision is None:
        return tokens
    limit = spec.vision.per_device_batch
    for key in ("per_device_batch", "batch_size"):
        requested = getattr(hyper, key)
        if requested is not None and requested > limit:
            rows = requested * (hyper.gradient_accumulation_steps or 1)
            context.warn(
                ("hyperparameters", key),
                f"= {requested} becomes {limit} a pass, accumulated {rows // limit} times: {_WHY}",
            )
    # A file that sets the tokens of a pass is assumed to fit.
    if tokens <= row * limit or "micro_batch_tokens" in hyper.model_fields_set:
        return tokens
    return context.record(
        "micro_batch_tokens", context.record_change("micro_batch_tokens", row * limit, _WHY), "registry"
    )
