"""The batch that one training iteration reads: the sequences of its rollouts, flat, and where they came from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
from safetensors import safe_open

from synth.errors import Problem, UserError
from synth.images.prompt_image import PromptImage
from synth.trajectories.masks import TokenMasks, join_masks
from synth.trajectories.packing import (
    Bool,
    Float32,
    Int32,
    concatenate,
    images_from_array,
    images_to_array,
    pack_arrays,
    unpack_arrays,
)
from synth.trajectories.trajectory import Branch
from synth.transcripts.batch_header import BatchMeta


class ProcessorsDiffer(UserError):
    """The images of one batch were processed in several ways, by replicas that differ."""

    def __init__(self, fingerprints: set[str]) -> None:
        self.problem = Problem(
            what=f"images of one batch were processed in {len(fingerprints)} ways: {', '.join(sorted(fingerprints))}",
            expected="one release of Pillow and of the model's preprocessor_config.json in every inference replica",
            fix="let all replicas be of one release, then resume the job",
            where="vision_processor_id",
        )
        super().__init__(self.problem)


@dataclass(frozen=True)
class RolloutBatch:
    """The S sequences of one iteration, flat over their T tokens.

    tokens int32 [T] · loss_mask bool [T] · logprobs float32 [T] (behaviour, nats) · versions int32 [T]
    cu_seqlens int32 [S+1] · advantages float32 [S] · rollout int32 [S], the index into `meta.rollouts`.

    token_advantages: float32 [T], if credit is given turn by turn, 0 where the mask is False; None: each token has the
    advantage of its sequence. A sequence's advantage is then the mean of its tokens'. masks: for each of the T tokens,
    the other tokens that could have been sampled in its place (decision 33); None if any could. images: for each
    sequence, the images that its tokens show, in order. processor: the fingerprint of the processor that computed the
    patches (`ImageProcessor.fingerprint`), "" if no sequence has images. Sequences of groups that were dropped are not
    in it; `meta` counts them.
    """

    tokens: Int32
    loss_mask: Bool
    logprobs: Float32
    versions: Int32
    cu_seqlens: Int32
    advantages: Float32
    rollout: Int32
    meta: BatchMeta
    token_advantages: Float32 | None = None
    masks: TokenMasks | None = None
    images: tuple[tuple[PromptImage, ...], ...] = ()
    processor: str = ""

    @property
    def sequences(self) -> int:
        return len(self.cu_seqlens) - 1

    @classmethod
    def build(
        cls,
        branches: list[Branch],
        advantages: list[float],
        rollout: list[int],
        meta: BatchMeta,
        token_advantages: list[Float32] | None = None,
    ) -> RolloutBatch:
        """Concatenate branches (one sequence each) into a batch; the lists are parallel.

        Raises `ProcessorsDiffer` if their images were processed differently: no trainer could repeat both.
        """
        lengths = [len(b.tokens) for b in branches]
        processors = {b.processor for b in branches if b.images}
        if len(processors) > 1:
            raise ProcessorsDiffer(processors)
        return cls(
            tokens=concatenate([b.tokens for b in branches], np.int32),
            loss_mask=concatenate([b.loss_mask for b in branches], np.bool_),
            logprobs=concatenate([b.logprobs for b in branches], np.float32),
            versions=concatenate([b.versions for b in branches], np.int32),
            cu_seqlens=np.cumsum([0, *lengths], dtype=np.int32),
            advantages=np.asarray(advantages, dtype=np.float32),
            rollout=np.asarray(rollout, dtype=np.int32),
            meta=meta,
            token_advantages=None if token_advantages is None else concatenate(token_advantages, np.float32),
            masks=join_masks([(b.masks, n) for b, n in zip(branches, lengths, strict=True)]),
            images=tuple(b.images for b in branches),
            processor=next(iter(processors), ""),
        )

    def to_bytes(self) -> bytes:
        """Return the batch as one safetensors body."""
        return pack_arrays(
            {
                "tokens": self.tokens,
                "loss_mask": self.loss_mask,
                "logprobs": self.logprobs,
                "versions": self.versions,
                "cu_seqlens": self.cu_seqlens,
                "advantages": self.advantages,
                "rollout": self.rollout,
                "images": images_to_array([(self.processor, images) for images in self.images]),
                **({} if self.token_advantages is None else {"token_advantages": self.token_advantages}),
                **(self.masks.arrays() if self.masks is not None else {}),
            },
            msgspec.to_builtins(self.meta),
        )

    @classmethod
    def from_bytes(cls, body: bytes) -> RolloutBatch:
        """Read the result of `to_bytes`. Raises `ValueError` on anything else."""
        arrays, meta = unpack_arrays(body)
        images = images_from_array(arrays["images"])
        return cls(
            tokens=arrays["tokens"],
            loss_mask=arrays["loss_mask"],
            logprobs=arrays["logprobs"],
            versions=arrays["versions"],
            cu_seqlens=arrays["cu_seqlens"],
            advantages=arrays["advantages"],
            rollout=arrays["rollout"],
            meta=msgspec.convert(meta, BatchMeta),
            token_advantages=arrays.get("token_advantages"),
            masks=TokenMasks.from_arrays(arrays),
            images=tuple(shown for _, shown in images),
            processor=next((processor for processor, _ in images), ""),
        )


def read_batch_images(path: Path) -> list[PromptImage]:
    """Return the images of a batch's file, once for each sequence that has them, without reading the whole file."""
    with cast(Any, safe_open(path, framework="np")) as file:
        per_sequence = images_from_array(file.get_tensor("images"))
    return [image for _, images in per_sequence for image in images]
