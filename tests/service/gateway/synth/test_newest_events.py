"""A page of events that goes on from nowhere: the newest ones, as `tail` shows them."""

from __future__ import annotations

from synth.gateway.api.synth import events as synth_events
from tests.service.gateway import job_histories
from tests.service.gateway.synth.test_jobs import create, get
from tests.service.gateway.wait import wait_until_shown


async def test_without_a_place_to_go_on_from_the_newest_events_are_shown(user, bus_as, monkeypatch):
    # Fewer than lie behind the last shown event, so that the log has to be read from further back.
    monkeypatch.setattr(synth_events, "_BATCH", 4)
    id = (await create(user))["id"]
    trainer, fence = await job_histories.begin(bus_as, user.org, id)
    for step in (1, 2, 3):
        await job_histories.step(trainer, fence, step)
    for index in range(30):
        await job_histories.rollout(bus_as, user.org, id, index)
    await wait_until_shown(user, await job_histories.step(trainer, fence, 4))
    path = f"/api/learning/jobs/{id}/events"
    events = (await get(user, path, since_seq=0))["events"]
    assert [e["type"] for e in events[-3:]] == ["rl.train.step"] * 3  # the last one behind thirty that are not shown
    for tail in (1, 2, 4, len(events), 200):
        assert (await get(user, path, limit=tail))["events"] == events[-tail:]
    assert (await get(user, path))["events"] == events
    # From a time on: still the newest. After an event: the first.
    assert (await get(user, path, since=events[-3]["timestamp"], limit=2))["events"] == events[-2:]
    assert (await get(user, path, since=events[-1]["timestamp"], limit=5))["events"] == events[-1:]
    assert (await get(user, path, since=events[0]["event_id"], limit=2))["events"] == events[1:3]
    assert (await get(user, path, since_seq=0, limit=2))["events"] == events[:2]
