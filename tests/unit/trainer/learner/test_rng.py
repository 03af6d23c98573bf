"""The order in which rows are drawn, and the state of the generators that a checkpoint has."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch

from synth.trainer.learner import rng
from synth.trainer.learner.rng import DrawOrder, permutation


@pytest.mark.parametrize("n", [0, 1, 2, 1000])
def test_an_order_is_the_permutation_of_its_key(n: int) -> None:
    for key in ((0, 0), (0, 1), (7, 3), (-1, 2**40)):
        order = DrawOrder(n, *key)
        assert order.part(0, n) == permutation(n, *key)
        assert order.part(n // 2, n + 5) == permutation(n, *key)[n // 2 :]


@pytest.mark.parametrize("n", [1, 2, 3, 255, 256, 257, 5000])
def test_an_order_that_takes_no_memory_has_every_number_once(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rng.DrawOrder, "_LARGE", 0)
    orders = [DrawOrder(n, *key) for key in ((0, 0), (0, 0), (0, 1))]
    whole = orders[0].part(0, n)
    assert sorted(whole) == list(range(n))
    assert whole == orders[1].part(0, n)
    assert whole == [value for begin in range(0, n, 7) for value in orders[0].part(begin, begin + 7)]
    if n > 3:
        assert whole not in (list(range(n)), orders[2].part(0, n))


def test_a_large_order_takes_no_memory_and_is_mixed() -> None:
    n = 10**12
    drawn = np.array(DrawOrder(n, 3, 4).part(10**11, 10**11 + 10_000))
    assert len(set(drawn.tolist())) == len(drawn)
    assert 0 <= drawn.min() < n // 100
    assert n - n // 100 < drawn.max() < n
    assert abs(drawn.mean() / n - 0.5) < 0.02


def test_generators_that_are_restored_draw_what_they_would_have_drawn() -> None:
    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.standard_normal()), float(torch.rand(()))

    for seed in (0, 1):
        rng.seed_everything(seed, deterministic=False)
        draw()
        state = json.loads(json.dumps(rng.capture()))
        expected = draw()
        draw()
        rng.restore(state)
        assert draw() == expected
