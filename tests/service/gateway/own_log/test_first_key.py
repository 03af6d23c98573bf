"""The bootstrap key gets an organisation in an empty cluster alone."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from synth.bus.kv.secrets import SecretStore
from synth.bus.server.topology import API_KEYS
from synth.errors import UserError
from synth.keys import new_api_key
from tests.keyrings import secrets_of

STREAM = f"KV_{API_KEYS}"


@pytest.mark.parametrize("record", ["org", "api", "owner"])
async def test_a_gateway_does_not_start_when_a_record_of_its_first_key_is_lost(bus_as, start_gateway, record: str):
    admin, key = await bus_as("bus"), new_api_key()
    first = await start_gateway(bootstrap_api_key=key)
    async with httpx.AsyncClient(base_url=first.service.url, headers={"Authorization": f"Bearer {key}"}) as http:
        assert (await http.post("/api/jobs", json={"config": "x"})).status_code == 201
    await first.stop()
    written = (await admin.js.stream_info(STREAM)).state.last_seq
    lost = await admin.js.get_last_msg(STREAM, f"$KV.{API_KEYS}.{record}.>")
    await admin.js.delete_msg(STREAM, lost.seq)
    with pytest.raises(UserError, match=r"this cluster has run before.*synthctl restore"):
        await start_gateway(bootstrap_api_key=key)
    with pytest.raises(UserError, match="this cluster has run before"):
        await start_gateway(bootstrap_api_key=new_api_key())
    assert (await admin.js.stream_info(STREAM)).state.last_seq == written


async def test_a_first_start_that_was_killed_is_begun_again(bus_as, start_gateway, monkeypatch):
    key, create = new_api_key(), SecretStore._create

    async def killed(store: SecretStore, place: str, value: Any) -> bool:
        if place.startswith("org."):
            raise asyncio.CancelledError
        return await create(store, place, value)

    with monkeypatch.context() as patch:
        patch.setattr(SecretStore, "_create", killed)
        with pytest.raises(asyncio.CancelledError):
            await SecretStore(await bus_as("gateway"), secrets_of("gateway")).ensure_api_key(key)
    running = await start_gateway(bootstrap_api_key=key)
    async with httpx.AsyncClient(base_url=running.service.url, headers={"Authorization": f"Bearer {key}"}) as http:
        assert (await http.get("/api/me")).status_code == 200
