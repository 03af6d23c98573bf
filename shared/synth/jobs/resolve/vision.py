"""The vision settings and the limits that the registry sets for a vision model. Text models pass through."""

from __future__ import annotations

from synth.jobs.parse.toml import Path
from synth.jobs.resolve.context import ResolveContext
from synth.jobs.resolved import VisionSettings
from synth.jobs.schema.rl import RlConfig
from synth.jobs.schema.sft import HyperparametersSection
from synth.models import ModelSpec

_WHY = "a row of a model that sees may hold an image"


def resolve_vision(
    spec: ModelSpec | None, at: Path, context: ResolveContext, *, rl: RlConfig | None
) -> VisionSettings | None:
    """The vision block of a training job: the registry's, but for what an RL file says. None for a text model."""
    if spec is None or spec.vision is None:
        return context.record("vision", None, "registry")
    model, training = (rl.model, rl.training) if rl else (None, None)
    at_most = [(model, "max_images_per_message"), (training, "max_images_per_message")]
    images = context.first("vision.max_images_per_message", at_most)
    processor = context.first("vision.processor_id", [(model, "vision_processor_id")])
    written_images, written_processor = images is not None, processor is not None
    if not written_images:
        images = context.record("vision.max_images_per_message", spec.vision.max_images_per_message, "registry")
        context.record_change("vision.max_images_per_message", images, f"{spec.base} is a vision model")
    if not written_processor:
        processor = context.record("vision.processor_id", spec.vision.processor_id, "registry")
        context.record_change("vision.processor_id", processor, f"{spec.base} is a vision model")
    added = [
        *([] if written_images else [f"max_images_per_message = {images}"]),
        *([] if written_processor else [f'vision_processor_id = "{processor}"']),
    ]
    if added:
        context.warn(at, f"{spec.base!r} is a vision model: the registry adds {' and '.join(added)}")
    return VisionSettings(max_images_per_message=images, processor_id=processor)


def limit_micro_batch(
    spec: ModelSpec | None, hyper: HyperparametersSection, context: ResolveContext, *, tokens: int, row: int
) -> int:
    """The tokens of one forward pass of SFT; those of one row for a vision model. The rows of a step stay the same.

    tokens: of a pass, as the job has them; row: of the longest row.
    """
    if spec is None or spec.vision is None:
        return tokens
    limit = spec.vision.per_device_batch
    for key in ("per_device_batch", "batch_size"):
        asked = getattr(hyper, key)
        if asked is not None and asked > limit:
            rows = asked * (hyper.gradient_accumulation_steps or 1)
            context.warn(
                ("hyperparameters", key),
                f"= {asked} becomes {limit} a pass, accumulated {rows // limit} times: {_WHY}",
            )
    if tokens <= row * limit:
        return tokens
    if "micro_batch_tokens" in hyper.model_fields_set:
        context.warn(("hyperparameters", "micro_batch_tokens"), f"= {tokens} becomes {row * limit}: {_WHY}")
    return context.record(
        "micro_batch_tokens", context.record_change("micro_batch_tokens", row * limit, _WHY), "registry"
    )
