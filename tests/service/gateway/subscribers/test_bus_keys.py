"""Bus keys: an integrator hears their own organisation's events on a real nats-server, and does nothing else there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field

import httpx
import pytest
from nats.aio.client import Client
from nats.errors import Error as NatsError

from examples.subscriber import follow
from synth.bus.server.topology import AUDIT
from synth.gateway.subscribers import feeds
from synth.keys import key_hash, new_bus_key

WITHIN_S = 15


@dataclass
class Listener:
    """A connection by a bus key, and what the server refused it."""

    nc: Client
    refused: list[str] = field(default_factory=list)


@pytest.fixture
async def listen(nats_server) -> AsyncIterator[Callable]:
    """Connects with this password."""
    opened: list[Listener] = []

    async def dial(password: str, user: str = "subscriber") -> Listener:
        listener = Listener(Client())

        async def on_error(error: Exception) -> None:
            listener.refused.append(str(error).lower())

        options = {"allow_reconnect": False, "error_cb": on_error}
        await listener.nc.connect(nats_server.url, user=user, password=password, **options)
        opened.append(listener)
        return listener

    yield dial
    for listener in opened:
        await listener.nc.close()


@pytest.fixture
async def running(start_gateway, issuer_seed):
    return await start_gateway(nats_issuer_seed=issuer_seed)


async def make_key(client, **body: object) -> dict:
    reply = await client.http.post("/api/keys", json={"bus": True} | body)
    assert reply.status_code == 201, reply.text
    return reply.json()


async def open_feed(running, key: str, **body: object) -> httpx.Response:
    async with httpx.AsyncClient(base_url=running.service.url, timeout=20) as http:
        return await http.post("/api/feeds", json=body, headers={"Authorization": f"Bearer {key}"})


async def test_a_subscriber_hears_its_own_organisation_once_each_across_sessions_and_restarts(
    start_gateway, issuer_seed, client_of, nats_server
):
    running = await start_gateway(nats_issuer_seed=issuer_seed, bus_session_s=2, bus_feeds=16)
    owner, other = await client_of(running), await client_of(running)
    key = (await make_key(owner))["key"]
    jobs = [(await client.submit())["id"] for client in (owner, other, owner)]
    heard = []

    async def sessions_that_expired() -> int:
        async with httpx.AsyncClient() as http:
            connections = (
                await http.get(f"http://127.0.0.1:{nats_server.http_port}/connz?state=closed&limit=100000")
            ).json()
        return sum(c["reason"] == "Authentication Expired" for c in connections["connections"])

    before = await sessions_that_expired()
    async with asyncio.timeout(60):
        async with aclosing(follow(nats_server.url, running.service.url, key, after=0)) as events:
            async for event in events:
                heard.append(event)
                if event.subject.endswith(jobs[2]):
                    break
            waiting = asyncio.create_task(anext(events))
            while await sessions_that_expired() == before:
                await asyncio.wait([waiting], timeout=0.1)
            jobs.append((await owner.submit())["id"])
            heard.append(await waiting)
        jobs.append((await owner.submit())["id"])
        async with aclosing(follow(nats_server.url, running.service.url, key, after=heard[-1].seq)) as events:
            heard.append(await anext(events))
    created = [f"job.created.{owner.org}.{job}" for job in (jobs[0], *jobs[2:])]
    assert [event.subject for event in heard] == created


async def test_whatever_else_it_asks_of_the_bus_is_denied(running, client_of, listen, bus_admin):
    owner, other = await client_of(running), await client_of(running)
    key, foreign = await make_key(owner), await make_key(other)
    job = (await owner.submit())["id"]
    queue = "EVENTS.validator-job-created"
    listener = await listen(key["key"])
    subjects = [
        ">",
        "*.*.>",
        f"*.*.{owner.org}.>",
        f"job.created.{other.org}.>",
        f"outside.{other.org}.{foreign['id']}.>",
        f"outside.{owner.org}.>",
        "outside.>",
        "work.>",
        "dead.>",
        "$KV.api_keys.>",
        "$JS.>",
        "$SYS.>",
        "_INBOX.>",
        "_INBOX.gateway.>",
        "ask.verify",
    ]
    for subject in subjects:
        await listener.nc.subscribe(subject)
    published = [
        f"job.cancel_requested.{owner.org}.{job}",
        f"work.train.default.{owner.org}.{job}.0",
        f"outside.{owner.org}.{key['id']}.x",
        f"$JS.API.CONSUMER.MSG.NEXT.{queue}",
        f"$JS.ACK.{queue}.1.1.1.1.0",
        "$JS.API.CONSUMER.CREATE.EVENTS.mine",
        "$JS.API.DIRECT.GET.EVENTS",
        "$JS.API.STREAM.MSG.GET.KV_api_keys",
        "$JS.API.STREAM.CREATE.MINE",
        "$JS.API.STREAM.NAMES",
        "$KV.api_keys.api.forged",
        "$KV.replicas.forged",
        "$SYS.REQ.USER.AUTH",
        "$SYS.REQ.USER.INFO",
        "_INBOX.gateway.x",
        "dead.gateway.x",
        "ask.verify",
    ]
    before = (await bus_admin.js.stream_info("EVENTS")).state.last_seq
    for subject in published:
        await listener.nc.publish(subject, b"{}", reply=f"job.created.{other.org}.forged")
    denied = [f'for subscription to "{s.lower()}"' for s in subjects] + [f'publish to "{s.lower()}"' for s in published]

    def let_pass() -> list[str]:
        return [line for line in denied if not any(line in text for text in listener.refused)]

    # On a busy machine a flush returns before the last refusals have come.
    with suppress(TimeoutError):
        async with asyncio.timeout(WITHIN_S):
            while let_pass():
                await listener.nc.flush(timeout=WITHIN_S)
    assert let_pass() == []
    assert (await bus_admin.js.stream_info("EVENTS")).state.last_seq == before


async def test_a_revoked_key_hears_nothing_more_and_comes_in_no_more(running, client_of, listen):
    owner = await client_of(running)
    key, kept = await make_key(owner), await make_key(owner)
    listeners = []
    for each in (key, kept):
        feed = (await open_feed(running, each["key"])).json()
        listener = await listen(each["key"])
        listeners.append(await listener.nc.subscribe(feed["subject"]))
    ended, live = listeners

    async def next_event(subscription):
        async with asyncio.timeout(WITHIN_S):
            while (msg := await subscription.next_msg(timeout=WITHIN_S)).headers:
                if not msg.headers.get("Status"):
                    break
        return msg.subject

    first = (await owner.submit())["id"]
    assert [await next_event(s) for s in (ended, live)] == [f"job.created.{owner.org}.{first}"] * 2
    reply = await owner.http.delete(f"/api/keys/{key['id']}")
    assert (reply.status_code, reply.json()["state"], reply.json()["bus"]) == (200, "revoked", True)
    second = (await owner.submit())["id"]
    assert await next_event(live) == f"job.created.{owner.org}.{second}"
    while ended.pending_msgs:
        # It may still hear that its feed lives.
        assert (await ended.next_msg()).headers["Status"] == "100"
    assert (await open_feed(running, key["key"])).status_code == 401
    with pytest.raises(NatsError, match="Authorization Violation"):
        await listen(key["key"])


async def test_a_key_has_so_many_feeds_and_connections_and_an_organisation_so_many_keys(
    start_gateway, issuer_seed, client_of, listen
):
    running = await start_gateway(nats_issuer_seed=issuer_seed, bus_feeds=1, bus_logins=2, org_bus_keys=1)
    owner = await client_of(running)
    key = (await make_key(owner))["key"]
    assert (await open_feed(running, key, after=0)).status_code == 201
    refused = await open_feed(running, key, after=0)
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "10")
    assert "SYNTH_BUS_FEEDS" in refused.json()["detail"]
    for _ in range(2):
        await listen(key)
    with pytest.raises(NatsError, match="Authorization Violation"):
        await listen(key)
    second = await owner.http.post("/api/keys", json={"bus": True})
    assert (second.status_code, "SYNTH_ORG_BUS_KEYS" in second.json()["detail"]) == (429, True)


async def test_a_bus_key_opens_no_route_and_no_other_key_opens_the_bus(running, client_of, listen, bus_admin):
    owner = await client_of(running)
    last = (await bus_admin.js.stream_info(AUDIT)).state.last_seq
    key = await make_key(owner)
    async with httpx.AsyncClient(base_url=running.service.url, headers={"Authorization": f"Bearer {key['key']}"}) as it:
        for method, path in (("GET", "/api/jobs"), ("GET", "/api/me"), ("POST", "/v1/chat/completions")):
            reply = await it.request(method, path, json={})
            assert (reply.status_code, "bus key" in reply.json()["detail"]) == (401, True), path
    assert (await open_feed(running, owner.key)).status_code == 401
    ahead = await open_feed(running, key["key"], after=10**12)
    assert (ahead.status_code, "the log ends at" in ahead.json()["detail"]) == (409, True)
    passwords = [("subscriber", password) for password in (owner.key, new_bus_key(), key["key"][:-1], "")]
    for user, password in [*passwords, ("gateway", key["key"]), ("bus", key["key"])]:
        with pytest.raises(NatsError, match="Authorization Violation"):
            await listen(password, user)
    everything: list[dict] = []
    records: list[dict] = []
    async with asyncio.timeout(10):
        # Of the passwords that may be keys: nothing is looked up for an empty one.
        while len(records) < 3:
            everything = (await owner.http.get("/api/audit", params={"after": last, "limit": 200})).json()["data"]
            records = [record for record in everything if record["action"] == "bus login"]
    assert {(r["kind"], r["org"], r["address"], r["status"]) for r in records} == {("login", None, "127.0.0.1", 401)}
    assert len({record["key"] for record in records}) == 3
    [refused] = [r for r in everything if r["kind"] == "login" and r["action"] == "GET /api/jobs"]
    assert (refused["org"], refused["key"]) == (owner.org, key["id"])


async def test_who_may_make_one(start_gateway, running, client_of):
    owner = await client_of(running)
    blind = (await owner.http.post("/api/keys", json={"scopes": ["keys", "write"]})).json()["key"]
    refused = await owner.http.post("/api/keys", json={"bus": True}, headers={"Authorization": f"Bearer {blind}"})
    assert (refused.status_code, "lacks the scope read" in refused.json()["detail"]) == (403, True)
    wide = await owner.http.post("/api/keys", json={"bus": True, "scopes": ["write"]})
    assert (wide.status_code, wide.json()["error"]["param"]) == (422, "bus")
    closed = await client_of(await start_gateway())
    reply = await closed.http.post("/api/keys", json={"bus": True})
    assert (reply.status_code, "SYNTH_NATS_ISSUER_SEED" in reply.json()["detail"]) == (422, True)
    key = await make_key(owner, name="ci", expires_in_s=60)
    [listed] = [k for k in (await owner.http.get("/api/keys")).json()["data"] if k["bus"]]
    assert (listed["id"], listed["name"], listed["scopes"]) == (key["id"], "ci", ["read"])
    new = (await owner.http.post(f"/api/keys/{key['id']}/rotate")).json()
    assert (new["bus"], new["expires_at"]) == (True, key["expires_at"])


async def rotate(client, key: dict, **body: object) -> httpx.Response:
    return await client.http.post(f"/api/keys/{key['id']}/rotate", json=body)


async def test_rotations_with_a_grace_count_as_keys_and_a_key_has_one_successor(start_gateway, issuer_seed, client_of):
    running = await start_gateway(nats_issuer_seed=issuer_seed, org_bus_keys=2, org_keys=4)
    owner = await client_of(running)
    key = await make_key(owner)
    second = await rotate(owner, key, grace_s=3600)
    assert second.status_code == 201
    again = await rotate(owner, key, grace_s=3600)
    assert (again.status_code, f"replaced by {second.json()['id']}" in again.json()["detail"]) == (409, True)
    full = await rotate(owner, second.json(), grace_s=3600)
    assert (full.status_code, "SYNTH_ORG_BUS_KEYS" in full.json()["detail"]) == (429, True)
    # Without a grace there is one key as before.
    assert (await rotate(owner, second.json())).status_code == 201
    other = (await owner.http.post("/api/keys", json={})).json()
    full = await rotate(owner, other, grace_s=3600)
    assert (full.status_code, "SYNTH_ORG_KEYS" in full.json()["detail"]) == (429, True)


async def test_two_rotations_at_once_leave_one_successor(running, client_of):
    owner = await client_of(running)
    key = await make_key(owner)
    replies = await asyncio.gather(*(rotate(owner, key, grace_s=3600) for _ in range(5)))
    assert sorted(reply.status_code for reply in replies) == [201, 409, 409, 409, 409]
    keys = (await owner.http.get("/api/keys")).json()["data"]
    assert sum(each["bus"] and each["state"] == "live" for each in keys) == 2


async def test_no_feed_is_opened_where_services_would_lack_consumers(start_gateway, issuer_seed, client_of):
    running = await start_gateway(nats_issuer_seed=issuer_seed, bus_feeds_share=0.0001)
    refused = await open_feed(running, (await make_key(await client_of(running)))["key"])
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "10")
    assert "SYNTH_BUS_FEEDS_SHARE" in refused.json()["detail"]


async def ended(bus_admin, owner, key: dict, slot: int = 0) -> bool:
    info = await bus_admin.js.consumer_info("EVENTS", f"outside-{key_hash(key['key'])}-{slot}")
    return info.config.filter_subject == "*.*.ended.>"


async def test_feeds_end_when_the_end_of_their_key_comes(start_gateway, issuer_seed, client_of, listen, bus_admin):
    running = await start_gateway(nats_issuer_seed=issuer_seed, bus_end_check_s=0.05, bus_feed_idle_s=60)
    owner = await client_of(running)
    rotated, short = await make_key(owner), await make_key(owner, expires_in_s=5)
    for key in (rotated, short):
        assert (await open_feed(running, key["key"])).status_code == 201
        assert not await ended(bus_admin, owner, key)
    assert (await rotate(owner, rotated, grace_s=1)).status_code == 201
    async with asyncio.timeout(WITHIN_S):
        for key in (rotated, short):
            while not await ended(bus_admin, owner, key):
                await bus_admin.nc.flush()


async def test_a_feed_that_is_made_during_a_revocation_hears_nothing(running, client_of, bus_admin, monkeypatch):
    owner = await client_of(running)
    key = await make_key(owner)
    make = feeds.open_feed

    async def revoke_first(*args, **options):
        assert (await owner.http.delete(f"/api/keys/{key['id']}")).status_code == 200
        return await make(*args, **options)

    monkeypatch.setattr("synth.gateway.api.native.events.open_feed", revoke_first)
    assert (await open_feed(running, key["key"])).status_code == 401
    assert await ended(bus_admin, owner, key)


async def test_a_revocation_ends_feeds_of_slots_above_a_lowered_setting(
    start_gateway, issuer_seed, client_of, bus_admin
):
    running = await start_gateway(nats_issuer_seed=issuer_seed, bus_feeds=3, bus_feed_idle_s=60)
    owner = await client_of(running)
    key = await make_key(owner)
    for _ in range(3):
        assert (await open_feed(running, key["key"])).status_code == 201
    running.service.settings.bus_feeds = 1
    assert (await owner.http.delete(f"/api/keys/{key['id']}")).status_code == 200
    assert [await ended(bus_admin, owner, key, slot) for slot in range(3)] == [True] * 3


async def test_a_feed_that_the_server_removes_meanwhile_is_no_error(running, client_of, bus_admin, monkeypatch):
    owner = await client_of(running)
    key = await make_key(owner)
    assert (await open_feed(running, key["key"])).status_code == 201
    write = feeds._write

    async def remove_first(bus, action, config):
        await bus_admin.js.delete_consumer("EVENTS", config["name"])
        return await write(bus, action, config)

    monkeypatch.setattr(feeds, "_write", remove_first)
    assert (await owner.http.delete(f"/api/keys/{key['id']}")).status_code == 200
