"""What the gateway says of jobs that say nothing."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from synth.bus.history.job_log import start_attempt
from synth.bus.publish import Publisher
from synth.bus.replay import replay
from synth.events import (
    JobCreated,
    JobPaused,
    JobPauseRequested,
    JobResumed,
    JobValidated,
    JobWithdrawn,
    PolicyLoaded,
    QueueWaiting,
)
from synth.gateway.read_model.live_jobs import JobQueue, live_jobs, missing_service
from synth.gateway.read_model.projection import JobRow
from synth.gateway.read_model.store import ReadModel
from synth.gateway.settings import GatewaySettings
from synth.gateway.watchdog import is_news, say_heartbeats, say_waiting, slot_of
from synth.ids import new_job_id, new_org_id
from synth.jobs.lifecycle import State
from tests.service.gateway import job_histories

SSE = {"Accept": "text/event-stream"}


async def await_event(user, id: str, type: str, *, count: int = 1) -> list[dict]:
    """The first `count` events of this type."""
    found: list[dict] = []
    async with asyncio.timeout(20), user.http.stream("GET", f"/api/jobs/{id}/events", headers=SSE) as stream:
        event = ""
        async for line in stream.aiter_lines():
            if line.startswith("event: "):
                event = line.removeprefix("event: ")
            elif line.startswith("data: ") and event == type:
                found.append(json.loads(line.removeprefix("data: ")))
                if len(found) == count:
                    return found
    raise AssertionError(f"the stream ended before {count} {type}")


async def test_a_silent_job_gets_heartbeats_that_change_nothing(start_gateway, client_of, bus_as):
    user = await client_of(await start_gateway(heartbeat_after_s=0.5))
    id = (await user.submit())["id"]
    beats = await await_event(user, id, "watch.heartbeat", count=2)
    assert beats[0]["data"] == {"state": "created"}
    job = (await user.http.get(f"/api/jobs/{id}")).json()
    assert job["updated_at"] == job["created_at"]


async def test_gateways_that_sweep_at_once_append_one_event(bus_as, tmp_path):
    buses = [await bus_as("gateway") for _ in range(2)]
    org, id = new_org_id(), new_job_id()
    await job_histories.append(buses[0], org, id, JobCreated(config="", config_name="x.toml", body_sha256="0"))
    model = ReadModel(tmp_path / "m.db")
    model.prepare(stream="s", last_seq=10**9)
    model.apply(await replay(buses[0], [f"*.*.{org}.{id}"]))
    row, settings = model.find("jobs", JobRow, id), GatewaySettings()
    assert row is not None
    later = row.last_shown_at + timedelta(seconds=100)
    for bus in map(Publisher, buses * 2):
        await asyncio.gather(
            say_heartbeats(model, [id], bus, settings, later),
            say_waiting(model, JobQueue("default"), bus, settings, later),
        )
    said = await replay(buses[0], [f"*.*.{org}.{id}"])
    assert sorted(e.type for e in said) == ["job.created", "queue.waiting", "watch.heartbeat"]


async def test_rollouts_alone_keep_no_heartbeat_away(bus_as, tmp_path):
    gateway, org, id = await bus_as("gateway"), new_org_id(), new_job_id()
    await job_histories.append(gateway, org, id, JobCreated(config="", config_name="x.toml", body_sha256="0"))
    await job_histories.rollout(bus_as, org, id, 1)
    created, rollout = events = await replay(gateway, [f"*.*.{org}.{id}"])
    model = ReadModel(tmp_path / "m.db")
    model.prepare(stream="s", last_seq=10**9)
    model.apply(events)
    row = model.find("jobs", JobRow, id)
    assert row is not None
    assert row.job.rollouts.completed == 1
    assert row.last_shown_at == created.time < rollout.time, "a client that counts events does not see it"


async def test_only_a_job_that_somebody_watches_gets_heartbeats(start_gateway, client_of, bus_as):
    user = await client_of(await start_gateway(heartbeat_after_s=0.5))
    alone, polled, streamed = [(await user.submit())["id"] for _ in range(3)]
    await user.http.get(f"/api/jobs/{polled}/events")
    await await_event(user, streamed, "watch.heartbeat", count=2)
    await await_event(user, polled, "watch.heartbeat")
    assert await replay(await bus_as("gateway"), [f"watch.heartbeat.{user.org}.{alone}"]) == []


async def test_live_jobs_are_read_in_pages_each_once_in_their_order(bus_as, tmp_path, monkeypatch):
    monkeypatch.setattr("synth.gateway.read_model.live_jobs._PAGE", 2)
    gateway, org = await bus_as("gateway"), new_org_id()
    ids = [new_job_id() for _ in range(5)]
    for id in ids:
        await job_histories.append(gateway, org, id, JobCreated(config="", config_name="x.toml", body_sha256="0"))
    await job_histories.append(gateway, org, ids[1], JobWithdrawn())
    await job_histories.verify(bus_as, org, ids[3])
    model = ReadModel(tmp_path / "m.db")
    model.prepare(stream="s", last_seq=10**9)
    model.apply(await replay(gateway, [f"*.*.{org}.*"]))
    assert [row.job.id async for page in live_jobs(model) for row in page] == [ids[k] for k in (0, 2, 3, 4)]
    states = {State.CREATED}
    assert [row.job.id async for page in live_jobs(model, states=states) for row in page] == [ids[k] for k in (0, 2, 4)]
    assert [row.job.id async for page in live_jobs(model, orgs={"org_x"}) for row in page] == []


def test_what_a_job_waits_for_is_said_each_time_that_it_has_waited_twice_as_long():
    said = [slot_of(waited, after_s=60) for waited in range(0, 3600, 10)]
    assert [10 * said.index(slot) for slot in sorted(set(said))] == [0, 60, 120, 240, 480, 960, 1920]


def test_a_thousand_watched_jobs_announce_a_few_places_each_and_not_all_thousand():
    announced = [1000]
    for position in range(999, 0, -1):
        if is_news(position, announced[-1]):
            announced.append(position)
    assert announced == [1000, 500, 250, 125, 62, 31, 15, *range(10, 0, -1)]


async def test_an_ended_job_gets_none(start_gateway, client_of, bus_as):
    user = await client_of(await start_gateway(heartbeat_after_s=0.5))
    ended, live = (await user.submit())["id"], (await user.submit())["id"]
    await user.http.post(f"/api/jobs/{ended}/cancel")
    await await_event(user, live, "watch.heartbeat")
    assert await replay(await bus_as("gateway"), [f"watch.heartbeat.{user.org}.{ended}"]) == []


@pytest.mark.parametrize(
    ("kind", "loaded", "need"),
    [("sft", False, "trainer"), ("rl", False, "inference"), ("rl", True, "trainer"), ("eval", True, "rollouts")],
)
async def test_a_job_that_nobody_takes_says_what_it_lacks(start_gateway, client_of, bus_as, kind, loaded, need):
    user = await client_of(await start_gateway())
    id = (await user.submit())["id"]
    await job_histories.verify(bus_as, user.org, id, kind=kind)
    if loaded:
        event = PolicyLoaded(version=0, replica="r", seconds=1, proven=0)
        await Publisher(await bus_as("inference")).once(event, org=user.org, key=id, id="0:r")
    # Who looks sees it at once, and who watches a second later: no minute goes by.
    waiting: dict[str, Any] = {"need": ""}
    async with asyncio.timeout(20):
        while waiting["need"] != need:
            waiting = (await user.http.get(f"/api/jobs/{id}")).json()["waiting"]
        while waits := await await_event(user, id, "queue.waiting"):
            if waits[-1]["data"]["need"] == need:
                break
    # Jobs of other tests wait, too.
    assert waiting["pool"] == "default"
    assert min(waiting["position"], waits[-1]["data"]["position"]) >= 1


async def test_a_job_whose_task_app_is_being_checked_takes_no_trainers_place(bus_as, tmp_path):
    gateway, org = await bus_as("gateway"), new_org_id()
    checked, first, second = (new_job_id() for _ in range(3))
    for id in (checked, first, second):
        await job_histories.append(gateway, org, id, JobCreated(config="", config_name="x.toml", body_sha256="0"))
    validated = JobValidated(job={"kind": "sft", "model": "tiny"}, origins={}, warnings=[])
    await job_histories.append(await bus_as("validator"), org, checked, validated)
    # The queue is that of who was checked first, whoever was submitted first.
    for id in (second, first):
        await job_histories.verify(bus_as, org, id, kind="sft")
    model, queue = ReadModel(tmp_path / "m.db"), JobQueue("gpu")
    model.prepare(stream="s", last_seq=10**9)
    model.apply(await replay(gateway, [f"*.*.{org}.*"]))

    def places() -> list[tuple[str, str, int]]:
        shown = [queue.show(row).waiting for id in (checked, first, second) if (row := model.find("jobs", JobRow, id))]
        return [(w.need, w.pool, w.position) for w in shown if w is not None]

    assert places() == [("verifier", "gpu", 1), ("trainer", "gpu", 1), ("trainer", "gpu", 1)], "nobody has looked yet"
    await queue.update(model)
    assert places() == [("verifier", "gpu", 1), ("trainer", "gpu", 2), ("trainer", "gpu", 1)]
    await start_attempt(await bus_as("trainer"), org, second, worker="w")
    model.apply(await replay(gateway, [f"*.*.{org}.*"]))
    await queue.update(model)
    assert places() == [("verifier", "gpu", 1), ("trainer", "gpu", 1)]
    watched = Publisher(gateway)
    row = model.find("jobs", JobRow, first)
    assert row is not None
    now = row.state_since + timedelta(seconds=2)
    await say_waiting(model, queue, watched, GatewaySettings(), now, watched={first})
    said = await replay(gateway, [f"queue.waiting.{org}.*"])
    assert [e.key for e in said] == [first]
    assert said[0].event == QueueWaiting(need="trainer", pool="gpu", position=1, seconds=2.0)


async def test_the_place_of_a_job_is_that_in_the_order_in_which_workers_take_it(bus_as, tmp_path):
    """An organisation that holds an engine has queued more before: the next place is not its own."""
    gateway, loud, quiet = await bus_as("gateway"), new_org_id(), new_org_id()
    jobs = [(org, new_job_id()) for org in (loud, loud, loud, quiet, quiet)]
    for org, id in jobs:
        await job_histories.append(gateway, org, id, JobCreated(config="", config_name="x.toml", body_sha256="0"))
        await job_histories.verify(bus_as, org, id)
    loaded = PolicyLoaded(version=0, replica="r", seconds=1, proven=0)
    await Publisher(await bus_as("inference")).once(loaded, org=loud, key=jobs[0][1], id="0:r")
    await start_attempt(await bus_as("trainer"), loud, jobs[0][1], worker="w")
    model, queue = ReadModel(tmp_path / "m.db"), JobQueue("gpu")
    model.prepare(stream="s", last_seq=10**9)
    model.apply(await replay(gateway, [f"*.*.{org}.*" for org in (loud, quiet)]))
    rows = [row for _, id in jobs if (row := model.find("jobs", JobRow, id)) is not None]

    await queue.update(model)
    places = [None if (place := queue.place(row)) is None else (place.need, place.position) for row in rows]
    assert places == [None, ("inference", 2), ("inference", 4), ("inference", 1), ("inference", 3)]
    # Of those that the queue has not read yet, too.
    new = msgspec.structs.replace(rows[4], job=msgspec.structs.replace(rows[4].job, id=new_job_id()), org=new_org_id())
    place = queue.place(new)
    assert place is not None
    assert place.position == 2


async def test_a_job_that_was_resumed_lacks_an_engine_again(bus_as, tmp_path):
    gateway, org, id = await bus_as("gateway"), new_org_id(), new_job_id()
    await job_histories.append(gateway, org, id, JobCreated(config="", config_name="x.toml", body_sha256="0"))
    await job_histories.verify(bus_as, org, id)
    loaded = PolicyLoaded(version=0, replica="r", seconds=1, proven=0)
    await Publisher(await bus_as("inference")).once(loaded, org=org, key=id, id="0:r")
    trainer = await bus_as("trainer")
    await start_attempt(trainer, org, id, worker="w")
    await job_histories.append(gateway, org, id, JobPauseRequested())
    await job_histories.append(trainer, org, id, JobPaused(step=0))
    await job_histories.append(gateway, org, id, JobResumed())
    model = ReadModel(tmp_path / "m.db")
    model.prepare(stream="s", last_seq=10**9)
    needs: list[str | None] = []
    for event in await replay(gateway, [f"*.*.{org}.{id}"]):
        model.apply([event])
        needs += [missing_service(row) async for page in live_jobs(model) for row in page]
    assert needs == ["validator", "verifier", "inference", "trainer", None, None, None, "inference"]


async def test_a_job_that_is_taken_waits_no_more(start_gateway, client_of, bus_as):
    user = await client_of(await start_gateway(waiting_after_s=0.3))
    id = (await user.submit())["id"]
    await await_event(user, id, "queue.waiting")
    assert (await user.http.get(f"/api/jobs/{id}")).json()["waiting"]["need"] == "validator"
    trainer, fence = await job_histories.begin(bus_as, user.org, id, kind="sft")
    await job_histories.step(trainer, fence, 1)
    await await_event(user, id, "train.step")
    assert (await user.http.get(f"/api/jobs/{id}")).json()["waiting"] is None
