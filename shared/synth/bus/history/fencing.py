"""Fences of tasks: the claim of an RL job's collector, and the end of work that has lost its fence.

Invariants. A collector makes its claim before it reads the log, so that it reads every event that an earlier collector
could append. Owned work ends as soon as a later claim is in the log, not only when its next append is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import aclosing
from typing import TypeVar
from uuid import uuid4

from synth.bus.cancellation import cancel_until_ended
from synth.bus.connection import Connection
from synth.bus.publish import Fence, Publisher
from synth.bus.replay import follow, replay
from synth.errors import Conflict, Fenced, Transient
from synth.events import CollectionStarted
from synth.events.catalogue import spec_of, subject_of

_T = TypeVar("_T")
_MAX_RACES = 12


async def start_collection(bus: Connection, org: str, job_id: str, *, worker: str) -> Fence:
    """Become the collector of an RL job: append the next `collection.started`. Earlier ones can append no more."""
    publisher = Publisher(bus)
    for _ in range(_MAX_RACES):
        before = await replay(bus, [subject_of(CollectionStarted, org, job_id)], last_per_subject=True)
        last = before[-1].event if before else None
        attempt = last.attempt + 1 if isinstance(last, CollectionStarted) else 1
        after = before[-1].seq if before else 0
        claim = CollectionStarted(attempt=attempt, worker=worker)
        try:
            # Ours alone, and the same for every retry of this very append, which is so recognised as ours.
            seq = await publisher.chained(claim, org=org, key=job_id, id=f"{after}:{uuid4().hex}", after=after)
        except Conflict:
            continue
        return Fence(org=org, job_id=job_id, attempt=attempt, seq=seq, claim=CollectionStarted)
    raise Transient(f"{job_id}: lost {_MAX_RACES} races for its collection")


async def lost(bus: Connection, fence: Fence) -> Fenced:
    """Wait until another owner has made its claim; returns the error for the owner that has lost its fence."""
    async with aclosing(follow(bus, [fence.subject], after=fence.seq)) as claims:
        async for claim in claims:
            fact = spec_of(fence.claim).type
            return Fenced(f"{fence.job_id}: another {fact} (seq {claim.seq}) follows that of attempt {fence.attempt}")
    raise AssertionError("a follow never ends")


async def run_owned(bus: Connection, fence: Fence, work: Awaitable[_T]) -> _T:
    """Return the result of `work`. Cancels it and raises `Fenced` once another owner has made its claim."""
    working = asyncio.ensure_future(work)
    losing = asyncio.create_task(lost(bus, fence))
    try:
        await asyncio.wait([working, losing], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise losing.result()
        return working.result()
    finally:
        await cancel_until_ended(working, losing, what=f"owned work of {fence.job_id}")
