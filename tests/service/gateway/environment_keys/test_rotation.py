"""A gateway through a rotation of the cluster's secret, with the secrets of its own alone."""

from __future__ import annotations

import asyncio
import base64
import time

from nacl.public import PublicKey, SealedBox
from pydantic import SecretStr

from synth.bus.kv.secrets import SecretStore
from synth.ids import OrgId
from synth.keys import Cid, mint_cid
from synth.service_secrets import Purpose
from tests.keyrings import credentials, keyring, secrets_of
from tests.service.gateway.environment_keys.world import new_secret

OLD, NEW = "the secret before", "the secret of today"
URL = "https://app.example.com"
CHAT = {"model": "Qwen/Qwen3-0.6B", "messages": [{"role": "user", "content": "hello"}]}
CID = Cid(rollout_id="job_1_t0_0", nonce=1, replica="r-1", version=None, calls=9, ends=2**40, expires=2**40)
# Who may ask is let through, to a replica that is not there.
LET_THROUGH = 503


def given(*secrets: str) -> dict[str, SecretStr]:
    """The secrets of a gateway, without the cluster's secret."""
    return {"cluster_secret": SecretStr(""), "secrets": SecretStr(secrets_of("gateway", *secrets).text())}


async def test_what_was_made_before_a_rotation_is_good_until_its_secret_is_dropped(start_gateway, client_of, bus_as):
    before = await start_gateway(**given(OLD))
    user = await client_of(before)
    public = (await user.http.get("/api/v1/crypto/public-key")).json()["public_key"]
    sealed = base64.b64encode(SealedBox(PublicKey(base64.b64decode(public))).encrypt(b"env_sealed_before")).decode()
    key = new_secret()
    stored = (await user.http.post("/api/environment-keys", json={"key": key, "chat": True})).json()
    by_key = {"X-API-Key": key, "Authorization": ""}
    signed = mint_cid(CID, credentials(OLD))
    await before.stop()

    both = await start_gateway(**given(NEW, OLD))
    user = await client_of(both, user.key)
    assert (await user.http.get("/api/v1/crypto/public-key")).json()["public_key"] != public
    assert (await user.http.post("/api/v1/env-keys", json={"ciphertext_b64": sealed})).status_code == 201
    listed = (await user.http.get("/api/environment-keys")).json()
    [kept] = [view for view in listed["data"] if view["id"] == stored["id"]]
    assert kept["chat"]["state"] == "live"
    assert (await user.http.post("/v1/chat/completions", json=CHAT, headers=by_key)).status_code == LET_THROUGH
    for cid in (signed, mint_cid(CID, credentials(NEW))):
        assert (await user.http.post(f"/v1/chat/completions?cid={cid}", json=CHAT)).status_code == LET_THROUGH
    # A grant from before the rotation is revoked as any other, also by a gateway that knows the earlier secret alone.
    earlier = SecretStore(await bus_as("gateway"), secrets_of("gateway", OLD))
    assert await earlier.revoke_chat(OrgId(user.org), key)
    deadline = time.monotonic() + 10
    while (refused := await user.http.post("/v1/chat/completions", json=CHAT, headers=by_key)).status_code != 401:
        # The gateway hears of it from the bucket.
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    assert "was revoked at" in refused.text
    again = await user.http.post("/api/environment-keys", json={"key": key, "chat": True})
    assert again.json()["id"] == stored["id"]
    assert (await user.http.post("/v1/chat/completions", json=CHAT, headers=by_key)).status_code == LET_THROUGH
    await both.stop()

    after = await start_gateway(**given(NEW))
    user = await client_of(after, user.key)
    assert (await user.http.post(f"/v1/chat/completions?cid={signed}", json=CHAT)).status_code == 401
    assert (await user.http.post("/api/v1/env-keys", json={"ciphertext_b64": sealed})).status_code == 400
    # The grant was renewed under the secret of today.
    assert (await user.http.post("/v1/chat/completions", json=CHAT, headers=by_key)).status_code == LET_THROUGH


async def test_a_key_that_was_not_sealed_again_before_its_secret_was_dropped_hinders_no_other_and_is_stored_anew(
    start_gateway, client_of, capfd, bus_as
):
    key, other = new_secret(), new_secret()
    before = await start_gateway(**given(OLD))
    user = await client_of(before)
    stored = (await user.http.post("/api/environment-keys", json={"key": key, "url": URL})).json()
    assert (await user.http.post("/api/environment-keys", json={"key": other, "url": URL})).status_code == 201
    await before.stop()

    after = await start_gateway(**given(NEW))
    user = await client_of(after, user.key)
    # As a version without ids of keys has left one.
    bucket = await (await bus_as("gateway")).js.key_value("environment_keys")
    await bucket.put(f"environment.{user.org}.key_old", b'{"sealed":"x"}')
    reply = await user.http.get("/api/environment-keys")
    assert (reply.status_code, reply.json()["data"]) == (200, [])
    logged = capfd.readouterr()
    id = keyring(Purpose.ENVIRONMENT_KEYS, OLD).current.id
    assert f"{id} follows from is missing in SYNTH_SECRETS" in logged.out + logged.err
    assert "does not name the key that it was sealed under" in logged.out + logged.err
    again = await user.http.post("/api/environment-keys", json={"key": key, "url": URL})
    assert again.status_code == 201
    assert [view["id"] for view in (await user.http.get("/api/environment-keys")).json()["data"]] == [
        again.json()["id"]
    ]
    for gone in (stored["id"], "key_old"):
        assert (await user.http.delete(f"/api/environment-keys/{gone}")).status_code in (200, 204)
    store = SecretStore(await bus_as("gateway"), secrets_of("gateway", OLD, NEW))
    left = [kept.key for kept in await store.environment_keys(OrgId(user.org))]
    assert sorted(left) == sorted([key, other])
