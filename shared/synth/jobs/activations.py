"""The memory that a forward keeps for its backward, in bytes a token, computed from the job and its model's shape.

Counted layer by layer as in "Reducing Activation Recomputation in Large Transformer Models" (arXiv 2205.05198), section
4, for what transformers' models save with an attention that makes no [length x length] matrix; with checkpointing, each
layer's input and attention, and one layer in full, its section 5. Layers with a window and those with sinks compute
attention by blocks (`synth.windowed_attention`): their masks, or their scores, are counted.
"""

from __future__ import annotations

from typing import Literal

from synth.methods.base import TrainingJob
from synth.models.memory import WIDTHS
from synth.models.shape import ModelShape
from synth.models.vision_shape import VisionShape

Dtype = Literal["fp32", "bf16"]

#: Queries of one block (`synth.windowed_attention`).
BLOCK = 1024


def token_bytes(job: TrainingJob, shape: ModelShape, dtype: Dtype, *, longest: int) -> tuple[int, int]:
    """Return the bytes that a token takes in the language model: kept by a forward, and to recompute one layer.

    The second is 0 without checkpointing. longest: tokens of a forward's longest sequence.
    """
    width = WIDTHS[dtype]
    common, windowed, unwindowed = _layer_bytes(job, shape, dtype), *_attention_extras(shape, width, longest)
    # The residual stream has the dtype of the weights: float32 masters, or a frozen base in the forward's.
    stream = (4 if job.lora is None else width) * shape.hidden
    if job.activation_checkpointing:
        # Attention with sinks is not a single operation, and is recomputed with the rest.
        attention = 0 if shape.sinks else width * shape.queries + 4 * shape.heads
        layers, again = shape.layers * (stream + attention), common + max(windowed, unwindowed)
    else:
        again = 0
        full = shape.layers - shape.windowed_layers
        layers = shape.layers * common + shape.windowed_layers * windowed + full * unwindowed
    # The last norm, the head's input, the cosines and sines of the positions, and three int64 ids.
    return layers + 3 * stream + 4 + 2 * 4 * shape.head_dim + 3 * 8, again


def image_token_bytes(job: TrainingJob, shape: ModelShape, dtype: Dtype) -> int:
    """Return the bytes that one token of an image keeps in the vision tower and the projector; 0 in a text model."""
    vision, width = shape.vision, WIDTHS[dtype]
    if vision is None:
        return 0
    if job.lora is None:
        # Each merger keeps the inputs of its norm, its two linear layers and its activation.
        projector = vision.mergers * (4 * vision.merged * width + 8)
    else:
        adapted = {name for name, _, _ in shape.adapted(job.lora.targets)}
        projector = vision.mergers * (3 * vision.merged + job.lora.r * len(vision.projector_linears)) * width
        projector = projector if any("merger" in name for name in adapted) else 0
    tower = vision.patches_per_token * _patch_bytes(job, vision, width) if _through_tower(job, shape) else 0
    return projector + tower


def tower_is_trained(job: TrainingJob, shape: ModelShape) -> bool:
    """Return whether a full fine-tune trains the vision tower too."""
    return shape.vision is not None and job.vision is not None and not job.vision.freeze_vision_tower


def _through_tower(job: TrainingJob, shape: ModelShape) -> bool:
    """Return whether the backward goes through the tower, because weights or adapters are trained there."""
    if job.lora is None:
        return tower_is_trained(job, shape)
    return any(".blocks." in name for name, _, _ in shape.adapted(job.lora.targets))


def _patch_bytes(job: TrainingJob, vision: VisionShape, width: int) -> int:
    """Return the bytes that one patch keeps in the tower."""
    # The patch itself, the cosines and sines of its place, and the four learned positions that it is between.
    once = vision.patch_values * width + 2 * 4 * (vision.hidden // vision.heads) + 4 * 8 + 4 * 4
    if job.activation_checkpointing:
        return once + vision.depth * (2 * vision.hidden * width + 4 * vision.heads)
    # A block's two norms, the inputs of its linear layers, q, k and v before and after they are rotated, what attention
    # returns, and the MLP's activation.
    block = (11 * vision.hidden + 2 * vision.intermediate) * width + 4 * vision.heads + 4 * 4
    return once + vision.depth * block


def _layer_bytes(job: TrainingJob, shape: ModelShape, dtype: Dtype) -> int:
    """Return the bytes of one token that a layer keeps for the backward. Each line is a tensor, or several."""
    q, k, h, width = shape.queries, shape.keys, shape.hidden, WIDTHS[dtype]
    each, normalised = shape.head_norms == "each", q + k if shape.head_norms != "none" else 0
    # Inverse norms, and the log-sum-exp of attention.
    norms = 4 * (shape.heads + shape.layer_norms + (shape.heads + shape.kv_heads if each else 0))
    if shape.sinks:
        attention = 4 * q * width  # q, keys and values for each query head, and the input of o_proj
    elif shape.fused:
        attention = (4 * q + 3 * k) * width  # all of the fused layer, q and k rotated, attention's output and its copy
    else:
        attention = (3 * q + 2 * k) * width  # q, k, v, attention's output, and the copy of it that o_proj reads
    if job.lora is None:
        # Trained norms save their input. Under autocast each linear layer that reads the float32 stream casts it.
        readers = (1 if shape.fused else 3) + (1 if shape.fused or shape.experts else 2)
        stream = 2 * shape.layer_norms * h * 4 + (readers * h * width if dtype == "bf16" else 2 * h * width)
        # Qwen3 scales in the dtype of its input, the others in float32.
        heads = normalised * (4 + (width if each and not shape.gelu else 4))
        adapters = 0
    else:
        # A frozen norm saves its input in float32, and the adapters read its output.
        stream = shape.layer_norms * h * 4 + (1 if shape.experts else 2) * h * width
        heads = normalised * 4
        adapters = width * job.lora.r * len(shape.linears)
    return norms + _mlp_bytes(job, shape, width) + attention + stream + heads + adapters


def _attention_extras(shape: ModelShape, width: int, longest: int) -> tuple[int, int]:
    """Return the bytes that attention by blocks keeps for a token, in a layer with a window and in one without."""
    # A block's queries see the keys of their own block and of earlier ones: on average half of the sequence.
    everything = (longest + min(longest, BLOCK)) // 2
    within = min(longest, BLOCK + shape.window)
    if shape.sinks:
        # The softmax of its scores in float32, and as values are weighted by it.
        score = shape.heads * (4 if width == 4 else 4 + width)
        return score * min(within, everything), score * everything
    return (width * within if shape.window and longest > shape.window else 0), 0


def _mlp_bytes(job: TrainingJob, shape: ModelShape, width: int) -> int:
    """Return the bytes that one token keeps in one layer: in a dense MLP, or in the experts that the token goes to."""
    if not shape.experts:
        return 4 * shape.intermediate * width  # gate, its activation, up, and their product
    # The kernel of the experts computes in the dtype of their weights, also for float32 masters. Trained experts save
    # their inputs: the token for each expert, and the product of gate and up. The experts of gpt-oss clamp gate and up.
    clamped = 3 * shape.intermediate if shape.expert_bias else 0
    if job.lora is None:
        expert = (4 * shape.intermediate + 2 * shape.hidden + clamped) * 4
    else:
        expert = (3 * shape.intermediate + shape.hidden + clamped) * width
    # The router's probabilities; of each choice four indices and its weight, twice.
    return shape.active_experts * (expert + 4 * 8 + 4 + width) + 4 * shape.experts + 4
