"""What a batch says of itself in the header of its blob, readable without its arrays."""

from __future__ import annotations

import json
from typing import Any, cast

import msgspec

#: A safetensors body begins with the length of its header: so many bytes, little-endian.
LENGTH_BYTES = 8


class RolloutMeta(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout of a batch: who it was and what it earned.

    advantage: None where it is not in the batch. sampled_tokens: of its sequences, each; oldest_versions: of
    the policy that sampled each sequence, -1 where nothing of it was sampled.
    """

    rollout_id: str
    seed: int
    group: int
    reward: float
    advantage: float | None = None
    sampled_tokens: list[int] = []
    oldest_versions: list[int] = []


class BatchMeta(msgspec.Struct, frozen=True, kw_only=True):
    """What a batch says of itself, carried in its safetensors header.

    temperature: of the sampling; the trainer divides its logits by it (decision 25).
    groups_kept, groups_dropped: groups whose rewards differed; those whose did not, or that were incomplete.
    values: figures of the collection (reward mean, latency, retries …) that `train.step` repeats.
    """

    job_id: str
    iteration: int
    temperature: float
    rollouts: list[RolloutMeta]
    groups_kept: int
    groups_dropped: int
    values: dict[str, float] = msgspec.field(default_factory=dict[str, float])


def header_length(begin: bytes) -> int:
    """How long the header is, from the first `LENGTH_BYTES` of a body."""
    return int.from_bytes(begin[:LENGTH_BYTES], "little")


def read_description(header: bytes) -> Any:
    """The description that a header of ours carries, as JSON data. Raises `ValueError` on any other header."""
    try:
        return json.loads(cast(dict[str, Any], json.loads(header))["__metadata__"]["synth"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not a body of ours: {error}") from error


def read_batch_meta(header: bytes) -> BatchMeta:
    """The description of a batch. Raises `ValueError` on any other header."""
    return msgspec.convert(read_description(header), BatchMeta)
