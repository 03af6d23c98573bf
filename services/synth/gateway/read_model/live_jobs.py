"""Going through all live jobs, however many there are, while requests are answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Container

import msgspec

from synth.gateway.read_model.projection import JobRow
from synth.gateway.read_model.store import ReadModel
from synth.jobs.lifecycle import State

#: The states in which a job may wait for a service.
WAITING = frozenset({State.CREATED, State.VALIDATED, State.VERIFIED})
#: Rows that are read at one time: a few milliseconds.
_PAGE = 128
_READ = "SELECT created, org, state, row FROM jobs WHERE live AND created > ? ORDER BY created LIMIT ?"


async def live_jobs(
    model: ReadModel, *, states: Container[str] | None = None, orgs: Container[str] | None = None
) -> AsyncIterator[list[JobRow]]:
    """Jobs that have not ended, oldest first, in pages. states, orgs: only those; None: all.

    Each job is as it was when its page was read, and other work of the event loop is done between two pages.
    """
    after = 0
    while True:
        # What is not wanted is read too, and not decoded: a page costs the same whatever is in it.
        found = model.db.execute(_READ, (after, _PAGE)).fetchall()
        yield [
            msgspec.json.decode(row, type=JobRow)
            for _, org, state, row in found
            if (orgs is None or org in orgs) and (states is None or state in states)
        ]
        if len(found) < _PAGE:
            return
        after = found[-1][0]
        await asyncio.sleep(0)
