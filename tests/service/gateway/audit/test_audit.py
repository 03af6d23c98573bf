"""The audit stream: what is recorded of requests, what is not, and who reads it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable

import httpx
import pytest

from synth.bus.server.topology import AUDIT
from synth.keys import new_api_key
from tests.service.gateway.conftest import Client
from tests.service.gateway.environment_keys.people import bearing

ORGANISATION = ["read", "write", "inference", "keys"]


async def records_of(http: httpx.AsyncClient, **params: str | int) -> list[dict]:
    """All records that this key reads, oldest first."""
    records: list[dict] = []
    more = True
    while more:
        after = records[-1]["id"] if records else params.get("after", 0)
        reply = await http.get("/api/audit", params=params | {"after": after})
        assert reply.status_code == 200, reply.text
        page = reply.json()
        records += page["data"]
        more = page["has_more"]
    return records


async def until(http: httpx.AsyncClient, done: Callable[[list[dict]], bool], **params: str | int) -> list[dict]:
    """The records, once they are as expected: they are written in the background."""
    async with asyncio.timeout(20):
        while not done(records := await records_of(http, **params)):
            continue
    return records


async def organisation(operator: Client) -> tuple[str, str, str]:
    """A new organisation: its id, its first key and that one's id."""
    made = (await operator.http.post("/api/organisations", json={"name": "another"})).json()
    return made["id"], made["first_key"]["key"], made["first_key"]["id"]


async def test_changes_to_keys_and_refusals_are_recorded_and_ordinary_successes_are_not(user):
    org, key, id = await organisation(user)
    async with bearing(user, key) as http:
        reader = (await http.post("/api/keys", json={"scopes": ["read"]})).json()
        writer = (await http.post("/api/keys", json={"scopes": ["write"]})).json()
        rotated = (await http.post(f"/api/keys/{writer['id']}/rotate")).json()
        stored = (await http.post("/api/environment-keys", json={"key": "env_audit_0123456789"})).json()
        await http.delete(f"/api/environment-keys/{stored['id']}/chat")
        await http.delete(f"/api/environment-keys/{stored['id']}")
        await http.post("/api/judge-keys", json={"name": "mine", "key": "judge_secret", "url": "https://j.example"})
        await http.delete("/api/judge-keys/mine")
        async with bearing(user, reader["key"]) as reading:
            for path in ("/api/jobs", "/api/me", "/api/files"):
                assert (await reading.get(path)).status_code == 200
            assert (await reading.get("/api/keys")).status_code == 403
            assert (await reading.post("/api/environment-keys", json={"key": "env_other"})).status_code == 403
            assert (await reading.get("/api/audit")).status_code == 403
        await http.delete(f"/api/keys/{reader['id']}")
        async with bearing(user, reader["key"]) as ended:
            assert (await ended.get("/api/jobs")).status_code == 401
        records = await until(http, lambda records: len(records) >= 14)
    assert {record["org"] for record in records} == {org}
    assert {record["address"] for record in records} == {"127.0.0.1"}
    kinds = [(r["kind"], r["key"], r["action"], r["about"], r["status"]) for r in records]
    assert sorted(map(str, kinds)) == sorted(
        map(
            str,
            [
                ("operator", user_key_id(records), "POST /api/organisations", f"{org}/{id}", 201),
                ("change", id, "POST /api/keys", reader["id"], 201),
                ("change", id, "POST /api/keys", writer["id"], 201),
                ("change", id, "POST /api/keys/{key_id}/rotate", f"{writer['id']}/{rotated['id']}", 201),
                ("change", id, "POST /api/environment-keys", stored["id"], 201),
                ("change", id, "DELETE /api/environment-keys/{key_id}/chat", stored["id"], 200),
                ("change", id, "DELETE /api/environment-keys/{key_id}", stored["id"], 200),
                ("change", id, "POST /api/judge-keys", "mine", 201),
                ("change", id, "DELETE /api/judge-keys/{name}", "mine", 200),
                ("refusal", reader["id"], "GET /api/keys", None, 403),
                ("refusal", reader["id"], "POST /api/environment-keys", None, 403),
                ("refusal", reader["id"], "GET /api/audit", None, 403),
                ("change", id, "DELETE /api/keys/{key_id}", reader["id"], 200),
                ("login", reader["id"], "GET /api/jobs", None, 401),
            ],
        )
    )
    text = str(records)
    assert not any(secret in text for secret in (key, reader["key"], "env_audit", "judge_secret"))


def user_key_id(records: list[dict]) -> str:
    return next(record["key"] for record in records if record["kind"] == "operator")


