"""The sampled data: completion records, trajectories built from them, and the batches that are trained.

Each is one safetensors body (ragged: flat arrays and offsets). Nothing here is ever detokenised and encoded again.
"""

from __future__ import annotations

from synth.trajectories.batch import ProcessorsDiffer, RolloutBatch, read_batch_images
from synth.trajectories.masks import TokenMasks, TokenSet
from synth.trajectories.records import (
    ClosedRollout,
    CompletionRecord,
    closed_from_bytes,
    closed_to_bytes,
    records_from_bytes,
    records_to_bytes,
)
from synth.trajectories.reward_sources import RewardSources, at_last_turn
from synth.trajectories.trajectory import Branch, RecordedTrajectory, build_branches, is_cut_off
from synth.transcripts.batch_header import BatchMeta, RolloutMeta

__all__ = [
    "BatchMeta",
    "Branch",
    "ClosedRollout",
    "CompletionRecord",
    "ProcessorsDiffer",
    "RecordedTrajectory",
    "RewardSources",
    "RolloutBatch",
    "RolloutMeta",
    "TokenMasks",
    "TokenSet",
    "at_last_turn",
    "build_branches",
    "closed_from_bytes",
    "closed_to_bytes",
    "is_cut_off",
    "read_batch_images",
    "records_from_bytes",
    "records_to_bytes",
]
