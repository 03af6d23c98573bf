"""Each kind of fault has a guard that can be taken out, so that the checker can be shown to fail of it."""

from __future__ import annotations

from tests.soak.faults import KINDS
from tests.soak.unguarded import GUARDS


def test_each_kind_of_fault_has_a_guard():
    assert {kind for guard in GUARDS.values() for kind in guard.faults} == set(KINDS)
