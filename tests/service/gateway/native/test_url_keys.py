"""A key in a URL, for a client that can send nothing else: it opens chat completions, and nothing beside them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from synth.bus.publish import Publisher
from synth.bus.replay import replay_messages
from synth.events import ModelPublished, ModelRef
from synth.keys import mistyped, new_api_key, new_url_key, url_key_path
from tests.service.gateway import job_histories

#: Nobody serves it in these tests, so a chat that is let in is a 503.
CHAT = {"model": "tiny-qwen3", "messages": [{"role": "user", "content": "Hi."}]}
LET_IN = 503


async def made(user, **body) -> dict:
    reply = await user.http.post("/api/keys", json={"url": True} | body)
    assert reply.status_code == 201, reply.text
    return reply.json()


async def chat(user, path: str, **body) -> httpx.Response:
    """A chat by URL alone: no header says who calls."""
    async with httpx.AsyncClient(base_url=user.http.base_url, timeout=20) as nobody:
        return await nobody.post(f"{path}/chat/completions", json=CHAT | body)


async def model_of(user, bus_as) -> str:
    job = (await user.submit())["id"]
    model = f"fft:tiny:{job}"
    trainer, fence = await job_histories.begin(bus_as, user.org, job)
    await Publisher(trainer).fenced(ModelPublished(model=ModelRef(id=model), kind="full", step=1), fence=fence, id="m")
    await job_histories.succeed(trainer, fence, steps=1)
    async with asyncio.timeout(10):
        while (await user.http.get(f"/api/models/{model}")).status_code != 200:
            pass
    return model


async def test_it_opens_chat_by_its_url_alone_until_it_is_revoked(user):
    key = await made(user, name="eval")
    assert key["path"] == url_key_path(key["key"])
    assert (key["url"], key["scopes"], key["name"], key["state"]) == (True, ["inference"], "eval", "live")
    for path in (key["path"], key["path"].removesuffix("/v1"), f"{key['path']}/"):
        assert (await chat(user, path.rstrip("/"))).status_code == LET_IN
    async with httpx.AsyncClient(base_url=user.http.base_url) as other:
        # Whatever else a client sends counts for nothing.
        for headers in ({"Authorization": "Bearer any"}, {"X-API-Key": "any"}):
            url = f"{key['path']}/chat/completions?cid=trace_of_the_client"
            assert (await other.post(url, json=CHAT, headers=headers)).status_code == LET_IN
    listed = (await user.http.get("/api/keys")).json()["data"][-1]
    assert (listed["id"], listed["url"], listed["model"]) == (key["id"], True, None)
    await user.http.delete(f"/api/keys/{key['id']}")
    refused = await chat(user, key["path"])
    assert refused.status_code == 401
    assert "was revoked at" in refused.json()["detail"]
    assert "synthctl keys create --url" in refused.json()["detail"]


async def test_it_is_no_key_for_anything_else(user):
    key = await made(user)
    headers = {"Authorization": f"Bearer {key['key']}"}
    job = (await user.submit())["id"]
    for method, path in (
        ("GET", "/api/jobs"),
        ("POST", "/api/jobs"),
        ("GET", f"/api/jobs/{job}"),
        ("POST", f"/api/jobs/{job}/cancel"),
        ("GET", "/api/events"),
        ("GET", "/api/files"),
        ("POST", "/api/files"),
        ("GET", "/api/keys"),
        ("POST", "/api/keys"),
        ("DELETE", f"/api/keys/{key['id']}"),
        ("GET", "/api/environment-keys"),
        ("POST", "/api/environment-keys"),
        ("GET", "/api/models"),
        ("GET", "/v1/models"),
        ("GET", "/v1/files"),
        ("GET", "/api/me"),
        ("POST", "/v1/chat/completions"),
    ):
        for sent in (headers, headers | {"X-API-Key": key["key"]}):
            reply = await user.http.request(method, path, json=CHAT if method == "POST" else None, headers=sent)
            assert reply.status_code == 401, (method, path, reply.text)
            assert "part of a URL" in reply.json()["detail"]
        for below in (f"{key['path']}{path}", f"/keys/{key['key']}{path}"):
            reply = await user.http.request(method, below, headers={"Authorization": ""})
            found = 405 if below.endswith("/chat/completions") and method != "POST" else 404
            if path != "/v1/chat/completions":
                assert reply.status_code == found, (method, below)
                assert key["key"] not in reply.text


async def test_no_other_secret_opens_a_url(user):
    whole = (await made(user))["key"]
    mistyped_one = whole[:-1] + ("A" if whole[-1] != "A" else "B")
    assert mistyped(mistyped_one)
    for text, said in (
        (user.key, "holds no key"),
        (new_api_key(), "holds no key"),
        ("x", "holds no key"),
        (mistyped_one, "not all of it"),
        (whole[:-3], "not all of it"),
        (new_url_key(), "not known here"),
    ):
        refused = await chat(user, url_key_path(text))
        assert refused.status_code == 401, text
        assert said in refused.json()["detail"]
        assert text == "x" or text not in refused.text


async def test_it_chats_with_the_models_of_its_organisation_alone(start_gateway, client_of, bus_as):
    running = await start_gateway()
    owner, other = await client_of(running), await client_of(running)
    model = await model_of(owner, bus_as)
    ours, theirs = await made(owner), await made(other)
    for name in (model, model.split(":")[-1]):
        assert (await chat(owner, ours["path"], model=name)).status_code == LET_IN
        assert (await chat(other, theirs["path"], model=name)).status_code == 404
    for name in (model, "no-such-model"):
        refused = await other.http.post("/api/keys", json={"url": True, "model": name})
        assert (refused.status_code, refused.json()["error"]["type"]) == (404, "not_found")
    one = await made(owner, model=f"ft:tiny:{model.split(':')[-1]}")
    assert one["model"] == model
    for name in (model, one["model"].replace("fft:", "ft:")):
        assert (await chat(owner, one["path"], model=name)).status_code == LET_IN
    for name, status in (("job_x", 404), ("no-such-base", 404), (f"fft:tiny:{'job_' + 'a' * 16}", 404)):
        assert (await chat(owner, one["path"], model=name)).status_code == status
    second = await model_of(owner, bus_as)
    refused = await chat(owner, one["path"], model=second)
    assert (refused.status_code, refused.json()["error"]["param"]) == (403, "model")
    assert model in refused.json()["detail"]


async def test_it_always_ends_and_a_new_one_takes_its_place(start_gateway, client_of):
    running = await start_gateway(max_url_key_s=7200.0, url_key_s=3600.0)
    user = await client_of(running)
    for body, seconds in (({}, 3600), ({"expires_in_s": 7200}, 7200)):
        key = await made(user, **body)
        left = datetime.fromisoformat(key["expires_at"]) - datetime.now(UTC)
        assert timedelta(seconds=seconds - 60) < left <= timedelta(seconds=seconds)
    for body, where in (
        ({"expires_in_s": 7201}, "body.expires_in_s"),
        ({"scopes": ["read", "inference"]}, "body.scopes"),
        ({"url": False, "model": "tiny-qwen3"}, "body.model"),
    ):
        refused = await user.http.post("/api/keys", json={"url": True} | body)
        assert (refused.status_code, refused.json()["error"]["problems"][0]["where"]) == (422, where)
    new = (await user.http.post(f"/api/keys/{key['id']}/rotate")).json()
    assert (new["url"], new["expires_at"], new["path"]) == (True, key["expires_at"], url_key_path(new["key"]))
    assert [(await chat(user, k["path"])).status_code for k in (key, new)] == [401, LET_IN]
    short = await made(user, expires_in_s=1)
    async with asyncio.timeout(10):
        while (reply := await chat(user, short["path"])).status_code == LET_IN:
            pass
    assert reply.status_code == 401
    assert "expired at" in reply.json()["detail"]


async def test_who_may_not_chat_cannot_make_one(user):
    narrow = (await user.http.post("/api/keys", json={"scopes": ["keys", "read"]})).json()
    refused = await user.http.post(
        "/api/keys", json={"url": True}, headers={"Authorization": f"Bearer {narrow['key']}"}
    )
    assert refused.status_code == 403
    assert "lacks the scope inference" in refused.json()["detail"]


async def test_it_is_in_no_log_no_event_no_metric_and_no_store(
    start_gateway, client_of, bus_as, capfd: pytest.CaptureFixture[str]
):
    running = await start_gateway(log_level="debug")
    user = await client_of(running)
    key = await made(user)
    assert (await chat(user, key["path"])).status_code == LET_IN
    assert (await chat(user, f"{key['path']}/other")).status_code == 404
    async with httpx.AsyncClient(base_url=user.http.base_url) as nobody:
        metrics = (await nobody.get("/metrics")).text
    assert "/keys/{url_key}/v1/chat/completions" in metrics
    out, err = capfd.readouterr()
    gateway = (await bus_as("gateway")).nc
    kept = [m.data for m in await replay_messages(gateway, ["$KV.api_keys.>"], stream="KV_api_keys")]
    kept += [m.data for m in await replay_messages(gateway, [">"], stream="EVENTS")]
    assert all(key["key"].encode() not in data for data in kept)
    assert key["key"] not in metrics + out + err
    assert "request failed" in out + err
