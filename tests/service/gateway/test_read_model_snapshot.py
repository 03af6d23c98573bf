"""A copy of the read model stands in for a damaged file, and no other; what it lacks comes from the log."""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import replace

import pytest

from synth.events import JobDeleted
from synth.gateway.read_model.snapshot import take_snapshot
from synth.gateway.read_model.store import ReadModel
from tests.service.gateway.test_read_model import dump, new_model, some_history
from tests.service.gateway.test_read_model_damage import answers, rebuilds, rubbish, shred


@pytest.fixture
async def copied(user, bus_as, tmp_path):
    """A model, a copy of its first half, all events, and what a sound model of all of them has in it."""
    events = await some_history(user, bus_as)
    sound = new_model(tmp_path / "sound.db")
    sound.apply(events)
    model = new_model(tmp_path / "m.db")
    model.apply(events[: len(events) // 2])
    await take_snapshot(model)
    model.apply(events[len(events) // 2 :])
    return model, events, dump(tmp_path / "sound.db")


def opened(path, *, snapshot_mark_holds: bool, stream: str = "s") -> ReadModel:
    model = ReadModel(path)
    model.prepare(stream=stream, last_seq=10**9, snapshot_mark_holds=snapshot_mark_holds)
    return model


async def test_a_damaged_file_is_made_anew_from_its_copy_and_the_rest_of_the_log(copied):
    model, events, sound = copied
    model.close()
    rubbish("row", "jobs")(model.path)
    found = opened(model.path, snapshot_mark_holds=True)
    assert found.applied == events[len(events) // 2 - 1].seq
    found.apply(events)
    assert dump(model.path) == sound
    # It was moved into its place, and is no copy any more.
    assert not found.snapshot_path.exists()


@pytest.mark.parametrize("unfit", ["of another log", "whose last event is not in the log", "damaged"])
async def test_a_copy_is_not_used(unfit, copied):
    model, events, sound = copied
    model.close()
    rubbish("row", "jobs")(model.path)
    if unfit == "damaged":
        rubbish("row", "jobs")(model.snapshot_path)
    of_log = unfit != "whose last event is not in the log"
    found = opened(model.path, snapshot_mark_holds=of_log, stream="t" if unfit == "of another log" else "s")
    assert (found.applied, found.snapshot_path.exists()) == (0, False)
    found.apply(events)
    if unfit != "of another log":
        assert dump(model.path) == sound


async def test_a_damaged_file_is_not_copied_over_a_sound_copy(copied):
    model, _, _ = copied
    before = model.snapshot_path.read_bytes()
    rubbish("row", "jobs")(model.path)
    await take_snapshot(model)
    assert model.snapshot_path.read_bytes() == before
    assert not model.unfinished_snapshot.exists()


async def test_a_deletion_leaves_no_copy_of_what_was_deleted(user, copied, bus_as):
    model, events, _ = copied
    copying = asyncio.create_task(take_snapshot(model))
    await asyncio.sleep(0)  # it has begun
    job = next(event for event in events if event.type == "job.created")
    deleted = replace(job, type="job.deleted", event=JobDeleted(requested_by="key_1"), seq=events[-1].seq + 1)
    model.apply([deleted])
    assert not model.snapshot_path.exists()
    # Nor does one that was under way come behind the deletion.
    await copying
    assert not model.snapshot_path.exists()
    await take_snapshot(model)
    with sqlite3.connect(model.snapshot_path) as db:
        assert db.execute("SELECT count(*) FROM texts WHERE id = ?", (job.key,)).fetchone() == (0,)


def copied_up_to(path) -> int:
    """Where in the log the copy at this path stands; 0 where there is none yet."""
    if not path.exists():
        return 0
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as db:
        return db.execute("SELECT applied FROM cursor").fetchone()[0]


async def projected(user) -> float:
    """How many events the gateways of this process have projected."""
    lines = (await user.http.get("/metrics")).text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("synth_gateway_projected_events_total"))


@pytest.mark.parametrize("harm", [rubbish("row", "jobs"), shred], ids=["rubbish", "shred"])
async def test_a_gateway_goes_on_from_its_copy(harm, user, start_gateway, client_of, bus_as, tmp_path):
    events = await some_history(user, bus_as)
    # The log is that of all tests of the session. A gateway that begins now has all of it in its first copy, and makes
    # the next one only after many times what that took.
    path = tmp_path / "g.db"
    running = await start_gateway(read_model_path=path, read_model_check_s=0.2, read_model_snapshot_events=1)
    user = await client_of(running, key=user.key)
    async with asyncio.timeout(60):
        while copied_up_to(tmp_path / "g.db.snapshot") < events[-1].seq:  # noqa: ASYNC110 - another task's file
            await asyncio.sleep(0.05)
    await user.submit()
    before = await answers(user)
    done, rebuilt = await projected(user), await rebuilds(user)
    harm(path)
    async with asyncio.timeout(60):
        while await rebuilds(user) == rebuilt:  # noqa: ASYNC110 - another task's file, and no event
            await asyncio.sleep(0.05)
    assert await answers(user) == before
    assert await projected(user) - done < len(events) / 2
    assert (await user.http.get("/healthz")).status_code == 200
