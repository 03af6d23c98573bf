"""The deadline of a group: its clock runs only while every unfinished rollout is at its app."""

from __future__ import annotations

import asyncio

import pytest

from synth.rollouts.collection.deadline import Deadline

SHORT_S = 0.01


async def expires(deadline: Deadline) -> bool:
    """Whether the deadline expires within many times its length."""
    try:
        async with asyncio.timeout(20 * SHORT_S):
            await deadline.expired()
    except TimeoutError:
        return False
    return True


async def test_it_expires_once_every_rollout_has_been_at_its_app_for_long_enough():
    deadline = Deadline([0, 1], SHORT_S)
    deadline.mark_at_app(0)
    assert not await expires(deadline)
    deadline.mark_at_app(1)
    assert await expires(deadline)


@pytest.mark.parametrize("away", [0, 1])
async def test_it_stands_still_while_a_rollout_is_away_unless_that_one_is_over(away: int):
    deadline = Deadline([0, 1], SHORT_S)
    deadline.mark_at_app(0)
    deadline.mark_at_app(1)
    deadline.mark_away(away)
    assert not await expires(deadline)
    deadline.mark_over(away)
    assert (deadline.is_over(away), deadline.is_over(1 - away)) == (True, False)
    assert await expires(deadline)


async def test_without_a_timeout_or_after_it_was_closed_it_never_expires():
    endless, closed = Deadline([0], None), Deadline([0], SHORT_S)
    for deadline in (endless, closed):
        deadline.mark_at_app(0)
        deadline.close()
        assert not await expires(deadline)
