"""From recorded calls to what is trained: every sampled token once, nothing else."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import save

from synth.trajectories import (
    BatchMeta,
    CompletionRecord,
    RecordedTrajectory,
    RewardSources,
    RolloutBatch,
    TokenMasks,
    TokenSet,
    build_branches,
    is_cut_off,
    records_from_bytes,
    records_to_bytes,
)
from synth.trajectories.packing import pack_arrays, unpack_arrays


def call(prompt: list[int], sampled: list[int], *, version: int = 0, forced: tuple[int, ...] = ()) -> CompletionRecord:
    n = len(sampled)
    return CompletionRecord(
        prompt_ids=np.array(prompt, np.int32),
        sampled_ids=np.array(sampled, np.int32),
        logprobs=-np.arange(1, n + 1, dtype=np.float32),
        versions=np.full(n, version, np.int32),
        sampled=np.array([i not in forced for i in range(n)]),
        finish_reason="stop",
    )


def test_a_call_that_extends_the_one_before_joins_its_branch():
    (branch,) = build_branches([call([1, 2], [3, 4]), call([1, 2, 3, 4, 5, 6], [7], version=1)])
    assert list(branch.tokens) == [1, 2, 3, 4, 5, 6, 7]
    assert list(branch.loss_mask) == [False, False, True, True, False, False, True]
    assert list(branch.versions) == [-1, -1, 0, 0, -1, -1, 1]
    assert list(branch.logprobs) == [0, 0, -1, -2, 0, 0, -1]


def test_a_call_whose_history_was_rewritten_opens_a_branch_of_its_own():
    calls = [call([1, 2], [9, 3]), call([1, 2, 3, 5], [6]), call([1, 2, 3, 5, 6, 7], [8])]
    first, second = build_branches(calls)
    assert list(first.tokens) == [1, 2, 9, 3]
    assert list(second.tokens) == [1, 2, 3, 5, 6, 7, 8]
    assert first.loss_mask.sum() + second.loss_mask.sum() == 4


def test_a_forced_token_is_context_and_not_trained():
    (branch,) = build_branches([call([1], [2, 3, 4], forced=(1,))])
    assert list(branch.loss_mask) == [False, True, False, True]
    assert branch.logprobs[2] == 0


def test_what_a_grammar_allowed_stays_with_its_token_through_turns_and_batches():
    few, most = TokenSet.of(np.arange(9) < 2), TokenSet.of(np.arange(9) > 0)
    assert (few.ids.tolist(), few.excluded, most.ids.tolist(), most.excluded) == ([0, 1], False, [0], True)
    first = replace(call([1, 2], [0, 3]), masks=TokenMasks.of([few, None]))
    later = replace(call([1, 2, 0, 3, 5], [7, 1, 4]), masks=TokenMasks.of([most, few, None]))
    other = call([8], [6])
    branches = build_branches(records_from_bytes(records_to_bytes([first, later, other])))
    trajectory = RecordedTrajectory.from_bytes(RecordedTrajectory(branches, RewardSources([1.0])).to_bytes())
    joined, plain = trajectory.branches
    assert joined.masks is not None
    assert allowed_of(joined.masks) == [None, None, [0, 1], None, None, "not [0]", [0, 1], None]
    assert plain.masks is None
    meta = BatchMeta(job_id="j", iteration=1, temperature=1.0, rollouts=[], groups_kept=1, groups_dropped=0)
    batch = RolloutBatch.build([plain, joined, joined], [1.0] * 3, [0] * 3, meta)
    again = RolloutBatch.from_bytes(batch.to_bytes()).masks
    assert again is not None
    assert allowed_of(again) == [None, None, *allowed_of(joined.masks) * 2]
    assert len(again.sets) == 2


def allowed_of(masks: TokenMasks) -> list[object]:
    """The allowed tokens of each position, in words."""
    sets: list[object] = [f"not {s.ids.tolist()}" if s.excluded else s.ids.tolist() for s in masks.sets]
    return [None if i < 0 else sets[i] for i in masks.index]


def test_records_come_back_as_they_were_taken():
    records = [call([1, 2], [3]), call([], []), call([4], [5, 6], forced=(0,))]
    for before, after in zip(records, records_from_bytes(records_to_bytes(records)), strict=True):
        assert np.array_equal(before.sampled_ids, after.sampled_ids)
        assert np.array_equal(before.sampled, after.sampled)
        assert before.finish_reason == after.finish_reason


def ended(record: CompletionRecord, reason: str) -> CompletionRecord:
    return replace(record, finish_reason=reason)


def test_a_call_that_its_client_gave_up_is_in_no_branch_and_the_turns_keep_their_numbers():
    given_up, again = ended(call([1, 2], [3]), "abort"), call([1, 2], [4, 5])
    (branch,) = build_branches([given_up, again])
    assert list(branch.tokens) == [1, 2, 4, 5]
    assert list(branch.calls) == [-1, -1, 1, 1]
    assert build_branches([given_up]) == []


@pytest.mark.parametrize(
    ("reasons", "cut"),
    [
        (["stop", "length"], True),
        (["length", "stop"], False),
        (["length", "abort"], True),
        (["abort"], False),
        ([], False),
    ],
)
def test_a_rollout_is_cut_off_where_the_last_reply_that_was_read_is(reasons: list[str], cut: bool):
    assert is_cut_off([ended(call([1], [2]), reason) for reason in reasons]) is cut


def test_a_trajectory_remembers_that_it_was_cut_off():
    trajectory = RecordedTrajectory([], RewardSources([1.0]), cut_off=True, images_dropped=3)
    assert RecordedTrajectory.from_bytes(trajectory.to_bytes()).images_dropped == 3
    assert RecordedTrajectory.from_bytes(trajectory.to_bytes()).cut_off


def test_packed_arrays_are_what_safetensors_writes_and_reads():
    arrays = {
        "e.masks": np.asarray([True, False, True]),
        "d.bytes": np.arange(5, dtype=np.uint8),
        "c.ids": np.arange(12, dtype=np.int32).reshape(3, 4)[:, ::2],
        "b.logprobs": np.asarray([-0.5], np.float32),
        "a.offsets": np.asarray([0, 1 << 40]),
        "z.none": np.zeros((0, 3), np.float32),
    }
    meta = {"reward": 0.5, "text": 'é"\n', "rest": [math.inf]}
    body = pack_arrays(arrays, meta)
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    assert body == save(contiguous, metadata={"synth": json.dumps(meta)})
    read, described = unpack_arrays(body)
    assert described == meta
    assert {name: (a.dtype, a.tolist()) for name, a in read.items()} == {
        name: (a.dtype, a.tolist()) for name, a in arrays.items()
    }


@pytest.mark.parametrize(
    ("part", "other"),
    [(b'"shape":[1]', b'"shape":[9]'), (b'"shape":[1]', b'"shape":"a"'), (b"I32", b"I99"), (b"[0,4]", b"[4,8]")],
)
def test_a_body_with_a_wrong_header_is_refused(part: bytes, other: bytes):
    body = pack_arrays({"ids": np.asarray([7], np.int32)}, {})
    assert part in body
    with pytest.raises(ValueError, match="not a body of this format"):
        unpack_arrays(body.replace(part, other))
    with pytest.raises(ValueError, match="not a body of this format"):
        unpack_arrays(body[:-1])
