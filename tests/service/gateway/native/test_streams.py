"""Event streams: each event once, in order, whatever happens to the client."""

from __future__ import annotations

import asyncio
import json
import random

import pytest

from synth.gateway.read_model import hub
from tests.service.gateway import job_histories

SSE = {"Accept": "text/event-stream"}


async def read_events(user, path: str, *, after: int | None = None, at_most: int | None = None) -> list[dict]:
    """The events of a stream until its end, or the first `at_most` and then hang up."""
    headers = SSE if after is None else SSE | {"Last-Event-ID": str(after)}
    seen: list[dict] = []
    async with asyncio.timeout(30), user.http.stream("GET", path, headers=headers) as stream:
        assert stream.status_code == 200
        event = ""
        async for line in stream.aiter_lines():
            if line.startswith("event: "):
                event = line.removeprefix("event: ")
            elif line.startswith("data: ") and event == "end":
                return seen
            elif line.startswith("data: "):
                seen.append(json.loads(line.removeprefix("data: ")))
                assert seen[-1]["type"] == event
                if at_most and len(seen) >= at_most:
                    return seen
    return seen


async def finished_job(user, bus_as, *, steps: int = 5) -> str:
    id = (await user.submit())["id"]
    trainer, fence = await job_histories.begin(bus_as, user.org, id)
    for k in range(1, steps + 1):
        await job_histories.step(trainer, fence, k, of=steps)
    await job_histories.succeed(trainer, fence, steps=steps)
    return id


async def test_a_finished_job_streams_its_history_and_ends(user, bus_as):
    id = await finished_job(user, bus_as)
    events = await read_events(user, f"/api/jobs/{id}/events")
    types = [e["type"] for e in events]
    assert types[0] == "job.created"
    assert types[-1] == "job.succeeded"
    assert types.count("train.step") == 5
    page = (await user.http.get(f"/api/jobs/{id}/events")).json()
    assert page["events"] == events
    assert page["last_seq"] == events[-1]["seq"]
    assert events[-2]["data"] == {"step": 5, "of": 5, "attempt": 1, "values": {"loss": 0.2}}


async def test_a_cursor_at_the_end_gets_no_stream(user, bus_as):
    id = await finished_job(user, bus_as)
    last = (await read_events(user, f"/api/jobs/{id}/events"))[-1]["seq"]
    for seq in (last, last + 1000):
        reply = await user.http.get(f"/api/jobs/{id}/events", headers=SSE | {"Last-Event-ID": str(seq)})
        assert reply.status_code == 204
    assert len(await read_events(user, f"/api/jobs/{id}/events", after=last - 1)) == 1
    wrong = await user.http.get(f"/api/jobs/{id}/events", headers=SSE | {"Last-Event-ID": "x"})
    assert wrong.status_code == 400


async def test_pages_follow_each_other(user, bus_as):
    id = await finished_job(user, bus_as, steps=20)
    seqs: list[int] = []
    after, more = 0, True
    while more:
        page = (await user.http.get(f"/api/jobs/{id}/events", params={"after": after, "limit": 7})).json()
        seqs += [e["seq"] for e in page["events"]]
        after, more = page["last_seq"], page["more"]
    assert len(seqs) == 25
    assert seqs == sorted(set(seqs))


async def test_a_watcher_cut_off_twenty_times_sees_each_event_once_in_order(user, bus_as):
    id = (await user.submit())["id"]
    rng, steps = random.Random(0), 200

    async def live() -> None:
        trainer, fence = await job_histories.begin(bus_as, user.org, id)
        for k in range(1, steps + 1):
            await job_histories.step(trainer, fence, k, of=steps)
        await job_histories.succeed(trainer, fence, steps=steps)

    living = asyncio.create_task(live())
    seen: list[dict] = []
    for _ in range(20):
        after = seen[-1]["seq"] if seen else None
        seen += await read_events(user, f"/api/jobs/{id}/events", after=after, at_most=rng.randint(1, 9))
    seen += await read_events(user, f"/api/jobs/{id}/events", after=seen[-1]["seq"])
    await living
    seqs = [e["seq"] for e in seen]
    assert seqs == sorted(set(seqs))
    assert [e["data"]["step"] for e in seen if e["type"] == "train.step"] == list(range(1, steps + 1))
    assert seen[-1]["type"] == "job.succeeded"


