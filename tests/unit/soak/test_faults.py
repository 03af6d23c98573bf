"""Which faults a storm draws."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.soak.faults import KINDS, Choice, draw

BUS = ("kill the leader of the log", "freeze the leader of the log", "cut a server of the bus off")


@pytest.mark.parametrize("seed", range(5))
def test_every_kind_strikes_once_before_one_strikes_twice(seed: int):
    rng, struck = random.Random(seed), Counter[str]()
    for _ in range(3 * len(KINDS)):
        fault = draw(rng, Choice(sorted(KINDS)), struck, set())
        assert fault is not None
        struck[fault.kind] += 1
        assert max(struck.values()) - min(struck[kind] for kind in KINDS) <= 1
    assert set(struck.values()) == {3}


@pytest.mark.parametrize("seed", range(5))
def test_a_kind_whose_victim_is_busy_makes_room_for_another(seed: int):
    struck = Counter({kind: 9 for kind in KINDS if kind not in BUS})
    fault = draw(random.Random(seed), Choice(sorted(KINDS)), struck, {"bus"})
    assert fault is not None
    assert fault.kind not in BUS


def test_nothing_is_drawn_while_every_victim_is_busy():
    assert draw(random.Random(0), Choice(BUS), Counter(), {"bus"}) is None
