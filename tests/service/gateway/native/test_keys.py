"""Organisations and their API keys: what each opens, and when it ceases to."""

from __future__ import annotations

import asyncio
import re
from datetime import datetime

import httpx
import pytest
from fastapi.routing import iter_route_contexts

from synth.bus.replay import replay_messages
from synth.gateway.app import describe_api
from synth.gateway.auth import FEEDS_PATH, HANDSHAKE_PATH, required_scopes
from synth.keys import mistyped, new_api_key

OPEN_TO_THE_WORLD = {
    "/openapi.json",
    *("/api/health", "/api/v1/health", "/api/api/health"),
    *(HANDSHAKE_PATH, f"{HANDSHAKE_PATH}/init", f"{HANDSHAKE_PATH}/token"),
}


def at(running, key: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=running.service.url, headers={"Authorization": f"Bearer {key}"}, timeout=20)


async def test_a_mistyped_key_is_told_from_an_unknown_one_without_asking_anybody(start_gateway):
    running = await start_gateway()
    key = new_api_key()
    wrong = key[:-1] + ("A" if key[-1] != "A" else "B")
    for sent, said in ((wrong, "mistyped"), (key[:-3], "mistyped"), (key, "not known"), ("sk_other", "not known")):
        async with at(running, sent) as http:
            reply = await http.get("/api/me")
        assert reply.status_code == 401
        assert said in reply.json()["detail"]
    assert not mistyped(key)
    assert not mistyped("sk_local_x")


async def test_every_route_needs_a_key_with_some_scope(start_gateway, client_of):
    running = await start_gateway()
    user = await client_of(running)
    made = (await user.http.post("/api/keys", json={"name": "none", "scopes": ["keys"]})).json()
    asked = 0
    async with at(running, made["key"]) as narrow, httpx.AsyncClient(base_url=running.service.url) as nobody:
        for route in iter_route_contexts(describe_api().routes):
            assert route.path is not None
            if route.path in OPEN_TO_THE_WORLD or route.path.startswith(("/api/keys", "/api/audit")):
                continue
            path = re.sub(r"\{.*?\}", "x", route.path)
            for method in sorted(route.methods or ()):
                if method == "GET" and path.endswith("/responses"):
                    continue  # refused with or without a key: it is no WebSocket
                asked += 1
                assert (await nobody.request(method, path)).status_code == 401, (method, path)
                reply = await narrow.request(method, path)
                if path.startswith(("/rollouts/", "/keys/")):
                    # The credential in the path says what it opens; a key beside it opens nothing.
                    assert reply.status_code == 401, (method, path)
                    continue
                if path == FEEDS_PATH:
                    # For bus keys alone, whatever scopes another key has.
                    assert (reply.status_code, "is no bus key" in reply.text) == (401, True), reply.text
                    continue
                assert reply.status_code == 403, (method, path, reply.text)
                if method != "HEAD":
                    assert f"lacks the scope {', '.join(required_scopes(method, path))}" in reply.json()["detail"]
        for method, path in (("GET", "/api/%6Aobs"), ("POST", "/api/%66iles")):
            assert (await narrow.request(method, path)).status_code in (403, 404), path
    assert asked > 30


@pytest.mark.parametrize(
    ("scopes", "allowed"),
    [
        (["read"], {"GET /api/jobs"}),
        (["write"], {"POST /api/jobs", "POST /api/environment-keys"}),
        (["inference"], {"POST /v1/chat/completions"}),
        (["keys"], {"GET /api/keys", "GET /api/%6Beys"}),
        (["operator"], {"GET /api/organisations"}),
        (["read", "write"], {"GET /api/jobs", "POST /api/jobs", "POST /api/environment-keys"}),
        (
            ["write", "inference"],
            {
                "POST /api/jobs",
                "POST /v1/chat/completions",
                "POST /api/environment-keys",
                "POST /api/judge/v1/score",
            },
        ),
    ],
)
async def test_a_key_may_do_what_its_scopes_say_and_no_more(user, scopes, allowed):
    made = (await user.http.post("/api/keys", json={"scopes": scopes})).json()
    headers = {"Authorization": f"Bearer {made['key']}"}
    paths = ("GET /api/jobs", "GET /api/keys", "GET /api/%6Beys", "GET /api/organisations")
    posts = ("POST /api/jobs", "POST /v1/chat/completions", "POST /api/environment-keys", "POST /api/judge/v1/score")
    for asked in (*paths, *posts):
        method, path = asked.split()
        body = {"config": "", "model": "nope"} if method == "POST" else None
        reply = await user.http.request(method, path, headers=headers, json=body)
        assert (reply.status_code != 403) == (asked in allowed), (asked, reply.text)


