"""What a job's training holds on one GPU, by arithmetic on the job and the shape of its model."""

from __future__ import annotations

from typing import Literal

import msgspec

from synth.jobs.resolved import RlJob, SftJob
from synth.models.memory import WIDTHS
from synth.models.shape import ModelShape

#: Logits of one chunk of the trainer's log-probabilities on a GPU (`GPU_CHUNK_ELEMENTS`), and how many arrays of a
#: chunk are alive at a time: log-probabilities, probabilities and their product.
LOGITS_CHUNK = 1 << 27
_CHUNK_ARRAYS = 3

#: Bits of one weight of QLoRA's base: 4, 8 for each 64 (their scale) and 32 for each 16,384 (the scale of scales).
_NF4_BITS = 4 + 8 / 64 + 32 / (64 * 256)


class TrainingMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that training holds on its GPU at its peak: the end of a micro-batch's forward, before its backward.

    weights: the trained weights in float32 and, with an adapter, the frozen base. casts: bfloat16 copies of float32
    weights. gradients: of the trained weights. moments: AdamW's two. reference: a copy of the source model for the KL
    term, 0 where there is none, or where it shares the base. activations: what the backward needs of a
    forward. logits: of the chunk of log-probabilities that is being computed, and the gradient of a trained head.
    """

    weights: int
    casts: int
    gradients: int
    moments: int
    reference: int
    activations: int
    logits: int

    @property
    def total(self) -> int:
        """All of it, in bytes."""
        return sum(msgspec.structs.astuple(self))

    @property
    def moved(self) -> int:
        """Bytes that wait in main memory while a shared GPU is inference's."""
        return self.weights + self.moments + self.reference


def training_memory(
    job: RlJob | SftJob, shape: ModelShape, *, dtype: Literal["fp32", "bf16"] = "bf16"
) -> TrainingMemory:
    """The memory of a job whose training has one GPU to itself. dtype: of the forward.

    Weights, gradients and moments: "ZeRO" (arXiv 1910.02054), section 3.1, with what this trainer keeps of it: masters,
    gradients and moments in float32 (4 + 4 + 8 bytes a trained weight), bfloat16 copies of the weights of linear layers
    where the masters are trained under autocast (2), and a frozen base in the dtype of the forward ("LoRA", arXiv
    2106.09685) or in 4 bits ("QLoRA", arXiv 2305.14314, section 3). Activations: counted layer by layer as in "Reducing
    Activation Recomputation in Large Transformer Models" (arXiv 2205.05198), section 4, for what transformers' Qwen3
    saves with a flash attention, which makes no [length x length] matrix; with checkpointing, each layer's input and
    attention, and one layer in full, its section 5. Logits: of `trainer.learner.model.logprobs`.

    CUDA's own memory, the kernels' workspaces and what the allocator loses are not in it. A forward holds
    `micro_batch_tokens`; an SFT row that is longer is a forward of its own.
    """
    width, adapter = WIDTHS[dtype], job.lora
    if adapter is None:
        trained, weights = shape.parameters, 4 * shape.parameters
        casts = (width * shape.linear_parameters) if dtype == "bf16" else 0
    else:
        trained = shape.adapter_parameters(adapter.r, adapter.targets)
        weights = 4 * trained + _frozen_base(job, shape, width)
        casts = (width * trained) if dtype == "bf16" else 0
    if job.mode == "qlora":
        casts += width * max(rows * columns for rows, columns in shape.linears.values())  # one layer's weight, decoded
    tokens = _forward_tokens(job)
    return TrainingMemory(
        weights=weights,
        casts=casts,
        gradients=4 * trained,
        moments=8 * trained,
        reference=_reference(job, shape, width),
        activations=tokens * _activation_bytes_per_token(job, shape, dtype),
        logits=_logits(job, shape, tokens, dtype),
    )


def _forward_tokens(job: RlJob | SftJob) -> int:
    """Tokens of the largest forward, padding included."""
    if isinstance(job, RlJob):
        return job.micro_batch_tokens
    return min(max(job.micro_batch_tokens, job.sequence_length), job.batch_size * job.sequence_length)


def _frozen_base(job: RlJob | SftJob, shape: ModelShape, width: int) -> int:
    if job.mode != "qlora":
        return width * shape.parameters
    return int(_NF4_BITS / 8 * shape.linear_parameters) + width * (shape.parameters - shape.linear_parameters)


def _reference(job: RlJob | SftJob, shape: ModelShape, width: int) -> int:
    if not isinstance(job, RlJob) or job.reference == "none":
        return 0
    if job.lora is None:
        return 4 * shape.parameters
    # An adapter's base is its own reference; a dedicated one is another copy of it.
    return _frozen_base(job, shape, width) if job.reference == "dedicated" else 0


def _activation_bytes_per_token(job: RlJob | SftJob, shape: ModelShape, dtype: Literal["fp32", "bf16"]) -> int:
    """Bytes that one token of a forward leaves for its backward."""
    width = WIDTHS[dtype]
    layer = _layer_bytes_per_token(job, shape, dtype)
    # The residual stream has the dtype of the weights: float32 masters, or a frozen base in the forward's.
    stream = (4 if job.lora is None else width) * shape.hidden
    if job.activation_checkpointing:
        attention = width * shape.queries + 4 * shape.heads
        layers = shape.layers * (stream + attention) + layer
    else:
        layers = shape.layers * layer
    # The last norm, what the head reads of it, the cosines and sines of the positions, and three int64 ids.
    return layers + 3 * stream + 4 + 2 * 4 * shape.head_dim + 3 * 8


def _layer_bytes_per_token(job: RlJob | SftJob, shape: ModelShape, dtype: Literal["fp32", "bf16"]) -> int:
    """Bytes that one token leaves for the backward of one layer: each line a tensor, or tensors of one width."""
    q, k, h, width = shape.queries, shape.keys, shape.hidden, WIDTHS[dtype]
    norms = 4 * (2 * shape.heads + shape.kv_heads + 2)  # inverse norms, and the log-sum-exp of attention
    mlp = 4 * shape.intermediate * width  # gate, its activation, up, and their product
    attention = (3 * q + 2 * k) * width  # q, k, v, what attention returns, and its copy that o_proj reads
    if job.lora is None:
        # Trained norms save what they scale. Under autocast each linear layer that reads the float32 stream casts it.
        stream = 4 * h * 4 + (5 * h * width if dtype == "bf16" else 2 * h * width)
        heads = (q + k) * (4 + width)
        adapters = 0
    else:
        # A frozen norm saves its input in float32, and its output is what the adapters read.
        stream = 2 * h * 4 + 2 * h * width
        heads = (q + k) * 4
        adapters = width * job.lora.r * len(shape.linears)
    return norms + mlp + attention + stream + heads + adapters


def _logits(job: RlJob | SftJob, shape: ModelShape, tokens: int, dtype: Literal["fp32", "bf16"]) -> int:
    chunk = _CHUNK_ARRAYS * 4 * min(max(LOGITS_CHUNK, shape.vocabulary), tokens * shape.vocabulary)
    head = shape.vocabulary * shape.hidden
    if job.lora is None:
        # The gradient is summed in float32 over the chunks, from one of a chunk. SFT's forward has a bfloat16 copy.
        chunk += 2 * 4 * head + (2 * head if isinstance(job, SftJob) and dtype == "bf16" else 0)
    return chunk
