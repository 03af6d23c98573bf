"""Chat by environment key: a credential of its own, which somebody who may chat has made, and which ends."""

from __future__ import annotations

import asyncio
import hashlib
import secrets

import pytest

from tests.service.gateway.environment_keys.people import CHAT, at, bearing, chats, key_with

RL = {"job_type": "rl", "data": {"model": "tiny", "endpoint_base_url": "http://127.0.0.1:9", "config": {}}}


@pytest.fixture
def secret() -> str:
    """An environment key of this test's organisation alone."""
    return f"env_{secrets.token_hex(8)}"


async def test_a_key_that_may_only_write_makes_none_that_chats(user, secret):
    writer = await key_with(user, "write")
    async with bearing(user, writer["key"]) as http:
        body = RL | {"data": RL["data"] | {"environment_api_key": f"{secret}_of_a_job"}}
        assert (await http.post("/api/rl/jobs", json=body)).status_code == 201
        await http.post("/api/environment-keys", json={"key": f"{secret}_stored"})
    for key in (f"{secret}_of_a_job", f"{secret}_stored", writer["key"]):
        assert set(await chats(user, key)) <= {401, 403}, key


async def test_revoking_the_api_key_that_stored_it_ends_its_chat(user, secret):
    maker = await key_with(user, "write", "inference")
    async with bearing(user, maker["key"]) as http:
        assert (await http.post("/api/environment-keys", json={"key": secret})).status_code == 201
    assert 401 not in await chats(user, secret)
    assert (await user.http.delete(f"/api/keys/{maker['id']}")).status_code == 200
    assert await chats(user, secret) == [401, 401]


async def test_its_chat_expires_and_is_given_anew_when_the_key_is_stored_again(start_gateway, client_of, secret):
    user = await client_of(await start_gateway(environment_chat_s=0.5))
    lasting = await client_of(await start_gateway(), user.key)
    await user.http.post("/api/environment-keys", json={"key": secret})
    async with asyncio.timeout(20):
        while await chats(user, secret) != [401, 401]:
            pass
    async with at(user, X_API_Key=secret) as http:
        assert "expired at" in (await http.post("/v1/chat/completions", json=CHAT)).json()["detail"]
    [shown] = (await user.http.get("/api/environment-keys")).json()["data"]
    assert (shown["chat"]["state"], shown["chat"]["scopes"]) == ("ended", ["inference"])
    await lasting.http.post("/api/environment-keys", json={"key": secret})
    assert 401 not in await chats(lasting, secret)


async def test_its_chat_is_revoked_on_every_gateway_and_the_key_stays(start_gateway, client_of, secret):
    here = await client_of(await start_gateway())
    there = await client_of(await start_gateway(), here.key)
    made = (await here.http.post("/api/environment-keys", json={"key": secret})).json()
    assert 401 not in await chats(there, secret)
    for _ in range(2):
        ended = await here.http.delete(f"/api/environment-keys/{made['id']}/chat")
        assert (ended.status_code, ended.json()["chat"]["state"]) == (200, "ended")
    assert await chats(here, secret) == [401, 401]
    async with asyncio.timeout(10):
        while await chats(there, secret) != [401, 401]:
            pass
    assert [key["id"] for key in (await here.http.get("/api/environment-keys")).json()["data"]] == [made["id"]]
    await here.http.post("/api/environment-keys", json={"key": secret})
    await here.http.delete(f"/api/environment-keys/{made['id']}")
    assert await chats(here, secret) == [401, 401]
    assert (await here.http.delete(f"/api/environment-keys/{made['id']}/chat")).status_code == 404


async def test_a_key_that_can_be_guessed_opens_no_chat_and_its_id_tells_nothing_of_it(user, secret):
    short = secret[-15:]
    stored = await user.http.post("/api/environment-keys", json={"key": short})
    assert (stored.status_code, stored.json()["chat"]) == (201, None)
    assert await chats(user, short) == [401, 401]
    refused = await user.http.post("/api/environment-keys", json={"key": short, "chat": True})
    assert refused.status_code == 400
    assert "SYNTH_ENVIRONMENT_CHAT_CHARACTERS" in refused.json()["detail"]
    assert hashlib.sha256(short.encode()).hexdigest()[:10] not in stored.text


async def test_chat_is_asked_for_or_refused_by_who_stores_the_key(user, secret):
    writer = await key_with(user, "write")
    async with bearing(user, writer["key"]) as http:
        refused = await http.post("/api/environment-keys", json={"key": secret, "chat": True})
        assert refused.status_code == 403
        assert "lacks the scope inference" in refused.json()["detail"]
    quiet = await user.http.post("/api/environment-keys", json={"key": secret, "chat": False})
    assert (quiet.status_code, quiet.json()["chat"]) == (201, None)
    assert await chats(user, secret) == [401, 401]
    # Whoever may only write can neither grant chat anew nor prolong it by storing the same key.
    maker = await key_with(user, "write", "inference")
    async with bearing(user, maker["key"]) as http:
        granted = (await http.post("/api/environment-keys", json={"key": secret})).json()["chat"]
    async with bearing(user, writer["key"]) as http:
        assert (await http.post("/api/environment-keys", json={"key": secret})).json()["chat"] == granted
    assert 401 not in await chats(user, secret)


async def test_another_organisation_that_stores_the_same_key_does_not_end_its_chat(start_gateway, client_of, secret):
    user, hostile = await client_of(await start_gateway()), await client_of(await start_gateway())
    made = (await user.http.post("/api/environment-keys", json={"key": secret})).json()
    refused = await hostile.http.post("/api/environment-keys", json={"key": secret, "chat": True})
    assert (refused.status_code, "opens chat for another organisation" in refused.json()["detail"]) == (409, True)
    stored = await hostile.http.post("/api/environment-keys", json={"key": secret})
    assert (stored.status_code, stored.json()["chat"]) == (201, None)
    assert 401 not in await chats(user, secret)
    # It is the first one's until that one ends it.
    await user.http.delete(f"/api/environment-keys/{made['id']}/chat")
    assert await chats(user, secret) == [401, 401]
    granted = await hostile.http.post("/api/environment-keys", json={"key": secret, "chat": True})
    assert (granted.status_code, granted.json()["chat"]["state"]) == (201, "live")
    assert (await user.http.post("/api/environment-keys", json={"key": secret})).json()["chat"]["state"] == "ended"


async def test_a_list_of_keys_reads_nothing_of_other_organisations(start_gateway, client_of, bus_as, secret):
    running = await start_gateway()
    users = [await client_of(running) for _ in range(3)]
    for user in users:
        await key_with(user, "read")
        await user.http.post("/api/environment-keys", json={"key": secret})
    js, subjects = (await bus_as("bus")).js, dict[str, int]()
    for stream in ("KV_api_keys", "KV_environment_keys"):
        subjects |= (await js.stream_info(stream, subjects_filter=">")).state.subjects or {}
    for user in users:
        kinds = ("$KV.api_keys.api", "$KV.environment_keys.environment")
        stored = [len([s for s in subjects if s.startswith(f"{kind}.{user.org}.")]) for kind in kinds]
        assert stored == [2, 1]
        assert len((await user.http.get("/api/keys")).json()["data"]) == 2
