"""The wait for a file that a job names."""

from __future__ import annotations

import asyncio

import pytest

from synth.errors import Transient, UserError
from synth.ids import new_org_id
from synth.verifier.files import wait_for_file
from tests.service.jobs import upload


async def test_a_file_that_is_never_checked_is_refused_at_the_deadline(bus_as, blobs):
    org, bus = new_org_id(), await bus_as("verifier")
    file = await upload(await bus_as("gateway"), blobs, org, b"rows")
    with pytest.raises(UserError, match="has not been checked in time"):
        await wait_for_file(bus, org, file, role="training_file", timeout=0.2, stop=asyncio.Event())


async def test_a_verifier_that_stops_gives_the_wait_to_the_next_one(bus_as, blobs):
    org, bus = new_org_id(), await bus_as("verifier")
    file = await upload(await bus_as("gateway"), blobs, org, b"rows")
    stop = asyncio.Event()
    waiting = asyncio.create_task(wait_for_file(bus, org, file, role="training_file", timeout=60, stop=stop))
    stop.set()
    with pytest.raises(Transient):
        await asyncio.wait_for(waiting, 5)


@pytest.mark.parametrize("file", ["*", ">", "a.b", "", "file 1"])
async def test_a_file_id_that_is_a_subject_pattern_names_no_file(bus_as, blobs, file):
    org, bus = new_org_id(), await bus_as("verifier")
    await upload(await bus_as("gateway"), blobs, org, b"rows")
    with pytest.raises(UserError, match="there is no file"):
        await wait_for_file(bus, org, file, role="training_file", timeout=0.2, stop=asyncio.Event())
