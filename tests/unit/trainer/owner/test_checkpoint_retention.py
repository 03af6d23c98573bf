"""Which checkpoints are kept."""

from __future__ import annotations

import pytest

from synth.trainer.owner.checkpoint_retention import steps_to_keep


@pytest.mark.parametrize(
    ("steps", "keep", "every", "stay"),
    [
        ([1, 2, 3, 4, 5], 3, 0, {3, 4, 5}),
        ([1, 2, 3, 4, 5], 1, 0, {4, 5}),
        ([5], 3, 0, {5}),
        ([], 3, 0, set()),
        # Evaluated every fourth step: those are the ones that can be compared.
        (list(range(1, 15)), 3, 4, {4, 8, 12, 13, 14}),
        (list(range(1, 15)), 2, 4, {8, 12, 13, 14}),
        ([1, 2, 3], 3, 4, {2, 3}),
    ],
)
def test_the_last_two_stay_to_resume_from_and_so_many_of_those_that_were_evaluated(steps, keep, every, stay):
    assert steps_to_keep(steps, keep=keep, evaluated_every=every) == stay
