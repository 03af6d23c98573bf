"""How micro-batches are sharded over ranks: all that one process can show."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from synth.trainer.learner.data.packing import plan_micro_batches
from synth.trainer.learner.distributed.process_group import SINGLE_PROCESS, ProcessGroup


@given(
    lengths=st.lists(st.integers(1, 40), max_size=30),
    size=st.integers(1, 5),
    packing=st.sampled_from(["packed", "padded"]),
)
def test_every_row_is_trained_once_and_every_rank_is_as_busy(lengths: list[int], size: int, packing) -> None:
    groups = plan_micro_batches(dict(enumerate(lengths)), budget=64, packing=packing, num_ranks=size)
    shares = [ProcessGroup(rank, size).shard_micro_batches(groups) for rank in range(size)]
    trained = sorted(row for share in shares for group, dummy in share if not dummy for row in group)
    assert trained == list(range(len(lengths)))
    assert len({len(share) for share in shares}) == 1
    assert not any(dummy for _, dummy in shares[0])
    if any(dummy for share in shares for _, dummy in share):
        assert all(len(group) == 1 for group in groups)  # nothing is left to divide


def test_a_rank_alone_has_the_plan_as_it_is() -> None:
    lengths = {i: 1 + i % 7 for i in range(20)}
    groups = plan_micro_batches(lengths, budget=16, packing="packed")
    assert SINGLE_PROCESS.shard_micro_batches(groups) == [
        (group, False) for group in plan_micro_batches(lengths, budget=16, packing="packed", num_ranks=1)
    ]
    assert SINGLE_PROCESS.reduce_metrics({"a": 1.0, "b/max": 2.0}) == {"a": 1.0, "b/max": 2.0}
    assert SINGLE_PROCESS.broadcast(False) is False
