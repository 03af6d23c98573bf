"""The wall between organisations: what is another's is answered exactly as what never was."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from synth.bus.history.model_refs import find_model
from synth.bus.publish import Publisher
from synth.errors import UserError
from synth.events import FileReady, ModelPublished, ModelRef
from synth.keys import Cid, mint_cid
from synth.models import Registry
from synth.verifier.files import wait_for_file
from tests.keyrings import credentials
from tests.service.gateway import job_histories
from tests.service.gateway.conftest import Client, Running

Ids = dict[str, str]

#: Ids of nothing, of the same shapes as those that stand for JOB, FILE, … below.
NOTHING: Ids = {
    "JOB": "job_0000000000000000",
    "FILE": "file_0000000000000000",
    "KEY": "key_0000000000",
    "ENV": "key_1111111111",
    "SECRET": "nobodys-secret",
    "ORG": "org_000000000000",
}
_CHAT = {"messages": [{"role": "user", "content": "?"}]}
_NATIVE = """
GET /api/jobs/JOB
GET /api/jobs/JOB/events
GET /api/jobs/JOB/events?after=0&limit=1
GET /api/jobs/JOB/metrics
POST /api/jobs/JOB/cancel
POST /api/jobs/JOB/pause
POST /api/jobs/JOB/resume
GET /api/jobs?after=JOB
GET /api/files/FILE
GET /api/files/FILE/content
GET /api/files/FILE/jobs
DELETE /api/files/FILE
GET /api/files?after=FILE
GET /api/models/fft:tiny:JOB
GET /api/model-files?model=fft:tiny:JOB
GET /api/model-files/content?model=fft:tiny:JOB&name=model.txt
DELETE /api/keys/KEY
POST /api/keys/KEY/rotate
DELETE /api/environment-keys/ENV
DELETE /api/environment-keys/ENV/chat
DELETE /api/judge-keys/SECRET
"""
_OPENAI = """
GET /v1/files/FILE
GET /v1/files/FILE/content
DELETE /v1/files/FILE
GET /v1/files?after=FILE
GET /v1/fine_tuning/jobs/JOB
GET /v1/fine_tuning/jobs/JOB/events
GET /v1/fine_tuning/jobs/JOB/checkpoints
GET /v1/fine_tuning/jobs?after=JOB
POST /v1/fine_tuning/jobs/JOB/cancel
POST /v1/fine_tuning/jobs/JOB/pause
POST /v1/fine_tuning/jobs/JOB/resume
GET /v1/models/fft:tiny:JOB
DELETE /v1/models/fft:tiny:JOB
"""
_SYNTH = """
GET /api/learning/jobs/JOB
GET /api/learning/jobs/JOB/events
GET /api/learning/jobs/JOB/metrics
GET /api/learning/jobs/JOB/timeline
GET /api/learning/jobs/JOB/status
GET /api/learning/jobs/JOB/config
GET /api/learning/jobs?after=JOB
POST /api/learning/jobs/JOB/start
POST /api/learning/jobs/JOB/cancel
GET /api/rl/jobs/JOB
GET /api/v1/rl/jobs/JOB/events
GET /api/api/rl/jobs/JOB/metrics
POST /api/rl/jobs/JOB/cancel
GET /api/orchestration/jobs/JOB
GET /api/orchestration/jobs/JOB/events
GET /api/rl/jobs/JOB/timeline
GET /api/sft/jobs/JOB/checkpoints
GET /api/jobs/JOB/runs
GET /api/learning/models/fft:tiny:JOB
GET /api/models/fft:tiny:JOB/jobs
DELETE /api/models/fft:tiny:JOB
"""
_MODELS = ("fft:tiny:JOB", "ft:tiny:JOB", "fft:tiny:JOB:step_1", "JOB")
_ROUTES = _NATIVE + _OPENAI + _SYNTH
ATTEMPTS: list[tuple[str, str, Any]] = [
    *((method, path, None) for method, path in map(str.split, filter(None, _ROUTES.split("\n")))),
    *(("POST", "/v1/chat/completions", _CHAT | {"model": model}) for model in _MODELS),
    ("POST", "/api/inference/v1/chat/completions", _CHAT | {"model": "fft:tiny:JOB", "stream": True}),
    ("POST", "/api/v1/chat/completions", _CHAT | {"model": "fft:tiny:JOB"}),
]


def named(template: Any, ids: Ids) -> Any:
    """The same with the ids in place of what stands for them."""
    text = json.dumps(template)
    for word, id in ids.items():
        text = text.replace(word, id)
    return json.loads(text)


def anonymous(text: str, ids: Ids) -> str:
    """An answer with what stands for the ids in their place, so that two can be compared."""
    for word, id in ids.items():
        text = text.replace(id, word)
    return text


@pytest.fixture
async def gateway(start_gateway) -> Running:
    return await start_gateway()


@pytest.fixture
async def organisation(gateway: Running, client_of) -> Callable:
    """Makes an organisation, and a user of it with every scope in it."""
    operator = await client_of(gateway)

    async def make(name: str) -> Client:
        made = (await operator.http.post("/api/organisations", json={"name": name})).json()
        return await client_of(gateway, made["first_key"]["key"])

    return make


async def belongings(owner: Client, bus_as, blobs, tmp_path) -> Ids:
    """A job that made a model and a checkpoint, a file, and keys; all of one organisation."""
    job = (await owner.submit())["id"]
    file = (await owner.http.post("/api/files", files={"file": ("a.jsonl", b'{"messages": []}\n')})).json()["id"]
    ready = FileReady(rows=1, messages=2, characters=3)
    await Publisher(await bus_as("files")).once(ready, org=owner.org, key=file, id=file)
    trainer, fence = await job_histories.begin(bus_as, owner.org, job, kind="sft")
    folder = tmp_path / job
    folder.mkdir()
    (folder / "model.txt").write_text("weights")
    tree, _ = await blobs.put_tree(f"orgs/{owner.org}/jobs/{job}/model", folder)
    publisher = Publisher(trainer)
    await job_histories.step(trainer, fence, 1)
    published = ModelPublished(model=ModelRef(id=f"fft:tiny:{job}", tree=tree), kind="full", step=1)
    await publisher.fenced(published, fence=fence, id="model")
    seq = await job_histories.succeed(trainer, fence, steps=1)
    async with asyncio.timeout(10):
        while (await owner.http.get(f"/api/jobs/{job}")).json()["last_seq"] < (seq or 0):
            pass
    key = (await owner.http.post("/api/keys", json={"name": "second"})).json()["id"]
    env = (await owner.http.post("/api/environment-keys", json={"key": "env_of_the_owner"})).json()["id"]
    judge_key = {"name": "owners-secret", "key": "sk", "url": "https://api.example.com/v1"}
    assert (await owner.http.post("/api/judge-keys", json=judge_key)).status_code == 201
    return {"JOB": job, "FILE": file, "KEY": key, "ENV": env, "SECRET": "owners-secret", "ORG": owner.org}


async def asked(user: Client, attempt: tuple[str, str, Any], ids: Ids) -> httpx.Response:
    method, path, body = attempt
    return await user.http.request(method, named(path, ids), json=named(body, ids) if body else None)


async def test_whatever_is_tried_with_anothers_ids_is_answered_as_for_ids_of_nothing(
    organisation, bus_as, blobs, tmp_path
):
    owner, stranger = await organisation("owner"), await organisation("stranger")
    ids = await belongings(owner, bus_as, blobs, tmp_path)
    assert len(ATTEMPTS) > 50
    for attempt in ATTEMPTS:
        theirs, nothing = await asked(stranger, attempt, ids), await asked(stranger, attempt, NOTHING)
        assert theirs.status_code == 404, (attempt, theirs.status_code, theirs.text)
        assert "there is no" in theirs.text, (attempt, theirs.text)
        assert nothing.status_code == 404, (attempt, nothing.text)
        assert anonymous(theirs.text, ids) == anonymous(nothing.text, NOTHING), attempt
        assert "authorization" not in theirs.headers
    # What was tried has changed nothing; and every attempt is one that its owner may make.
    for attempt in sorted(ATTEMPTS, key=lambda a: a[0] == "DELETE"):
        own = await asked(owner, attempt, ids)
        assert "there is no" not in own.text or attempt[0] == "DELETE", (attempt, own.status_code, own.text)


async def test_no_list_and_no_stream_shows_what_is_anothers(organisation, bus_as, blobs, tmp_path):
    owner, stranger = await organisation("owner"), await organisation("stranger")
    ids = await belongings(owner, bus_as, blobs, tmp_path)
    own = (await stranger.submit())["id"]
    lists = [
        *("/api/jobs", "/api/files", "/api/models", "/api/keys", "/api/environment-keys", "/api/learning/jobs"),
        *("/api/rl/jobs", "/api/sft/jobs", "/api/learning/models", "/api/learning/models/rl", "/v1/files"),
        *("/v1/fine_tuning/jobs", "/v1/models", "/api/inference/v1/models", "/api/v1/files"),
    ]
    for path in lists:
        shown = await stranger.http.get(path)
        assert shown.status_code == 200, (path, shown.text)
        assert not [id for id in ids.values() if id in shown.text], path
    seen = ""
    async with asyncio.timeout(10), stranger.http.stream("GET", "/api/events", params={"after": 0}) as events:
        async for line in events.aiter_lines():
            seen += line
            if own in line:
                break
    assert not [id for id in ids.values() if id in seen]


async def test_a_job_that_names_what_is_anothers_is_refused_as_for_ids_of_nothing(
    organisation, bus_as, blobs, tmp_path, settings_of
):
    owner, stranger = await organisation("owner"), await organisation("stranger")
    ids = await belongings(owner, bus_as, blobs, tmp_path)
    verifier = await bus_as("verifier")
    registry = Registry(settings_of("verifier").models_dir)

    async def refusal(org: str, given: Ids) -> list[str]:
        said: list[str] = []
        stop = asyncio.Event()
        for role in ("training_file", "validation_file"):
            try:
                await wait_for_file(verifier, org, given["FILE"], role=role, timeout=1, stop=stop)
            except UserError as error:
                said.append(anonymous(str(error), given))
        for model in ("fft:tiny:JOB", "ft:tiny:JOB"):
            try:
                await find_model(verifier, org, named(model, given), registry)
            except UserError as error:
                said.append(anonymous(str(error), given))
        return said

    assert await refusal(owner.org, ids) == []
    theirs = await refusal(stranger.org, ids)
    assert len(theirs) == 4
    assert theirs == await refusal(stranger.org, NOTHING)

    uploaded = await stranger.http.post("/api/files", files={"file": ("b.jsonl", b"{}\n")})
    base, own = "Qwen/Qwen3-0.6B", uploaded.json()["id"]
    for body in ({"training_file": "FILE"}, {"training_file": own, "validation_file": "FILE"}):
        replies = [
            await stranger.http.post("/v1/fine_tuning/jobs", json=named({"model": base} | body, given))
            for given in (ids, NOTHING)
        ]
        assert {reply.status_code for reply in replies} == {400}
        assert "there is no file" in replies[0].text
        assert anonymous(replies[0].text, ids) == anonymous(replies[1].text, NOTHING)


async def test_a_credential_of_a_rollout_cannot_be_made_up_or_changed(organisation, gateway):
    owner, stranger = await organisation("owner"), await organisation("stranger")
    job = (await owner.submit())["id"]
    cid = Cid(rollout_id=f"{job}_t1_0", nonce=1, replica="r-1", version=None, calls=9, ends=2**40, expires=2**40)
    signed = mint_cid(cid, credentials())
    # The signed one is let through to the replica, which is not there.
    assert (await stranger.http.post(f"/v1/chat/completions?cid={signed}", json=_CHAT)).status_code == 503
    own = (await stranger.submit())["id"]
    changed = signed.replace(job.encode().hex(), own.encode().hex())
    for made_up in (
        mint_cid(cid, credentials("another cluster secret")),
        changed,
        signed[:-1],
        "trace_1",
        "x",
        signed + "_0",
    ):
        for headers in ({}, {"Authorization": ""}):
            reply = await stranger.http.post(f"/v1/chat/completions?cid={made_up}", json=_CHAT, headers=headers)
            assert reply.status_code == 401, made_up
            assert job not in reply.text
