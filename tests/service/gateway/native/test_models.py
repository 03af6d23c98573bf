"""Models and their files, and inference on its way to a replica."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import time
from collections.abc import AsyncIterator

import msgspec
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from synth.api.sse import SseReader
from synth.bus.kv.replicas import Replica, ReplicaTable, announce
from synth.bus.publish import Publisher
from synth.events import ModelPublished, ModelRef
from synth.gateway.chat_proxy.affinity import ChatRoute
from synth.gateway.chat_proxy.proxy import InferenceProxy
from synth.gateway.errors import ApiError
from synth.keys import Cid, mint_cid
from synth.service_secrets import Purpose
from tests.keyrings import calls_of, credentials, secrets_of, verifier_of
from tests.service.gateway import job_histories
from tests.service.gateway.conftest import Server, listen


class Echo:
    """An HTTP server in a replica's place, that says what reached it.

    full: it has no room for calls. breaks: it ends while it is answering one. cuts: its streams break off.
    """

    server: uvicorn.Server
    host: str

    def __init__(self) -> None:
        self.calls = 0
        self.full = self.breaks = self.cuts = False
        self.waiting, self.hung_up = asyncio.Event(), asyncio.Event()
        paths = ("/v1/chat/completions", "/v1/responses")
        self.open: set[str] = set()
        routes = [Route(path, self.chat, methods=["POST"]) for path in paths]
        self.app = Starlette(routes=[*routes, Route("/internal/rollouts/credential", self.credential)])

    async def chat(self, request: Request):
        body = json.loads(await request.body())
        self.calls += 1
        if self.full:
            return JSONResponse({"error": "full"}, 503, headers={"retry-after": "1"})
        if self.breaks:
            # As of a process that dies at work: its connections end without an answer.
            for connection in list(self.server.server_state.connections):
                connection.transport.abort()
        if body.get("stream"):
            return StreamingResponse(self.endless(), media_type="text/event-stream")
        if body.get("wait"):
            self.waiting.set()
            while (await request.receive())["type"] != "http.disconnect":
                continue
            self.hung_up.set()
        heard = {"body": body, "headers": dict(request.headers), "query": str(request.query_params)}
        return JSONResponse(heard | {"path": request.url.path})

    async def credential(self, request: Request):
        if request.query_params["cid"] in self.open:
            return Response(status_code=204)
        return JSONResponse({"error": {"code": "rollout_closed"}}, 401)

    async def endless(self) -> AsyncIterator[bytes]:
        try:
            k = 0
            while True:
                yield b"data: %d\n\n" % k
                k += 1
                if self.cuts:
                    yield b"data: hal"
                    raise RuntimeError("the replica breaks off")
                await asyncio.sleep(0)
        finally:
            self.hung_up.set()


@pytest.fixture
async def replica(bus_as) -> AsyncIterator:
    """Starts such a server and announces it; ended at the end of the test."""
    running: list[tuple[uvicorn.Server, list[asyncio.Task[None]]]] = []

    async def start(id: str, *models: str, running_now: int = 0, url: str | None = None) -> Echo:
        echo, listening = Echo(), listen()
        server = Server(uvicorn.Config(echo.app, log_config=None, lifespan="off", timeout_graceful_shutdown=1))
        echo.server, echo.host = server, f"127.0.0.1:{listening.getsockname()[1]}"
        url = url or f"http://{echo.host}"
        said = Replica(id=id, boot="1", url=url, pool="default", models=list(models), running=running_now)
        bus = await bus_as("inference")
        parts = [
            asyncio.create_task(server.serve(sockets=[listening])),
            asyncio.create_task(announce(bus, lambda: said, asyncio.Event())),
        ]
        running.append((server, parts))
        return echo

    yield start
    for server, (serving, announcing) in running:
        server.should_exit = True
        announcing.cancel()
        await asyncio.wait([serving, announcing], timeout=5)


async def chat_until_ok(user, path: str = "/v1/chat/completions", **body: object):
    """Ask until a replica is in the routing table."""
    async with asyncio.timeout(10):
        while (reply := await user.http.post(path, json={"messages": []} | body)).status_code == 503:
            assert reply.headers["retry-after"]
    return reply


async def test_a_published_model_is_listed_and_downloaded(user, bus_as, blobs, tmp_path, settings_of):
    id = (await user.submit())["id"]
    trainer, fence = await job_histories.begin(bus_as, user.org, id)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"w" * 10_000_000)
    tree, manifest = await blobs.put_tree(f"orgs/{user.org}/models/{id}", folder)
    name = f"rl:Qwen/Qwen3-0.6B:{id}"
    event = ModelPublished(model=ModelRef(id=name, tree=tree), kind="full", step=3)
    await Publisher(trainer).fenced(event, fence=fence, id="m")
    await job_histories.succeed(trainer, fence, steps=3)
    base = settings_of("gateway").models_dir / "tiny-base"
    base.mkdir(parents=True, exist_ok=True)
    (base / "config.json").write_text('{"model_type": "qwen3"}')
    await user.http.post(f"/api/jobs/{(await user.submit())['id']}/cancel")
    for path in ("/api/models", "/v1/models"):
        listed = [m["id"] for m in (await user.http.get(path)).json()["data"]]
        # Behind it stand the bases of this machine, some of them other tests'.
        assert listed[0] == name
        assert "tiny-base" in listed[1:]
        assert not [id for id in listed[1:] if ":" in id]
    model = (await user.http.get(f"/api/models/{name}")).json()
    assert (model["job_id"], model["kind"], model["step"]) == (id, "full", 3)
    files = (await user.http.get("/api/model-files", params={"model": name})).json()["data"]
    assert {f["name"]: f["sha256"] for f in files} == {n: r.sha256 for n, r in manifest.files.items()}
    spelled = await user.http.get("/api/model-files", params={"model": name.lower().replace("rl:", "ft:", 1)})
    assert spelled.json()["data"] == files
    params = {"model": name, "name": "model.safetensors"}
    reply = await user.http.get("/api/model-files/content", params=params)
    assert reply.content == b"w" * 10_000_000
    for bad in ({"model": name, "name": "../config.json"}, {"model": "rl:x:job_0", "name": "config.json"}):
        assert (await user.http.get("/api/model-files/content", params=bad)).status_code == 404


async def test_a_base_is_downloaded_from_its_folder_and_nothing_beside_it(user, settings_of):
    models = settings_of("gateway").models_dir
    base = models / "whole-base"
    base.mkdir(parents=True, exist_ok=True)
    (models / "secret.txt").write_text("beside it")
    files = {"config.json": b'{"model_type": "qwen3"}', "model.safetensors": b"w" * 3_000_000}
    for name, body in files.items():
        (base / name).write_bytes(body)

    async def digests() -> dict[str, str]:
        listed = (await user.http.get("/api/model-files", params={"model": "whole-base"})).json()["data"]
        return {f["name"]: f["sha256"] for f in listed}

    assert await digests() == {name: hashlib.sha256(body).hexdigest() for name, body in files.items()}
    for name, body in files.items():
        reply = await user.http.get("/api/model-files/content", params={"model": "whole-base", "name": name})
        assert reply.content == body
    files["model.safetensors"] = b"v" * 3_000_001
    (base / "model.safetensors").write_bytes(files["model.safetensors"])
    assert await digests() == {name: hashlib.sha256(body).hexdigest() for name, body in files.items()}
    for name in ("../secret.txt", "nothing", str(models / "secret.txt")):
        params = {"model": "whole-base", "name": name}
        assert (await user.http.get("/api/model-files/content", params=params)).status_code == 404
    reply = await user.http.get("/api/model-files", params={"model": "nobody/nothing"})
    assert reply.status_code == 404
    reply = await user.http.get("/api/model-files", params={"model": "Qwen/Qwen3-0.6B"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (409, "no_weights")


async def test_a_chat_that_nobody_can_answer_says_when_to_try_again(settings_of, bus_as):
    bus = await bus_as("gateway")
    proxy = InferenceProxy(ReplicaTable(bus), secrets=secrets_of("gateway"), calls=calls_of("gateway"), timeout_s=1)
    with pytest.raises(ApiError, match="no inference replica") as refused:
        await proxy.forward(Request({"type": "http", "headers": []}), b"{}", org="org_1", route=ChatRoute("m", b""))
    assert refused.value.status == 503
    assert refused.value.retry_after


async def test_a_chat_goes_to_the_replica_that_serves_the_model(user, replica):
    await replica("busy", "tiny-a", running_now=9)
    await replica("idle", "tiny-b")
    reply = await chat_until_ok(user, model="tiny-a", n=1)
    said = reply.json()
    assert said["body"] == {"model": "tiny-a", "messages": [], "n": 1}
    assert said["headers"]["x-synth-org"] == user.org
    verifier = verifier_of("busy-1")
    verifier.verify(said["headers"]["authorization"], user.org, of=(Purpose.GATEWAY_CALLS,))
    assert user.key not in reply.text


async def test_a_replica_that_is_gone_is_passed_over(user, replica):
    await replica("gone", "tiny-c", url="http://127.0.0.1:1")
    await replica("there")
    assert (await chat_until_ok(user, model="tiny-c")).status_code == 200


async def chat(user, model: str, first: str, *more: str, **body: object) -> str:
    """One call of a conversation that begins like this; which replica has answered it."""
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": first}]
    messages += [{"role": "assistant" if i % 2 == 0 else "user", "content": text} for i, text in enumerate(more)]
    reply = await user.http.post("/v1/chat/completions", json={"model": model, "messages": messages} | body)
    assert reply.status_code == 200, reply.text
    return reply.json()["headers"]["host"]


async def replicas_of(user, replica, model: str) -> dict[str, Echo]:
    """Two replicas of a model, by their address, that the gateway knows."""
    both = [await replica(f"{model}-{name}", model) for name in ("one", "two")]
    async with asyncio.timeout(10):
        for i in itertools.count():
            if all(echo.calls for echo in both):
                break
            await chat_until_ok(user, model=model, prompt_cache_key=f"{i}")
    return {echo.host: echo for echo in both}


async def test_a_conversation_stays_at_its_replica_and_others_go_elsewhere(user, replica):
    both = await replicas_of(user, replica, "tiny-g")
    homes = {f"Question {i}": await chat(user, "tiny-g", f"Question {i}") for i in range(16)}
    assert set(homes.values()) == set(both)
    for first, home in homes.items():
        assert await chat(user, "tiny-g", first, "An answer.", "And then?") == home
    named = {await chat(user, "tiny-g", f"Question {i}", prompt_cache_key="mine") for i in range(8)}
    assert len(named) == 1


@pytest.mark.parametrize("fault", ["breaks", "full"])
async def test_a_call_that_nothing_was_answered_to_goes_to_the_next_replica(user, replica, fault: str):
    model = f"tiny-h-{fault}"
    both = await replicas_of(user, replica, model)
    home = await chat(user, model, "Where?")
    setattr(both[home], fault, True)
    [other] = set(both) - {home}
    asked = both[home].calls
    assert await chat(user, model, "Where?") == other
    assert both[home].calls == asked + 1
    setattr(both[other], fault, True)
    refused = await user.http.post("/v1/chat/completions", json={"model": model, "messages": []})
    assert refused.status_code == 503
    assert refused.headers["retry-after"]


async def test_a_stream_passes_through_and_a_hang_up_reaches_the_replica(user, replica):
    echo = await replica("streams", "tiny-d")
    await chat_until_ok(user, model="tiny-d")
    body = {"model": "tiny-d", "messages": [], "stream": True}
    async with user.http.stream("POST", "/v1/chat/completions", json=body) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        async for line in stream.aiter_lines():
            if line == "data: 5":
                break
    await asyncio.wait_for(echo.hung_up.wait(), 5)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_a_stream_that_its_replica_breaks_off_ends_with_an_error(user, replica, path: str):
    model = f"tiny-k-{path.rpartition('/')[2]}"
    echo = await replica(model, model)
    await chat_until_ok(user, model=model)
    echo.cuts = True
    reply = await user.http.post(path, json={"model": model, "messages": [], "input": "Hi", "stream": True})
    *_, last = [event for event in SseReader().feed(reply.content) if event is not None]
    assert "hal" not in reply.text  # half an event, which a client would have read
    assert last.event == ("error" if path == "/v1/responses" else "")
    assert json.loads(last.data)["error"]["code"] == "replica_gone"


async def test_the_responses_api_is_routed_as_a_chat_is(user, replica):
    await replica("responds", "tiny-l")
    await chat_until_ok(user, model="tiny-l")
    for path in ("/v1/responses", "/api/v1/responses", "/api/inference/v1/responses/", "/responses"):
        reply = await user.http.post(path, json={"model": "tiny-l", "input": [{"role": "user", "content": "Hi"}]})
        assert (reply.status_code, reply.json()["path"]) == (200, "/v1/responses"), path
    socket = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    assert (await user.http.get("/v1/responses", headers=socket)).status_code == 426
    assert (await user.http.get("/v1/responses")).status_code == 405


async def test_a_client_that_leaves_before_the_answer_frees_the_replica(user, replica):
    echo = await replica("waits", "tiny-e")
    await chat_until_ok(user, model="tiny-e")
    body = {"model": "tiny-e", "messages": [], "wait": True}
    asking = asyncio.create_task(user.http.post("/v1/chat/completions", json=body))
    await asyncio.wait_for(echo.waiting.wait(), 10)
    asking.cancel()
    await asyncio.wait_for(echo.hung_up.wait(), 10)


async def test_a_rollout_is_answered_by_the_replica_that_records_it(start_gateway, client_of, replica):
    running = await start_gateway()
    user = await client_of(running)
    await replica("records", "tiny-f", running_now=50)
    await chat_until_ok(user, model="tiny-f")
    ends = int(time.time()) + 60
    cid = Cid(rollout_id="job_1_t1_0", nonce=1, replica="records-1", version=None, calls=9, ends=ends, expires=ends)
    text = mint_cid(cid, credentials())
    user.http.headers.pop("Authorization")
    for query in (text, f"{text}/v1/chat/completions"):
        reply = await user.http.post("/v1/chat/completions", params={"cid": query}, json={"model": "any"})
        assert reply.status_code == 200
        assert reply.json()["query"] == f"cid={text}"
        assert "x-synth-org" not in reply.json()["headers"]
    own_key = {"Authorization": "Bearer unknown", "X-API-Key": "unknown"}
    paths = ("/chat/completions", "/api/v1/chat/completions", "/api/inference/v1/chat/completions")
    for path in paths:
        for name in ("cid", "trace", "trace_correlation_id"):
            reply = await user.http.post(path, params={name: text}, json={"model": "any"}, headers=own_key)
            assert reply.status_code == 200, (path, name)
            assert reply.json()["query"] == f"cid={text}"
    agents = ("/rollouts/{}/v1/chat/completions", "/rollouts/{}/chat/completions/")
    agents += tuple(f"{path}?cid={{}}chat/completions" for path in ("/v1/", "/v1/chat/completions/", "/api/v1/"))
    for path in agents:
        reply = await user.http.post(path.format(text), json={"model": "any"}, headers=own_key)
        assert (reply.status_code, path) == (200, path)
        assert reply.json()["query"] == f"cid={text}"
        assert "authorization" not in reply.json()["headers"]
    for path in (
        f"/rollouts/{text}/v1/responses",
        f"/v1/?cid={text}responses",
        f"/v1/chat/completions/?cid={text}responses",
    ):
        reply = await user.http.post(path, json={"model": "any"}, headers=own_key)
        assert (reply.json().get("path"), reply.json().get("query")) == ("/v1/responses", f"cid={text}"), path
    for path in ("/v1/chat/completions", "/chat/completions/", "/api/inference/v1/"):
        reply = await user.http.post(path, json={"model": "any"}, headers={"Authorization": f"Bearer {text}"})
        assert (reply.status_code, reply.json().get("query")) == (200, f"cid={text}"), path
    of_the_app = await user.http.post("/v1/chat/completions", params={"trace": "trace_mine"}, json={"model": "tiny-f"})
    assert of_the_app.status_code == 401
    assert "no API key" in of_the_app.json()["detail"]
    forged = text[:-1] + ("0" if text[-1] != "0" else "1")
    wrong = {"/v1/": {"cid": forged}, f"/rollouts/{forged}/v1/chat/completions": {}, "/v1/chat/completions/": {}}
    for path, params in wrong.items():
        as_key = {} if forged in path or params else {"Authorization": f"Bearer {forged}"}
        reply = await user.http.post(path, params=params, json={"model": "any"}, headers=as_key)
        assert reply.status_code == 401
        assert "as it was given, query included, or `ep.base_url` and `ep.api_key`" in reply.json()["detail"]
        assert forged not in reply.text
    metrics = (await user.http.get("/metrics")).text
    assert "/rollouts/{credential}/v1/chat/completions" in metrics
    assert text not in metrics
    assert forged not in metrics
    elsewhere = mint_cid(msgspec.structs.replace(cid, replica="records-0"), credentials())
    gone = await user.http.post("/v1/chat/completions", params={"cid": elsewhere}, json={"model": "any"})
    assert gone.status_code == 503


async def test_an_expired_credential_opens_nothing(start_gateway, client_of, replica):
    """Also not the gateway's memory: it is refused before its body."""
    user = await client_of(await start_gateway(max_request_bytes=1000))
    echo = await replica("expiring", "tiny-x")
    await chat_until_ok(user, model="tiny-x")
    ends = int(time.time()) - 1
    cid = Cid(rollout_id="job_1_t1_0", nonce=1, replica="expiring-1", version=None, calls=9, ends=ends, expires=ends)
    over, calls = mint_cid(cid, credentials()), echo.calls
    for content in (b"{}", b" " * 2000):
        reply = await user.http.post("/v1/chat/completions", params={"cid": over}, content=content)
        assert (reply.status_code, reply.json()["error"]["code"]) == (401, "rollout_closed")
    assert echo.calls == calls
    # The time that the policy was not given does not count, and the recorder alone knows it.
    echo.open.add(over)
    assert (await user.http.post("/v1/chat/completions", params={"cid": over}, json={"model": "x"})).status_code == 200


async def test_a_chat_that_names_no_model_is_refused(user):
    for content in (b"{}", b"nonsense", b'{"model": 3}'):
        reply = await user.http.post("/v1/chat/completions", content=content)
        assert reply.status_code == 400
        assert "model" in reply.json()["error"]["message"]
