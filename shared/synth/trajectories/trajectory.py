"""A finished rollout for the trainer: linear branches of tokens, built from the records of its calls."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

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
from synth.trajectories.records import CompletionRecord
from synth.trajectories.reward_sources import RewardSources


@dataclass(frozen=True)
class Branch:
    """One linear token segment of a rollout, which the trainer treats as one sequence.

    tokens: int32 [T], prompt first. loss_mask: bool [T], True on sampled tokens only.
    logprobs: float32 [T], 0 if the mask is False. versions: int32 [T], -1 if the mask is False.
    calls: int32 [T], the number (from 0) of the call of the rollout that sampled the token, -1 if the mask is False.
    masks: for each of the T tokens, the other tokens that could have been sampled in its place; None if any could.
    images: the images that its tokens show, in order; processor: the fingerprint of their processor, "" without any.
    teacher_logprobs: float32 [T], the teacher's, NaN for tokens without one; None for a job without a teacher.
    """

    tokens: Int32
    loss_mask: Bool
    logprobs: Float32
    versions: Int32
    calls: Int32
    masks: TokenMasks | None = None
    images: tuple[PromptImage, ...] = ()
    processor: str = ""
    teacher_logprobs: Float32 | None = None


@dataclass(frozen=True)
class RecordedTrajectory:
    """One finished rollout: its branches, its rewards, and the task app's report (`info`).

    sources: without the scores of judges. steps_missing: the job rewards single turns, and the task app reported none.
    cut_off: its last reply is not whole (`is_cut_off`). images_dropped: over all calls, see `CompletionRecord`.
    """

    branches: list[Branch]
    sources: RewardSources
    steps_missing: bool = False
    info: dict[str, Any] = field(default_factory=dict[str, Any])
    cut_off: bool = False
    images_dropped: int = 0

    def to_bytes(self) -> bytes:
        """Return the trajectory as one safetensors body."""
        lengths = [len(b.tokens) for b in self.branches]
        masks = join_masks([(b.masks, len(b.tokens)) for b in self.branches])
        return pack_arrays(
            {
                "tokens": concatenate([b.tokens for b in self.branches], np.int32),
                "loss_mask": concatenate([b.loss_mask for b in self.branches], np.bool_),
                "logprobs": concatenate([b.logprobs for b in self.branches], np.float32),
                "versions": concatenate([b.versions for b in self.branches], np.int32),
                "calls": concatenate([b.calls for b in self.branches], np.int32),
                "cu_seqlens": np.cumsum([0, *lengths], dtype=np.int32),
                "images": images_to_array([(b.processor, b.images) for b in self.branches]),
                **(masks.arrays() if masks is not None else {}),
                **self._teacher_arrays(),
            },
            {
                "sources": msgspec.to_builtins(self.sources),
                "steps_missing": self.steps_missing,
                "info": self.info,
                "cut_off": self.cut_off,
                "images_dropped": self.images_dropped,
            },
        )

    def _teacher_arrays(self) -> dict[str, Float32]:
        if all(b.teacher_logprobs is None for b in self.branches):
            return {}
        logprobs = [
            np.full(len(b.tokens), np.nan, np.float32) if b.teacher_logprobs is None else b.teacher_logprobs
            for b in self.branches
        ]
        return {"teacher_logprobs": concatenate(logprobs, np.float32)}

    @classmethod
    def from_bytes(cls, body: bytes) -> RecordedTrajectory:
        """Read the result of `to_bytes`."""
        arrays, meta = unpack_arrays(body)
        cu, masks = arrays["cu_seqlens"], TokenMasks.from_arrays(arrays)
        teacher = arrays.get("teacher_logprobs")
        branches = [
            Branch(
                *(arrays[k][a:b] for k in ("tokens", "loss_mask", "logprobs", "versions", "calls")),
                masks=masks.part(a, b) if masks is not None else None,
                images=images,
                processor=processor,
                teacher_logprobs=None if teacher is None else teacher[a:b],
            )
            for (a, b), (processor, images) in zip(
                itertools.pairwise(cu), images_from_array(arrays["images"]), strict=True
            )
        ]
        sources = msgspec.convert(meta["sources"], RewardSources)
        return cls(
            branches,
            sources,
            meta["steps_missing"],
            meta["info"],
            cut_off=meta.get("cut_off", False),
            images_dropped=meta.get("images_dropped", 0),
        )


def is_cut_off(records: list[CompletionRecord]) -> bool:
    """Return whether the last reply of a rollout that its client read was cut off for its length."""
    read = [record.finish_reason for record in records if record.finish_reason != "abort"]
    return bool(read) and read[-1] == "length"


def build_branches(records: list[CompletionRecord]) -> list[Branch]:
    """Return the linear segments of a rollout. A call extends the segment that begins its prompt, images too.

    A call whose prompt extends no earlier segment opens a new one (Qwen3's template strips earlier `<think>` blocks, so
    this happens). Every sampled token is in exactly one segment, once, except the tokens of a call that the client gave
    up: nobody read that reply, so that no reward is for it.
    """
    branches: list[Branch] = []
    for number, r in enumerate(records):
        if r.finish_reason == "abort":
            continue
        parent = _longest_prefix(branches, r)
        start = len(branches[parent].tokens) if parent is not None else 0
        context = r.prompt_ids[start:]
        grown = Branch(
            tokens=np.concatenate([context, r.sampled_ids]).astype(np.int32),
            loss_mask=np.concatenate([np.zeros(len(context), np.bool_), r.sampled]),
            logprobs=np.concatenate([np.zeros(len(context), np.float32), np.where(r.sampled, r.logprobs, 0)]).astype(
                np.float32
            ),
            versions=np.concatenate([np.full(len(context), -1, np.int32), np.where(r.sampled, r.versions, -1)]).astype(
                np.int32
            ),
            calls=np.concatenate([np.full(len(context), -1, np.int32), np.where(r.sampled, number, -1)]).astype(
                np.int32
            ),
            masks=join_masks([(None, len(context)), (r.masks, len(r.sampled_ids))]),
            images=r.images[len(branches[parent].images) if parent is not None else 0 :],
            processor=r.processor,
        )
        if parent is None:
            branches.append(grown)
        else:
            branches[parent] = _join(branches[parent], grown)
    return branches


def _longest_prefix(branches: list[Branch], record: CompletionRecord) -> int | None:
    best: int | None = None
    prompt_ids = record.prompt_ids
    for i, b in enumerate(branches):
        fits = len(b.tokens) <= len(prompt_ids) and np.array_equal(b.tokens, prompt_ids[: len(b.tokens)])
        fits = fits and _same_images(b, record)
        if fits and (best is None or len(b.tokens) > len(branches[best].tokens)):
            best = i
    return best


def _same_images(branch: Branch, record: CompletionRecord) -> bool:
    """Return whether the prompt begins with the branch's images, by their content."""
    if len(branch.images) > len(record.images) or (branch.images and branch.processor != record.processor):
        return False
    return all(mine.sha256 == theirs.sha256 for mine, theirs in zip(branch.images, record.images, strict=False))


def _join(a: Branch, b: Branch) -> Branch:
    return Branch(
        tokens=np.concatenate([a.tokens, b.tokens]),
        loss_mask=np.concatenate([a.loss_mask, b.loss_mask]),
        logprobs=np.concatenate([a.logprobs, b.logprobs]),
        versions=np.concatenate([a.versions, b.versions]),
        calls=np.concatenate([a.calls, b.calls]),
        masks=join_masks([(a.masks, len(a.tokens)), (b.masks, len(b.tokens))]),
        images=(*a.images, *b.images),
        processor=b.processor,
    )
