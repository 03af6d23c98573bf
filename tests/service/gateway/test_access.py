"""Keys, and the wall between organisations."""

from __future__ import annotations

import httpx

from synth.bus.publish import Publisher
from synth.events import ModelPublished, ModelRef
from synth.keys import new_api_key
from tests.service.gateway import job_histories


async def test_without_a_known_key_everything_is_401_and_says_how(start_gateway):
    running = await start_gateway()
    async with httpx.AsyncClient(base_url=running.service.url) as http:
        for headers in ({}, {"Authorization": f"Bearer {new_api_key()}"}, {"Authorization": "Basic abc"}):
            for method, path in (
                ("GET", "/api/jobs"),
                ("GET", "/api/me"),
                ("POST", "/api/files"),
                ("GET", "/api/events"),
                ("POST", "/v1/chat/completions"),
                ("GET", "/v1/models"),
            ):
                reply = await http.request(method, path, headers=headers)
                assert reply.status_code == 401, path
                assert reply.json()["error"]["type"] == "authentication"
                assert "SYNTH_API_KEY" in reply.json()["detail"]
        assert (await http.get("/api/health")).json()["status"] == "ok"
        assert (await http.get("/healthz")).status_code == 200
        assert "synth_gateway_requests_total" in (await http.get("/metrics")).text


async def test_what_belongs_to_another_organisation_is_not_there(start_gateway, client_of, bus_as):
    running = await start_gateway()
    owner, other = await client_of(running), await client_of(running)
    job = (await owner.submit())["id"]
    file = (await owner.http.post("/api/files", files={"file": ("a.jsonl", b"{}\n")})).json()["id"]
    trainer, fence = await job_histories.begin(bus_as, owner.org, job)
    model = f"fft:tiny:{job}"
    await Publisher(trainer).fenced(ModelPublished(model=ModelRef(id=model), kind="full", step=1), fence=fence, id="m")
    await job_histories.succeed(trainer, fence, steps=1)
    paths = [
        f"/api/jobs/{job}",
        f"/api/jobs/{job}/events",
        f"/api/jobs/{job}/metrics",
        f"/api/files/{file}",
        f"/api/files/{file}/content",
    ]
    for path in paths:
        assert (await owner.http.get(path)).status_code == 200, path
        reply = await other.http.get(path)
        assert reply.status_code == 404, path
        assert reply.json()["error"]["type"] == "not_found"
    assert (await other.http.post(f"/api/jobs/{job}/cancel")).status_code == 404
    assert (await other.http.get("/api/jobs", params={"after": job})).status_code == 404
    for path in ("/api/jobs", "/api/files"):
        assert (await other.http.get(path)).json()["data"] == []
    # The bases of this machine are everybody's.
    assert {m["kind"] for m in (await other.http.get("/api/models")).json()["data"]} <= {"base"}
    assert (await other.http.get(f"/api/models/{model}")).status_code == 404
    for name in (model, f"ft:tiny:{job}", job):
        chat = {"model": name, "messages": []}
        assert (await other.http.post("/v1/chat/completions", json=chat)).status_code == 404
        assert (await owner.http.post("/v1/chat/completions", json=chat)).status_code != 404


async def test_an_id_cannot_reach_into_other_subjects(user):
    for id in ("*", "job_*", "job_1.x", "job_>", "a" * 5000):
        assert (await user.http.get(f"/api/jobs/{id}")).status_code == 404


async def test_the_bootstrap_key_opens_and_has_its_environment_key(start_gateway, client_of):
    key = (await client_of(await start_gateway())).key
    running = await start_gateway(bootstrap_api_key=key, bootstrap_environment_key="env_secret")
    async with httpx.AsyncClient(base_url=running.service.url, headers={"Authorization": f"Bearer {key}"}) as http:
        me = (await http.get("/api/me")).json()
        assert me["org"].startswith("org_")
        [stored] = (await http.get("/api/environment-keys")).json()["data"]
        reply = await http.post("/api/environment-keys", json={"key": "env_secret"})
        assert reply.status_code == 201
        assert (reply.json()["id"], reply.json()["origin"]) == (stored["id"], None)
        assert "env_secret" not in reply.text
    again = await start_gateway(bootstrap_api_key=key)
    user = await client_of(again, key)
    assert (await user.http.get("/api/me")).json() == me


async def test_the_document_of_the_api_is_whole(start_gateway):
    running = await start_gateway()
    async with httpx.AsyncClient(base_url=running.service.url) as http:
        document = (await http.get("/openapi.json")).json()
    schemas = document["components"]["schemas"]
    text = str(document)
    for name in ("Job", "File", "Model", "EventView", "Failure"):
        assert name in schemas
    for path in document["paths"].values():
        for operation in path.values():
            assert operation["summary"]
            assert operation["tags"]
    refs = {part.split("'")[0] for part in text.split("#/components/schemas/")[1:]}
    assert refs <= set(schemas)