async def test_a_key_cannot_make_or_change_one_that_can_do_more(user):
    narrow = (await user.http.post("/api/keys", json={"scopes": ["keys", "read"]})).json()
    wide = (await user.http.post("/api/keys", json={"scopes": ["write"]})).json()
    headers = {"Authorization": f"Bearer {narrow['key']}"}
    for method, path, body in (
        ("POST", "/api/keys", {"scopes": ["read", "operator"]}),
        ("POST", f"/api/keys/{wide['id']}/rotate", {}),
        ("DELETE", f"/api/keys/{wide['id']}", None),
    ):
        reply = await user.http.request(method, path, json=body, headers=headers)
        assert reply.status_code == 403, path
    assert (await user.http.get("/api/jobs", headers={"Authorization": f"Bearer {wide['key']}"})).status_code == 403
    assert (await user.http.post("/api/keys", json={"scopes": ["read"]}, headers=headers)).status_code == 201


async def test_a_key_is_shown_once_and_its_hash_is_all_that_is_kept(user, bus_as):
    made = (await user.http.post("/api/keys", json={"name": "ci", "scopes": ["write", "read"]})).json()
    assert made["key"].startswith("synth_live_")
    assert (made["name"], made["state"], made["scopes"]) == ("ci", "live", ["read", "write"])
    me = (await user.http.get("/api/me", headers={"Authorization": f"Bearer {made['key']}"})).json()
    assert (me["org"], me["key_id"], me["key_name"], me["scopes"]) == (user.org, made["id"], "ci", ["read", "write"])
    listed = await user.http.get("/api/keys")
    assert [key["id"] for key in listed.json()["data"]][1:] == [made["id"]]
    assert made["key"] not in listed.text
    kept = await replay_messages((await bus_as("gateway")).nc, ["$KV.api_keys.>"], stream="KV_api_keys")
    assert all(made["key"].encode() not in message.data for message in kept)


async def test_a_revoked_key_ceases_to_open_on_every_gateway(start_gateway, client_of):
    here, there = await start_gateway(), await start_gateway()
    user = await client_of(here)
    made = (await user.http.post("/api/keys", json={})).json()
    async with at(here, made["key"]) as first, at(there, made["key"]) as second:
        for http in (first, second):
            assert (await http.get("/api/jobs")).status_code == 200
        reply = await user.http.delete(f"/api/keys/{made['id']}")
        assert reply.json()["state"] == "revoked"
        assert (await user.http.delete(f"/api/keys/{made['id']}")).json() == reply.json()
        refused = await first.get("/api/jobs")
        assert refused.status_code == 401
        assert "was revoked at" in refused.json()["detail"]
        async with asyncio.timeout(5):
            while (await second.get("/api/jobs")).status_code != 401:
                pass
    conflict = await user.http.post(f"/api/keys/{made['id']}/rotate")
    assert conflict.status_code == 409


async def test_a_stream_breaks_off_when_its_key_is_revoked(start_gateway, client_of):
    running = await start_gateway()
    user = await client_of(running)
    made = (await user.http.post("/api/keys", json={})).json()
    job = (await user.submit())["id"]
    async with at(running, made["key"]) as http, http.stream("GET", "/api/events", params={"after": 0}) as events:
        lines = events.aiter_lines()
        while job not in await anext(lines):
            pass
        await user.http.delete(f"/api/keys/{made['id']}")
        later = (await user.submit())["id"]
        async with asyncio.timeout(10):
            rest = [line async for line in lines]
    assert all(later not in line for line in rest)


async def test_a_rotated_key_opens_for_the_grace_that_was_asked_for(start_gateway, client_of):
    running = await start_gateway()
    user = await client_of(running)
    for grace, after in ((0, 401), (3600, 200)):
        old = (
            await user.http.post("/api/keys", json={"name": "ci", "scopes": ["read"], "expires_in_s": 86_400})
        ).json()
        async with at(running, old["key"]) as http:
            assert (await http.get("/api/jobs")).status_code == 200
            new = (await user.http.post(f"/api/keys/{old['id']}/rotate", json={"grace_s": grace})).json()
            assert (await http.get("/api/jobs")).status_code == after
        async with at(running, new["key"]) as http:
            assert (await http.get("/api/jobs")).status_code == 200
        assert [new[k] for k in ("name", "scopes", "expires_at")] == [old[k] for k in ("name", "scopes", "expires_at")]
        shown = {key["id"]: key for key in (await user.http.get("/api/keys")).json()["data"]}[old["id"]]
        assert shown["state"] == ("live" if grace else "revoked")
        if grace:
            assert datetime.fromisoformat(shown["expires_at"]) < datetime.fromisoformat(old["expires_at"])


