"""Which seeds an iteration trains on."""

from __future__ import annotations

import random

import pytest

from synth.methods.seeds import Seeds, _LazyShuffle, draw, parse_seeds


def test_the_three_ways_to_write_seeds_mean_the_same() -> None:
    assert parse_seeds("3-5").first() == [3, 4, 5]
    assert parse_seeds({"start": 3, "count": 3}).first() == [3, 4, 5]
    assert parse_seeds([3, 4, 5]).first() == [3, 4, 5]


def test_an_epoch_uses_each_seed_once_and_the_next_is_shuffled_anew() -> None:
    seeds = Seeds(start=10, count=12)
    epochs = [
        [s for k in range(e * 4 + 1, e * 4 + 5) for s in draw(seeds, job_seed=0, iteration=k, batch=3)] for e in (0, 1)
    ]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(10, 22))
    assert epochs[0] != epochs[1]


def test_a_batch_may_reach_over_the_end_of_an_epoch() -> None:
    assert len(draw(Seeds(listed=[1, 2]), job_seed=0, iteration=1, batch=5)) == 5


def test_drawing_again_gives_the_same_and_another_job_seed_another_order() -> None:
    seeds = Seeds(start=0, count=1000)
    first = draw(seeds, job_seed=0, iteration=7, batch=16)
    assert first == draw(seeds, job_seed=0, iteration=7, batch=16)
    assert first != draw(seeds, job_seed=1, iteration=7, batch=16)


def test_a_range_may_have_any_size() -> None:
    seeds = parse_seeds("0-9007199254740991")
    batches = [draw(seeds, job_seed=0, iteration=k, batch=50) for k in (1, 2, 3)]
    drawn = [seed for batch in batches for seed in batch]
    assert len(set(drawn)) == 150
    assert seeds.shared_with(set(drawn)) == set(drawn)
    assert draw(seeds, job_seed=0, iteration=2, batch=50) == batches[1]
    with pytest.raises(ValueError, match="this range ends at 9007199254740992"):
        parse_seeds("0-9007199254740992")


def test_what_is_shuffled_as_it_is_drawn_has_each_seed_once() -> None:
    order = _LazyShuffle(500, random.Random(3))
    assert sorted(order[i] for i in reversed(range(500))) == list(range(500))