async def test_many_watchers_see_the_same(user, bus_as):
    id = (await user.submit())["id"]
    subscribers = [asyncio.create_task(read_events(user, f"/api/jobs/{id}/events")) for _ in range(50)]
    trainer, fence = await job_histories.begin(bus_as, user.org, id)
    for k in range(1, 31):
        await job_histories.step(trainer, fence, k, of=30)
    await job_histories.succeed(trainer, fence, steps=30)
    first, *others = await asyncio.gather(*subscribers)
    assert len(first) == 35
    assert all(other == first for other in others)


async def test_an_organisation_is_streamed_from_now_on_and_from_a_cursor(start_gateway, client_of, bus_as):
    running = await start_gateway()
    user, other = await client_of(running), await client_of(running)
    first = (await user.submit())["id"]
    opened, seen = asyncio.Event(), asyncio.Queue()

    async def watch() -> None:
        async with user.http.stream("GET", "/api/events", headers=SSE) as stream:
            async for line in stream.aiter_lines():
                opened.set()
                if line.startswith("data: "):
                    seen.put_nowait(json.loads(line.removeprefix("data: ")))

    watching = asyncio.create_task(watch())
    await asyncio.wait_for(opened.wait(), 10)
    await other.submit()
    second = (await user.submit())["id"]
    assert (await asyncio.wait_for(seen.get(), 10))["job_id"] == second
    watching.cancel()
    everything = await read_events(user, "/api/events?after=0", at_most=2)
    assert [e["job_id"] for e in everything] == [first, second]


@pytest.mark.parametrize("path", ["/api/jobs/{id}/events", "/api/events"])
async def test_open_streams_do_not_hold_up_the_end(start_gateway, client_of, path):
    running = await start_gateway()
    user = await client_of(running)
    id = (await user.submit())["id"]
    opened = asyncio.Event()

    async def watch() -> None:
        async with user.http.stream("GET", path.format(id=id), headers=SSE) as stream:
            async for _ in stream.aiter_lines():
                opened.set()

    subscribers = [asyncio.create_task(watch()) for _ in range(20)]
    await asyncio.wait_for(opened.wait(), 10)
    await asyncio.wait_for(running.stop(), 5)
    await asyncio.wait(subscribers, timeout=5)


def stream_reads(text: str) -> float:
    """The reads of the log for event streams that a gateway has counted."""
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith("synth_gateway_stream_reads_t"))


async def test_watchers_that_connect_at_once_share_the_reads_of_a_jobs_past(user, bus_as):
    id = await finished_job(user, bus_as, steps=50)
    alone = await read_events(user, f"/api/jobs/{id}/events")
    before = stream_reads((await user.http.get("/metrics")).text)
    many = await asyncio.gather(*(read_events(user, f"/api/jobs/{id}/events") for _ in range(40)))
    assert many == [alone] * 40
    # Watchers that come after the last of the others has left begin with a read of their own.
    assert stream_reads((await user.http.get("/metrics")).text) - before < 10


async def test_a_stream_is_refused_while_too_many_wait_for_the_log(start_gateway, client_of, monkeypatch):
    running = await start_gateway(stream_reads_waiting=3)
    user = await client_of(running)
    jobs = [(await user.submit())["id"] for _ in range(25)]
    go_on, read_page = asyncio.Event(), hub.read_page

    async def read_later(*args, **kwargs):
        await go_on.wait()
        return await read_page(*args, **kwargs)

    monkeypatch.setattr(hub, "read_page", read_later)

    async def first_event(job: str) -> int:
        async with user.http.stream("GET", f"/api/jobs/{job}/events", headers=SSE) as stream:
            if stream.status_code == 503:
                assert 2 <= int(stream.headers["Retry-After"]) <= 10
                assert b"SYNTH_STREAM_READS_WAITING" in await stream.aread()
            else:
                async for line in stream.aiter_lines():
                    if line.startswith("id: "):
                        break
            return stream.status_code

    async with asyncio.timeout(60):
        streams = [asyncio.create_task(first_event(job)) for job in jobs]
        refused, _ = await asyncio.wait(streams, return_when=asyncio.FIRST_COMPLETED)
        assert {task.result() for task in refused} == {503}
        go_on.set()
        statuses = await asyncio.gather(*streams)
    # As many as read at one time are answered, and the three that wait.
    assert statuses.count(200) >= 16 + 3
    assert statuses.count(200) + statuses.count(503) == len(jobs)
