"""What a job's training holds on one GPU, by arithmetic on the job and the shape of its model."""

from __future__ import annotations

from typing import Literal

import msgspec

from synth.jobs.activations import image_token_bytes, token_bytes, tower_is_trained
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

    weights: the trained weights in float32 and the frozen ones: with an adapter the base, else a vision tower that is
    not trained. All experts of an MoE are there. casts: bfloat16 copies of float32 weights. gradients: of the trained
    weights. moments: AdamW's two. reference: a copy of the source model for the KL term, 0 where there is none, or
    where it shares the base. activations: what the backward needs of a forward in the language model.
    image_activations: and in the vision tower and the projector, if every token of the forward is of an image: it
    cannot be more. logits: of the chunk of log-probabilities that is being computed, and the gradient of a trained
    head.
    """

    weights: int
    casts: int
    gradients: int
    moments: int
    reference: int
    activations: int
    image_activations: int
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
    2106.09685) or in 4 bits ("QLoRA", arXiv 2305.14314, section 3). Activations: `synth.jobs.activations`. Logits: of
    `trainer.learner.model.logprobs`.

    CUDA's own memory, the kernels' workspaces and what the allocator loses are not in it. A forward holds
    `micro_batch_tokens`; an SFT row or a DPO pair that is longer is a forward of its own.
    """
    width, adapter = WIDTHS[dtype], job.lora
    if adapter is None:
        frozen = 0 if shape.vision is None or tower_is_trained(job, shape) else shape.vision.tower_parameters
        trained, weights = shape.parameters - frozen, 4 * shape.parameters
        casts = (width * _autocast_parameters(job, shape)) if dtype == "bf16" else 0
    else:
        trained = shape.adapter_parameters(adapter.r, adapter.targets)
        weights = 4 * trained + _frozen_base(job, shape, width)
        casts = (width * trained) if dtype == "bf16" else 0
    if job.mode == "qlora":
        casts += width * max(rows * columns for _, (rows, columns), _ in shape.modules())  # one weight, decoded
    tokens = _forward_tokens(job)
    return TrainingMemory(
        weights=weights,
        casts=casts,
        gradients=4 * trained,
        moments=8 * trained,
        reference=_reference(job, shape, width),
        activations=tokens * token_bytes(job, shape, dtype),
        image_activations=tokens * image_token_bytes(job, shape, dtype),
        logits=_logits(job, shape, tokens, dtype),
    )


def _forward_tokens(job: RlJob | SftJob) -> int:
    """Tokens of the largest forward, padding included."""
    if isinstance(job, RlJob):
        return job.micro_batch_tokens
    # Both sides of a pair are in one forward.
    row = job.sequence_length * (1 if job.dpo is None else 2)
    return min(max(job.micro_batch_tokens, row), job.batch_size * row)


def _frozen_base(job: RlJob | SftJob, shape: ModelShape, width: int) -> int:
    if job.mode != "qlora":
        return width * shape.parameters
    return int(_NF4_BITS / 8 * shape.quantized_parameters) + width * (shape.parameters - shape.quantized_parameters)


def _autocast_parameters(job: RlJob | SftJob, shape: ModelShape) -> int:
    """The float32 weights of which autocast keeps a copy: the trained ones of linear layers, but not of experts."""
    copied = shape.linear_parameters + shape.router_parameters
    if shape.vision is not None:
        copied += shape.vision.projector_linear_parameters
        if tower_is_trained(job, shape):
            copied += shape.vision.tower_linear_parameters + shape.vision.patch_embedding
    return copied


def _reference(job: RlJob | SftJob, shape: ModelShape, width: int) -> int:
    if not isinstance(job, RlJob) or job.reference == "none":
        return 0
    if job.lora is None:
        return 4 * shape.parameters
    # An adapter's base is its own reference; a dedicated one is another copy of it.
    return _frozen_base(job, shape, width) if job.reference == "dedicated" else 0


def _logits(job: RlJob | SftJob, shape: ModelShape, tokens: int, dtype: Literal["fp32", "bf16"]) -> int:
    chunk = _CHUNK_ARRAYS * 4 * min(max(LOGITS_CHUNK, shape.vocabulary), tokens * shape.vocabulary)
    head = shape.vocabulary * shape.hidden
    if job.lora is None:
        # The gradient is summed in float32 over the chunks, from one of a chunk. SFT's forward has a bfloat16 copy.
        copied = isinstance(job, SftJob) and job.dpo is None and dtype == "bf16"
        chunk += 2 * 4 * head + (2 * head if copied else 0)
    return chunk
