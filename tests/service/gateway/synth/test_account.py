"""What else the Synth clients call: sealed environment keys, the look at a task app, who they are, learning models."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import httpx
import pytest
from nacl.public import PrivateKey, PublicKey, SealedBox

from synth.bus.kv.secrets import SecretStore
from synth.bus.publish import Publisher
from synth.bus.rpc import VERIFY, KeyResult, TaskAppReport, VerifyTaskApp, serve_questions
from synth.events import ModelPublished, ModelRef
from tests.keyrings import secrets_of
from tests.service.gateway import job_histories
from tests.service.gateway.wait import wait_until_shown
from tests.service.process import running as running_service
from tests.service.verifier.task_apps import opened_by, scripted

PREFIXES = ("/api/v1", "/api/api/v1")


def sealed(public_key: str, text: bytes) -> str:
    return base64.b64encode(SealedBox(PublicKey(base64.b64decode(public_key))).encrypt(text)).decode()


def with_bearer(running: Any, key: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=running.service.url, headers={"Authorization": f"Bearer {key}"})


@pytest.mark.parametrize("prefix", PREFIXES)
async def test_a_sealed_key_is_opened_and_kept(user, bus_as, prefix):
    said = (await user.http.get(f"{prefix}/crypto/public-key")).json()
    assert said["alg"] == "libsodium.sealedbox.v1"
    assert (await user.http.get(f"{prefix}/env-keys/verify")).json()["present"] is False
    body = {"name": "ENVIRONMENT_API_KEY", "ciphertext_b64": sealed(said["public_key"], b"env_secret_1")}
    reply = await user.http.post(f"{prefix}/env-keys", json=body)
    assert reply.status_code == 201
    assert reply.json()["name"] == "ENVIRONMENT_API_KEY"
    assert "env_secret_1" not in reply.text
    stored = await SecretStore(await bus_as("gateway"), secrets_of("gateway")).environment_keys(user.org)
    assert [(k.id, k.key) for k in stored] == [(reply.json()["id"], "env_secret_1")]
    present = (await user.http.get(f"{prefix}/env-keys/verify")).json()
    assert (present["present"], present["ids"]) == (True, [reply.json()["id"]])


async def test_every_gateway_has_the_same_public_key(start_gateway, client_of):
    keys = []
    for _ in range(2):
        user = await client_of(await start_gateway())
        keys.append((await user.http.get("/api/v1/crypto/public-key")).json())
    assert keys[0] == keys[1]


async def test_a_key_that_cannot_be_opened_or_used_is_one_clear_400(user):
    public = (await user.http.get("/api/v1/crypto/public-key")).json()["public_key"]
    elsewhere = base64.b64encode(bytes(PrivateKey.generate().public_key)).decode()
    for ciphertext, said in (
        ("not base64!", "not a sealed box"),
        ("", "not a sealed box"),
        (base64.b64encode(b"x" * 20).decode(), "not a sealed box"),
        (sealed(elsewhere, b"env_secret_2"), "not a sealed box for this cluster's public key"),
        (sealed(public, b"\xff\xfe"), "not UTF-8"),
        (sealed(public, b""), "is empty"),
        (sealed(public, b"k" * 8193), "8,193 bytes"),
        (sealed(public, "schlüssel".encode()), "no HTTP header"),
        (sealed(public, b"env_secret_2\n"), "no HTTP header"),
    ):
        reply = await user.http.post("/api/v1/env-keys", json={"ciphertext_b64": ciphertext})
        assert reply.status_code == 400, reply.text
        assert said in reply.json()["detail"]
        assert "env_secret_2" not in reply.text
    wrong = {"name": "OPENAI_API_KEY", "ciphertext_b64": sealed(public, b"k")}
    assert (await user.http.post("/api/v1/env-keys", json=wrong)).status_code == 400
    longest = {"ciphertext_b64": sealed(public, b"k" * 8192)}
    assert (await user.http.post("/api/v1/env-keys", json=longest)).status_code == 201


async def test_a_task_app_is_looked_at_with_the_environment_keys_that_it_may_be(user, settings_of, tmp_path):
    settings = settings_of("verifier")
    extra: dict[str, Any] = {"SYNTH_ALLOW_LOOPBACK": "1", "SYNTH_RETRY_FOR_S": "0.2", "SYNTH_CALL_DEADLINE_S": "2"}
    ids = [
        (await user.http.post("/api/environment-keys", json={"key": key})).json()["id"]
        for key in ("env_right_1", "env_wrong_1")
    ]
    with running_service("verifier", settings, tmp_path / "log", **extra):
        async with scripted(opened_by("env_right_1")) as app:
            body = {"endpoint_base_url": app.url + "/"}
            found = await user.http.post("/api/rl/verify_task_app", json=body)
        assert found.status_code == 200
        said = found.json()
        assert said["any_ok"] is True
        assert said["candidates_first15"] == ids[::-1]
        assert [(a["key"], a["status"]) for a in said["attempts"]] == [(ids[1], 400), (ids[0], 200)]
        assert "env_right_1" not in found.text
        dead = (await user.http.post("/api/v1/rl/verify_task_app", json=body)).json()
        assert dead["any_ok"] is False
        assert "cannot be reached" in dead["detail"]
        async with scripted(opened_by("another")) as app:
            await user.http.post("/api/environment-keys", json={"key": "env_wrong_2"})
            locked = await user.http.post("/api/api/rl/verify_task_app", json={"endpoint_base_url": app.url})
        assert locked.json()["any_ok"] is False
        assert f"refuses every environment key of your organisation for {app.url} (1)" in locked.json()["detail"]
        assert [key["origin"] for key in (await user.http.get("/api/environment-keys")).json()["data"]].count(None) == 2


async def test_a_look_at_something_that_is_no_address_is_a_400(user):
    bad = ("", "ftp://x", "nonsense", "http://", "http://[::bad", "http://a?b", "http://a/#", "http://good@inside/")
    for url in bad:
        reply = await user.http.post("/api/rl/verify_task_app", json={"endpoint_base_url": url})
        assert reply.status_code == 400, url
        assert reply.json()["error"]["param"] == "endpoint_base_url"
        assert "endpoint_base_url" in reply.json()["detail"]


async def test_without_a_verifier_it_is_worth_trying_again(user):
    reply = await user.http.post("/api/rl/verify_task_app", json={"endpoint_base_url": "http://127.0.0.1:9"})
    assert reply.status_code == 503
    assert int(reply.headers["retry-after"]) > 0
    assert "no verifier is running" in reply.json()["detail"]


async def test_an_app_that_wants_a_key_when_there_is_none_says_what_to_do(user, bus_as):
    async def answer(question: VerifyTaskApp) -> TaskAppReport:
        assert question.org == user.org
        refused = KeyResult(key_id=None, ok=False, path="/health", status=400, reason="refused: HTTP 400")
        return TaskAppReport(key_ids=[], attempts=[refused])

    stop = asyncio.Event()
    verifier = await bus_as("verifier")
    serving = asyncio.create_task(
        serve_questions(verifier, VERIFY, VerifyTaskApp, answer, stop, max_concurrent=1, within=5)
    )
    body = {"endpoint_base_url": "http://127.0.0.1:9"}
    async with asyncio.timeout(10):
        while (reply := await user.http.post("/api/rl/verify_task_app", json=body)).status_code == 503:
            continue
    assert reply.json()["any_ok"] is False
    assert "your organisation has none" in reply.json()["detail"]
    stop.set()
    await asyncio.wait_for(serving, 5)


async def test_the_clients_small_calls_are_answered_in_json_below_every_prefix(user):
    user.http.headers.update({"X-User-ID": "someone", "X-Org-ID": "org_another"})
    for prefix in ("/api", "/api/v1", "/api/api"):
        assert (await user.http.get(f"{prefix}/me")).json()["org"] == user.org
        assert (await user.http.get(f"{prefix}/health")).json()["status"] == "ok"
        for path in (f"{prefix}/no/such/thing", f"{prefix}/artifacts"):
            reply = await user.http.get(path)
            assert reply.status_code == 404
            assert reply.headers["content-type"].startswith("application/json")
            assert reply.json()["detail"]
    logs = await user.http.post("/api/v1/sdk-logs", json={"entries": [{"level": "info", "message": "hello"}]})
    assert logs.status_code == 200
    assert logs.headers["content-type"].startswith("application/json")


async def test_fine_tuned_models_are_listed_for_every_client(user, bus_as):
    made: dict[str, str] = {}
    for prefix, kind in (("fft", "sft"), ("rl", "rl")):
        job = (await user.submit())["id"]
        trainer, fence = await job_histories.begin(bus_as, user.org, job, kind=kind)
        made[prefix] = f"{prefix}:Qwen/Qwen3-0.6B:{job}"
        ref = ModelRef(id=made[prefix], base=ModelRef(id="Qwen/Qwen3-0.6B"))
        await Publisher(trainer).fenced(ModelPublished(model=ref, kind="full", step=1), fence=fence, id="m")
        await wait_until_shown(user, await job_histories.succeed(trainer, fence, steps=1) or 0)
    for prefix in ("/api", "/api/v1", "/api/api"):
        listed = (await user.http.get(f"{prefix}/learning/models")).json()
        assert [m["id"] for m in listed["data"]] == [made["rl"], made["fft"]]
        assert listed["models"] == listed["data"]
        [rl] = (await user.http.get(f"{prefix}/learning/models/rl", params={"limit": 5})).json()["models"]
        assert (rl["id"], rl["base_model"], rl["status"]) == (made["rl"], "Qwen/Qwen3-0.6B", "ready")
        one = (await user.http.get(f"{prefix}/learning/models/{made['fft']}")).json()
        assert one["job_id"] == made["fft"].rsplit(":", 1)[-1]
    job_id = made["fft"].rsplit(":", 1)[-1]
    alias = (await user.http.get(f"/api/models/ft:Qwen/Qwen3-0.6B:{job_id}")).json()
    assert alias["id"] == made["fft"]
    used = (await user.submit(model=made["fft"]))["id"]
    jobs = (await user.http.get(f"/api/models/{made['fft']}/jobs")).json()["data"]
    assert [j["id"] for j in jobs] == [used, job_id]
    for _ in range(2):
        assert (await user.http.delete(f"/api/models/{made['fft']}")).json()["deleted"] is True
    assert (await user.http.get(f"/api/learning/models/{made['fft']}")).status_code == 404
    for path in ("/api/models/rl:x:job_0", "/api/models/rl:x:job_0/jobs", "/api/learning/models/nothing"):
        assert (await user.http.get(path)).status_code == 404


async def test_the_environment_key_of_one_organisation_opens_a_chat_and_nothing_else(start_gateway, client_of):
    running = await start_gateway()
    user, other = await client_of(running), await client_of(running)
    await user.http.post("/api/environment-keys", json={"key": "env_chat_0123456789"})
    async with httpx.AsyncClient(base_url=running.service.url, headers={"X-API-Key": "env_chat_0123456789"}) as http:
        body = {"model": "nowhere", "messages": []}
        opened = await http.post("/api/inference/v1/chat/completions", json=body)
        assert opened.status_code != 401
        assert (await http.get("/api/jobs")).status_code == 401
        unknown = await http.post("/chat/completions", json=body, headers={"X-API-Key": "env_chat_9876543210"})
        assert unknown.status_code == 401
        assert "environment key" in unknown.json()["detail"]
        bearer = {"Authorization": "Bearer nobodys"}
        assert (await http.post("/v1/chat/completions", json=body, headers=bearer)).status_code == 401
    # As the bearer, which is how a client sends its `api_key`.
    async with with_bearer(running, "env_chat_0123456789") as http:
        for path in ("/v1/chat/completions", "/v1/chat/completions/", "/v1/"):
            assert (await http.post(path, json=body)).status_code == opened.status_code
        for path in ("/api/jobs", "/api/me", "/v1/models"):
            assert (await http.get(path)).status_code == 401
        assert (await http.post("/api/keys", json={"name": "x", "scopes": ["read"]})).status_code == 401
    # An API key is never taken for an environment key: it would be sent to a task app.
    mine = user.http.headers["Authorization"].removeprefix("Bearer ")
    refused = await other.http.post("/api/environment-keys", json={"key": mine})
    assert (refused.status_code, "this is an API key" in refused.json()["detail"]) == (400, True)
    assert mine not in refused.text
    revoked = (await user.http.post("/api/keys", json={"name": "old", "scopes": ["inference"]})).json()
    await user.http.delete(f"/api/keys/{revoked['id']}")
    async with with_bearer(running, revoked["key"]) as http:
        refused = await http.post("/v1/chat/completions", json=body)
        assert (refused.status_code, "revoked" in refused.json()["detail"]) == (401, True)
