"""The memory of a job's training on each GPU, computed from the job and its model's shape."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import msgspec

from synth.jobs.activations import image_token_bytes, token_bytes, tower_is_trained
from synth.methods.base import Device, TrainingJob
from synth.models.memory import WIDTHS
from synth.models.shape import ModelShape

Dtype = Literal["fp32", "bf16"]

#: Logits of one chunk of the trainer's log-probabilities (`CHUNK_ELEMENTS` and `GPU_CHUNK_ELEMENTS` there).
LOGITS_CHUNK: dict[Device, int] = {"cpu": 1 << 25, "cuda": 1 << 27}

#: Of moments in 8 bits: neighbours of a row that share a float32 scale, and the least elements of a tensor that has
#: them (`trainer.learner.optim.quantized`).
MOMENT_BLOCK, LEAST_QUANTIZED = 256, 4096

#: Bits of one weight of QLoRA's base: 4, 8 for each 64 (their scale) and 32 for each 16,384 (the scale of scales).
_NF4_BITS = 4 + 8 / 64 + 32 / (64 * 256)


class TrainingMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that one rank's training holds at its peak: between a micro-batch's forward and its backward.

    With checkpointing the peak is at the logits or at the recomputation of a layer, at the larger of the two.

    weights: the trained weights in float32 and the frozen ones: with an adapter the base, else a vision tower that is
    not trained; all experts of an MoE. casts: bfloat16 copies of float32 weights. gathered: parts of other ranks'
    shards that a rank holds: weights of blocks, and a block's gradient before it is shared out. gradients: of the
    trained weights. moments: AdamW's two. reference: a copy of the source model for the KL term; 0 if there is no KL
    term, or if the reference shares the base. activations: kept for the backward of a forward in the language model.
    image_activations: the same in the vision tower and the projector, if every token of the forward is of an image,
    which is the upper bound. logits: of the chunk of log-probabilities that is being computed, and the gradient of a
    trained head. offloaded: moments in main memory, which are not in `total`.
    """

    weights: int
    casts: int
    gathered: int
    gradients: int
    moments: int
    reference: int
    activations: int
    image_activations: int
    logits: int
    offloaded: int

    @property
    def parts(self) -> dict[str, int]:
        """The bytes on the device, by the name of the part."""
        return {name: getattr(self, name) for name in self.__struct_fields__ if name != "offloaded"}

    @property
    def total(self) -> int:
        """All bytes on the device."""
        return sum(self.parts.values())

    @property
    def moved(self) -> int:
        """Bytes that wait in main memory while a shared GPU is inference's."""
        return self.weights + self.moments + self.reference


def training_memory(
    job: TrainingJob,
    shape: ModelShape,
    *,
    dtype: Dtype = "bf16",
    device: Device = "cuda",
    ranks: int = 1,
    threads: int = 1,
    longest: int | None = None,
) -> TrainingMemory:
    """Return the memory of a rank of a job's training.

    dtype: of the forward. ranks: processes that train together. threads: of a CPU, each with a forward and a gradient
    of its own. longest: tokens of a forward's longest sequence, for layers whose attention is computed by blocks; None
    is a whole forward, or a row of SFT.

    Weights, gradients and moments: "ZeRO" (arXiv 1910.02054), section 3.1, with this trainer's parts: masters,
    gradients and moments in float32 (4 + 4 + 8 bytes a trained weight), bfloat16 copies of the weights of linear layers
    if the masters are trained under autocast (2), and a frozen base in the dtype of the forward ("LoRA", arXiv
    2106.09685) or in 4 bits ("QLoRA", arXiv 2305.14314, section 3). Moments in 8 bits: a byte, and a scale for each 256
    ("8-bit Optimizers via Block-wise Quantization", arXiv 2110.02861). Over several ranks: shards, and the parts that
    FSDP2 gathers of them (`trainer.learner.distributed.fsdp`). Activations: `synth.jobs.activations`. Logits: of
    `trainer.learner.model.logprobs`.

    CUDA's own memory, the kernels' workspaces and the allocator's losses are not included. A forward holds
    `micro_batch_tokens`, or a fourth of it on a CPU; an SFT row or a DPO pair that is longer is a forward of its own.
    """
    width, sharded = WIDTHS[dtype], ranks > 1 and job.parallelism.sharding != "replicated"
    shards = ranks if sharded else 1
    trained = trained_parameters(job, shape)
    if job.lora is None:
        weights = 4 * shape.parameters // shards
        casts = (width * _autocast_parameters(job, shape)) if dtype == "bf16" and not sharded else 0
    else:
        weights = 4 * trained // shards + _frozen_base(job, shape, width, shards)
        casts = (width * trained) if dtype == "bf16" and not sharded else 0
    decoded = 0
    if job.mode == "qlora":
        decoded = width * max(rows * columns for _, (rows, columns), _ in shape.modules())  # one weight
    tokens = job.forward_tokens(device)
    longest = job.longest_sequence(device) if longest is None else longest
    kept, again = (tokens * each for each in token_bytes(job, shape, dtype, longest=longest))
    logits = _logits(job, shape, tokens, dtype, device)
    if job.activation_checkpointing:
        # Autocast's copies are of the layer that is being computed.
        casts //= shape.layers
        if again + casts > logits:
            kept, logits = kept + again, 0
        else:
            casts = 0
    moments = moment_bytes(job, shape) // shards
    # On a CPU main memory is the device. On a GPU the offloaded moments are on the device only while a part of them is
    # updated, after the activations are freed.
    offloaded = moments if job.optimizer_offload and device == "cuda" else 0
    return TrainingMemory(
        weights=weights,
        casts=casts + decoded,
        gathered=_gathered(job, shape, dtype) if sharded else 0,
        gradients=4 * trained // shards * (1 if threads == 1 else 1 + threads),
        moments=moments - offloaded,
        reference=_reference(job, shape, width, shards),
        activations=kept * threads,
        image_activations=tokens * image_token_bytes(job, shape, dtype) * threads,
        logits=logits * threads,
        offloaded=offloaded,
    )