async def test_an_expired_key_says_when_it_expired(start_gateway, client_of, bus_as):
    running = await start_gateway()
    user = await client_of(running)
    made = (await user.http.post("/api/keys", json={"expires_in_s": 1})).json()
    async with at(running, made["key"]) as http, asyncio.timeout(10):
        while (reply := await http.get("/api/jobs")).status_code == 200:
            pass
    assert reply.status_code == 401
    assert "expired at" in reply.json()["detail"]
    assert {k["state"] for k in (await user.http.get("/api/keys")).json()["data"]} == {"live", "expired"}


async def test_a_key_that_ends_leaves_none_behind_that_ends_later(start_gateway, client_of):
    running = await start_gateway()
    user = await client_of(running)
    forever = (await user.http.post("/api/keys", json={})).json()
    brief = (await user.http.post("/api/keys", json={"scopes": ["inference", "keys"], "expires_in_s": 600})).json()
    async with at(running, brief["key"]) as http:
        for body in ({"scopes": ["inference"]}, {"url": True}):
            made = (await http.post("/api/keys", json=body)).json()
            assert made["expires_at"] == brief["expires_at"], body
            soon = (await http.post("/api/keys", json=body | {"expires_in_s": 60})).json()
            assert soon["expires_at"] < brief["expires_at"]
            refused = await http.post("/api/keys", json=body | {"expires_in_s": 3600})
            assert (refused.status_code, refused.json()["error"]["problems"][0]["where"]) == (422, "body.expires_in_s")
        other = (await user.http.post("/api/keys", json={"scopes": ["keys"]})).json()
        refused = await http.post(f"/api/keys/{other['id']}/rotate")
        assert (refused.status_code, "lives longer" in refused.text) == (403, True)
        # Of scopes that it lacks, it is told so first; itself it may rotate, to its own end.
        assert (await http.post(f"/api/keys/{forever['id']}/rotate")).status_code == 403
        again = (await http.post(f"/api/keys/{brief['id']}/rotate")).json()
        assert again["expires_at"] == brief["expires_at"]


async def test_an_operator_makes_organisations_and_their_keys(start_gateway, client_of):
    running = await start_gateway()
    operator = await client_of(running)
    reply = await operator.http.post("/api/organisations", json={"name": "Acme & co"})
    assert reply.status_code == 201
    made = reply.json()
    async with at(running, made["first_key"]["key"]) as acme:
        me = (await acme.get("/api/me")).json()
        assert (me["org"], me["org_name"]) == (made["id"], "Acme & co")
        assert me["scopes"] == ["read", "write", "inference", "keys"]
        assert (await acme.get("/api/organisations")).status_code == 403
        # Without a key of its own it is the operator who lets it in again.
        assert (await acme.delete(f"/api/keys/{made['first_key']['id']}")).status_code == 200
        assert (await acme.get("/api/me")).status_code == 401
    again = await operator.http.post(f"/api/organisations/{made['id']}/keys", json={"scopes": ["keys"]})
    async with at(running, again.json()["key"]) as acme:
        assert len((await acme.get("/api/keys")).json()["data"]) == 2
    listed = (await operator.http.get("/api/organisations")).json()["data"]
    assert {"Acme & co", "default"} <= {o["name"] for o in listed}
    assert (await operator.http.post("/api/organisations/org_nope/keys", json={})).status_code == 404


async def test_a_removed_environment_key_is_gone_and_can_come_again(user):
    ids = [
        (await user.http.post("/api/environment-keys", json={"key": key})).json()["id"] for key in ("env_a", "env_b")
    ]
    assert (await user.http.delete(f"/api/environment-keys/{ids[0]}")).json() == {"id": ids[0], "deleted": True}
    assert (await user.http.delete(f"/api/environment-keys/{ids[0]}")).status_code == 404
    assert [k["id"] for k in (await user.http.get("/api/environment-keys")).json()["data"]] == [ids[1]]
    await user.http.post("/api/environment-keys", json={"key": "env_a"})
    assert len((await user.http.get("/api/environment-keys")).json()["data"]) == 2


async def test_what_cannot_be_a_key_is_refused_with_the_field(user):
    for body, where in (
        ({"scopes": ["admin"]}, "body.scopes.0"),
        ({"scopes": []}, "body.scopes"),
        ({"name": ""}, "body.name"),
        ({"name": "a\nb"}, "body.name"),
        ({"expires_in_s": 0}, "body.expires_in_s"),
        ({"expires_in_s": 10**12}, "body.expires_in_s"),
        ({"extra": 1}, "body.extra"),
    ):
        reply = await user.http.post("/api/keys", json=body)
        assert reply.status_code == 422, body
        assert reply.json()["error"]["problems"][0]["where"] == where
