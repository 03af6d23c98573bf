"""The description of a batch in the header of its blob, readable without its arrays."""

from __future__ import annotations

import json
from typing import Any, cast

import msgspec

#: A safetensors body begins with the length of its header: so many bytes, little-endian.
LENGTH_BYTES = 8


class RolloutMeta(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout of a batch: its identity and its rewards.

    advantage: None if it is not in the batch. sampled_tokens: the number in each of its sequences; oldest_versions: of
    the policy that sampled each sequence, -1 if nothing of it was sampled.
    """

    rollout_id: str
    seed: int
    group: int
    reward: float
    advantage: float | None = None
    sampled_tokens: list[int] = []
    oldest_versions: list[int] = []


class BatchMeta(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a batch, in its safetensors header.

    temperature: of the sampling; the trainer divides its logits by it (decision 25). groups_kept: groups whose rewards
    differed; groups_dropped: groups with equal rewards, or incomplete ones. values: figures of the collection (reward
    mean, latency, retries …) that `train.step` repeats.
    """

    job_id: str
    iteration: int
    temperature: float
    rollouts: list[RolloutMeta]
    groups_kept: int
    groups_dropped: int
    values: dict[str, float] = msgspec.field(default_factory=dict[str, float])


def header_length(begin: bytes) -> int:
    """Return the length of the header, from the first `LENGTH_BYTES` of a body."""
    return int.from_bytes(begin[:LENGTH_BYTES], "little")


def read_description(header: bytes) -> Any:
    """Return the description in a batch's header, as JSON data. Raises `ValueError` on any other header."""
    try:
        return json.loads(cast(dict[str, Any], json.loads(header))["__metadata__"]["synth"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not a body of this format: {error}") from error


def read_batch_meta(header: bytes) -> BatchMeta:
    """Return the description of a batch. Raises `ValueError` on any other header."""
    return msgspec.convert(read_description(header), BatchMeta)
