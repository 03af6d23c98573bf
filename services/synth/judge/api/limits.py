"""When the next calls of one judge's API may be made: pure arithmetic on a record that all replicas share.

Calls under a rate limit are made at least 1/rate apart, so that no second has more of them, over all replicas. A
replica that dies leaves its running calls in the record until they expire.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

#: Moments that are further ahead than this are not given away: who comes in the meantime may be due before.
HORIZON_S = 0.1


class HeldCalls(msgspec.Struct, kw_only=True):
    """The running calls of one replica, by job; expires: unix seconds, unless the replica renews it."""

    jobs: dict[str, int] = {}
    expires: float = 0.0


class LimitState(msgspec.Struct, kw_only=True):
    """The record that replicas share. Times are Unix seconds.

    next_at: when the API's next call may be made; jobs: the same for each job with its own limit. paused_until: the end
    of the API's own Retry-After. held: the running calls by replica.
    """

    next_at: float = 0.0
    jobs: dict[str, float] = {}
    paused_until: float = 0.0
    held: dict[str, HeldCalls] = {}


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """A call that waits. rate: calls per second of its job, None for no limit; concurrency: of its job."""

    job: str
    rate: float | None = None
    concurrency: int


class ApiLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's limits for one API: calls per second and at one time, None for no limit."""

    rate: float | None = None
    concurrency: int | None = None


def grant(
    state: LimitState,
    wishes: Sequence[Wish],
    limits: ApiLimits,
    *,
    replica: str,
    now: float,
    margin_s: float,
    hold_s: float,
) -> list[float | None]:
    """Give what can be given within the horizon, and note it in the state: the moment of each wish, None for later.

    margin_s: by how much a call may arrive late. hold_s: seconds after which the calls of a silent replica are over.
    """
    _forget(state, now)
    calls = state.held.setdefault(replica, HeldCalls())
    calls.expires = now + hold_s
    moments: list[float | None] = []
    for wish in wishes:
        moment = max(now, state.next_at, state.paused_until, state.jobs.get(wish.job, 0.0) if wish.rate else 0.0)
        if moment > now + HORIZON_S or not _has_room(state, wish, limits):
            moments.append(None)
            continue
        if limits.rate:
            state.next_at = moment + _interval(limits.rate, margin_s)
        if wish.rate:
            state.jobs[wish.job] = moment + _interval(wish.rate, margin_s)
        calls.jobs[wish.job] = calls.jobs.get(wish.job, 0) + 1
        moments.append(moment)
    return moments


def give_back(state: LimitState, ended: Mapping[str, int], *, replica: str) -> None:
    """Take calls that have ended out of the state. ended: how many of each job."""
    calls = state.held.get(replica)
    if calls is None:
        return
    for job, count in ended.items():
        left = calls.jobs.get(job, 0) - count
        if left > 0:
            calls.jobs[job] = left
        else:
            calls.jobs.pop(job, None)
    if not calls.jobs:
        del state.held[replica]


def next_look(state: LimitState, wishes: Sequence[Wish], *, now: float, poll_s: float) -> float:
    """Return the seconds after which to look again for the first of these wishes."""
    moments = [max(state.next_at, state.paused_until, state.jobs.get(w.job, 0.0) if w.rate else 0.0) for w in wishes]
    due = min(moments, default=now) - HORIZON_S / 2 - now
    return min(max(due, 0.005 if due > 0 else poll_s), poll_s * 10)


def _has_room(state: LimitState, wish: Wish, limits: ApiLimits) -> bool:
    of_job = sum(held.jobs.get(wish.job, 0) for held in state.held.values())
    if of_job >= wish.concurrency:
        return False
    running = sum(sum(held.jobs.values()) for held in state.held.values())
    return limits.concurrency is None or running < limits.concurrency


def _interval(rate: float, margin_s: float) -> float:
    """Return the seconds between two calls: with a late first and a punctual last call a second has at most `rate`."""
    return (1.0 + margin_s) / rate


def _forget(state: LimitState, now: float) -> None:
    state.held = {name: held for name, held in state.held.items() if held.expires > now}
    state.jobs = {job: moment for job, moment in state.jobs.items() if moment > now}