async def test_an_operator_is_recorded_whatever_it_does_and_an_organisation_sees_its_own_records(user):
    org, key, _ = await organisation(user)
    made = (
        await user.http.post(f"/api/organisations/{org}/keys", json={"name": "lost", "scopes": ORGANISATION})
    ).json()
    for path in ("/api/organisations", "/api/dead-letters", "/api/jobs", "/api/jobs/job_none"):
        await user.http.get(path)
    mine = await until(
        user.http, lambda records: any("/api/jobs/{job_id}" in r["action"] for r in records), org=user.org
    )
    [missing] = [record for record in mine if record["action"] == "GET /api/jobs/{job_id}"]
    assert (missing["kind"], missing["about"], missing["status"]) == ("operator", "job_none", 404)
    async with bearing(user, key) as http:
        theirs = await until(http, lambda records: len(records) == 2)
        assert [(r["kind"], r["about"]) for r in theirs][1] == ("operator", f"{org}/{made['id']}")
        assert (await http.get("/api/audit", params={"org": user.org})).status_code == 403
        assert (await records_of(http, after=theirs[0]["id"]))[0] == theirs[1]
        assert await records_of(http, since="2999-01-01T00:00:00Z") == []
        assert (await records_of(http, since=theirs[0]["at"]))[:2] == theirs
        assert (await http.get("/api/audit", params={"limit": 1})).json()["has_more"] is True
    everything = await records_of(user.http)
    assert {org, user.org} <= {record["org"] for record in everything}


async def test_log_ins_with_unknown_keys_are_counted_and_never_fill_the_stream(start_gateway, client_of, bus_as):
    running = await start_gateway(audit_window_records=20)
    operator = await client_of(await start_gateway())
    last = (await (await bus_as("bus")).js.stream_info(AUDIT)).state.last_seq
    unknown = new_api_key()
    async with httpx.AsyncClient(base_url=running.service.url, timeout=20) as http:
        for n in range(120):
            bearer = unknown if n % 2 else f"sk-{n}"
            reply = await http.get("/api/jobs", headers={"Authorization": f"Bearer {bearer}"})
            assert reply.status_code == 401
        await http.get("/api/jobs")  # No key is no log-in.
        await http.post("/v1/chat/completions", json={}, headers={"X-API-Key": unknown})
        await http.post(f"/keys/{unknown}/v1/chat/completions", json={})
    # The end of the gateway is the end of the window.
    await running.stop()
    logins = [record for record in await records_of(operator.http, after=last) if record["kind"] == "login"]
    # Two keys of an address have a record of their own in a window, the others one together; repeats are counted.
    first, second, others, *repeats = logins
    assert [record["count"] for record in (first, second, others)] == [1, 1, 1]
    assert {record["key"]: record["count"] for record in repeats} == {second["key"]: 61, "*": 58}
    assert (first["action"], others["action"]) == ("GET /api/jobs", "*")
    assert (first["key"].startswith("unknown:"), others["key"]) == (True, "*")
    assert {(record["org"], record["address"], record["status"]) for record in logins} == {(None, "127.0.0.1", 401)}
    assert unknown not in str(logins)


async def synthctl(user: Client, *words: str) -> str:
    """What a command prints for this user."""
    root = str(user.http.base_url).rstrip("/")
    environment = {**os.environ, "BACKEND_BASE_URL": f"{root}/api", "SYNTH_API_KEY": user.key, "COLUMNS": "200"}
    command = [sys.executable, "-m", "synth.cli", *words]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe, env=environment)
    printed, errors = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, errors.decode()
    return printed.decode()


async def test_the_command_shows_the_newest_records_last(user):
    org, _, _ = await organisation(user)
    await until(user.http, lambda records: len(records) == 1, org=org)
    [record] = json.loads(await synthctl(user, "audit", "--org", org, "-o", "json"))
    assert (record["action"], record["status"]) == ("POST /api/organisations", 201)
    [newest] = json.loads(await synthctl(user, "audit", "--since", "999999999d", "--limit", "1", "-o", "json"))
    assert newest["id"] > record["id"]
    table = await synthctl(user, "audit", "--org", user.org)
    assert "GET /api/audit" in table


async def test_the_address_of_a_trusted_proxys_client_is_recorded_and_no_other_is_believed(start_gateway, client_of):
    for proxies, expected in (("127.0.0.0/8", ["203.0.113.7", "invalid"]), ("10.0.0.0/8", ["127.0.0.1"])):
        user = await client_of(await start_gateway(trusted_proxies=proxies))
        for address in ("203.0.113.7", "a name\tof nobody"):
            await user.http.get("/api/me", headers={"X-Forwarded-For": address})

        def are_known(records: list[dict], expected: list[str] = expected) -> bool:
            return {r["address"] for r in records if r["action"] == "GET /api/me"} == {*expected}

        await until(user.http, are_known, org=user.org)


async def test_only_the_gateway_writes_and_reads_the_stream_and_nobody_takes_from_it(bus_as):
    gateway = await bus_as("gateway")
    ack = await gateway.js.publish("audit._.login", b"{}", stream=AUDIT)
    for service in ("verifier", "inference", "judge", "trainer", "rollouts", "files", "validator"):
        bus = await bus_as(service)
        with pytest.raises(TimeoutError):
            await bus.js.publish("audit._.login", b"{}", timeout=0.3)
        with pytest.raises(TimeoutError):
            await bus.nc.request(f"{bus.nc.api}.STREAM.MSG.GET.{AUDIT}", b'{"seq":1}', timeout=0.3)
    for request in (f"STREAM.MSG.DELETE.{AUDIT}", f"STREAM.PURGE.{AUDIT}", f"STREAM.UPDATE.{AUDIT}"):
        with pytest.raises(TimeoutError):
            await gateway.nc.request(f"{gateway.nc.api}.{request}", b'{"seq":1}', timeout=0.3)
    admin = await bus_as("bus")
    await admin.js.delete_msg(AUDIT, ack.seq)