def trained_parameters(job: TrainingJob, shape: ModelShape) -> int:
    """Return how many weights are trained: of the adapter, or all but a frozen vision tower's."""
    return sum(count * math.prod(size) for size, count in _trained_tensors(job, shape))


def moment_bytes(job: TrainingJob, shape: ModelShape) -> int:
    """Return the bytes of both moments of all trained weights, over all ranks."""
    if job.optimizer == "adamw":
        return 8 * trained_parameters(job, shape)
    total = 0
    for size, count in _trained_tensors(job, shape):
        if len(size) < 2 or math.prod(size) < LEAST_QUANTIZED:
            total += count * 8 * math.prod(size)
        else:
            scales = size[0] * -(-math.prod(size[1:]) // MOMENT_BLOCK)
            total += count * 2 * (math.prod(size) + 4 * scales)
    return total


def _trained_tensors(job: TrainingJob, shape: ModelShape) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield every kind of trained tensor: its shape, and how many there are."""
    if job.lora is not None:
        yield from shape.adapter_tensors(job.lora.r, job.lora.targets)
        return
    for name, size, count in shape.tensors():
        if not name.startswith("visual.") or "merger" in name or tower_is_trained(job, shape):
            yield size, count


def _frozen_base(job: TrainingJob, shape: ModelShape, width: int, shards: int) -> int:
    if job.mode != "qlora":
        return width * shape.parameters // shards
    # Weights in 4 bits are not parameters, so every rank has all of them.
    rest = width * (shape.parameters - shape.quantized_parameters) // shards
    return int(_NF4_BITS / 8 * shape.quantized_parameters) + rest


def _gathered(job: TrainingJob, shape: ModelShape, dtype: Dtype) -> int:
    """Return the bytes that FSDP2 gathers: embedding, last norm and head; two blocks, or all of them if they stay.

    Blocks are gathered in the dtype of the forward. A block's gradient is whole before it is summed in float32.
    """
    width = WIDTHS[dtype]
    block = sum(math.prod(size) for _, size in shape.layer_tensors())
    root = sum(math.prod(size) for _, size in shape.root_tensors())
    if job.lora is None:
        gradient, weights, outside = block, width * block, 4 * 2 * root
    else:
        gradient = shape.adapter_parameters(job.lora.r, job.lora.targets) // shape.layers
        if job.mode == "qlora":
            block -= sum(rows * columns for rows, columns in shape.linears.values())
        weights, outside = width * (block + gradient), width * root
    blocks = 2 if job.parallelism.sharding == "parameters" else shape.layers
    return blocks * weights + (width + 4 if dtype == "bf16" else 4) * gradient + outside


def _autocast_parameters(job: TrainingJob, shape: ModelShape) -> int:
    """Return how many float32 weights autocast copies: the trained ones of linear layers, but not of experts."""
    copied = shape.linear_parameters + shape.router_parameters
    if shape.vision is not None:
        copied += shape.vision.projector_linear_parameters
        if tower_is_trained(job, shape):
            copied += shape.vision.tower_linear_parameters + shape.vision.patch_embedding
    return copied


def _reference(job: TrainingJob, shape: ModelShape, width: int, shards: int) -> int:
    if job.kl_reference == "none":
        return 0
    if job.lora is None:
        return 4 * shape.parameters // shards
    # An adapter's base is its own reference; a dedicated one is another copy of it.
    return _frozen_base(job, shape, width, shards) if job.kl_reference == "dedicated" else 0


def _logits(job: TrainingJob, shape: ModelShape, tokens: int, dtype: Dtype, device: Device) -> int:
    chunk = 4 * min(max(LOGITS_CHUNK[device], shape.vocabulary), tokens * shape.vocabulary)
    head = shape.vocabulary * shape.hidden
    # In a forward log-probabilities, probabilities and their product; in a backward logits and their gradient, and of a
    # trained head the gradient of a chunk and, in float32, its sum over the chunks.
    peak = max(3 * chunk, 2 * chunk + (2 * 4 * head if job.lora is None else 0))
    copied = job.low_precision_head and dtype == "bf16"
    if job.lora is None and copied:
        peak += 2 * head  # a head in the dtype of SFT's forward
    if device == "cpu" and dtype == "bf16" and (copied or job.lora is not None):
        # Only tensor cores multiply a head in bfloat16 without a conversion.
        peak += 4 * head
    return peak
