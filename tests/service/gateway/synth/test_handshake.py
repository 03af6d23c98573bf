"""The handshake by which `synth-ai setup` gets its keys."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from synth.gateway.api.synth.device_codes import LIFETIME_S
from synth.gateway.auth import HANDSHAKE_PATH

INIT, TOKEN = f"{HANDSHAKE_PATH}/init", f"{HANDSHAKE_PATH}/token"


@pytest.fixture
async def gateway(start_gateway):
    return await start_gateway()


@pytest.fixture
async def machine(gateway):
    """A client without a key."""
    async with httpx.AsyncClient(base_url=gateway.service.url, timeout=20) as http:
        yield http


async def begin(machine: httpx.AsyncClient) -> dict:
    reply = await machine.post(INIT)
    assert reply.status_code == 200, reply.text
    return reply.json()


async def poll(machine: httpx.AsyncClient, code: dict) -> httpx.Response:
    return await machine.post(TOKEN, json={"device_code": code["device_code"]})


async def test_an_approved_machine_gets_keys_of_the_approver_once(gateway, machine, client_of):
    user, code = await client_of(gateway), await begin(machine)
    assert (code["expires_in"], code["interval"]) == (LIFETIME_S, 3)
    page = await machine.get(code["verification_uri"])
    assert page.status_code == 200
    assert f"synthctl setup --approve {code['user_code']}" in page.text
    pending = await poll(machine, code)
    assert (pending.status_code, "authorization_pending" in pending.text) == (428, True)
    approved = await user.http.post("/api/keys/approve", json={"code": code["user_code"].lower()})
    assert approved.status_code == 200, approved.text
    assert approved.json()["code"] == code["user_code"]
    assert (await user.http.post("/api/keys/approve", json={"code": code["user_code"]})).status_code == 409
    # Two polls at one time: one gets the keys.
    replies = await asyncio.gather(poll(machine, code), poll(machine, code))
    assert sorted(reply.status_code for reply in replies) in ([200, 410], [200, 428])
    [keys] = [reply.json()["keys"] for reply in replies if reply.status_code == 200]
    headers = {"Authorization": f"Bearer {keys['synth']}"}
    assert user.org in (await machine.get("/api/me", headers=headers)).text
    made = next(k for k in (await user.http.get("/api/keys")).json()["data"] if code["user_code"] in k["name"])
    assert made["scopes"] == ["read", "write", "inference"]
    stored = (
        (await machine.get("/api/env-keys/verify", headers=headers)).status_code,
        (await machine.get("/api/v1/env-keys/verify", headers=headers)).json(),
    )
    assert stored[1]["present"] is True
    assert len(keys["rl_env"]) >= 32
    assert (await poll(machine, code)).status_code == 428


async def test_only_a_key_that_may_make_keys_approves(gateway, machine, client_of):
    user, code = await client_of(gateway), await begin(machine)
    body = {"code": code["user_code"]}
    assert (await machine.post("/api/keys/approve", json=body)).status_code == 401
    for scopes in (["read", "write", "inference"], ["keys", "read"]):
        made = (await user.http.post("/api/keys", json={"scopes": scopes})).json()
        headers = {"Authorization": f"Bearer {made['key']}"}
        assert (await machine.post("/api/keys/approve", json=body, headers=headers)).status_code == 403
    assert (await poll(machine, code)).status_code == 428


async def test_an_approval_ends_with_the_key_that_gave_it(gateway, machine, client_of):
    user, code = await client_of(gateway), await begin(machine)
    made = (await user.http.post("/api/keys", json={"scopes": ["read", "write", "inference", "keys"]})).json()
    headers = {"Authorization": f"Bearer {made['key']}"}
    approved = await machine.post("/api/keys/approve", json={"code": code["user_code"]}, headers=headers)
    assert approved.status_code == 200, approved.text
    assert (await user.http.delete(f"/api/keys/{made['id']}")).status_code == 200
    assert (await poll(machine, code)).status_code == 410


async def test_a_code_that_is_over_or_not_ours_is_refused(gateway, machine, client_of, monkeypatch):
    user = await client_of(gateway)
    unknown = await machine.post(TOKEN, json={"device_code": "00-11-22"})
    assert (unknown.status_code, "not one of this cluster" in unknown.text) == (404, True)
    mistyped = await user.http.post("/api/keys/approve", json={"code": "AAAA-BBBB-CCCC"})
    assert (mistyped.status_code, "mistyped" in mistyped.json()["detail"]) == (404, True)
    assert (await machine.get(HANDSHAKE_PATH, params={"code": "<script>"})).status_code == 404
    monkeypatch.setattr("synth.gateway.api.synth.device_codes.LIFETIME_S", -1)
    expired = await poll(machine, await begin(machine))
    assert (expired.status_code, "start the setup again" in expired.json()["detail"]) == (410, True)


async def test_a_large_body_without_a_key_is_refused(machine):
    reply = await machine.post(TOKEN, content=b"x" * 5000, headers={"Content-Type": "application/json"})
    assert reply.status_code == 413
