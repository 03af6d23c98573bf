"""An inference process without a bus: one engine as the policy of every rollout and as the model `tiny`."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
from obstore.store import MemoryStore
from starlette.requests import Request
from starlette.types import ASGIApp

from synth.blobs import BlobStore
from synth.bus.kv.replicas import Replica
from synth.errors import InvalidKey, Problem, Transient, UserError
from synth.images.source import ImageLimits
from synth.inference.api.app import build_api
from synth.inference.api.images import ChatImages
from synth.inference.api.limits import RequestLimits
from synth.inference.api.prompt import ModelBinding
from synth.inference.api.requests import JobSampling
from synth.inference.chat.prompts import ChatFormat
from synth.inference.engines.protocol import Engine
from synth.inference.recording.recorder import Recorder
from synth.inference.serving.model_pool import ServedModel
from synth.keys import Cid, mint_cid, read_cid
from synth.outbound.http_guard import GuardPolicy, guarded_client
from synth.runtime.off_loop import OffLoop
from synth.service_secrets import Purpose
from synth.trajectories import CompletionRecord, closed_from_bytes, records_from_bytes
from tests.decoders import DECODER
from tests.keyrings import CLUSTER_SECRET, calls_of, secrets_of, verifier_of

EARLIER = "the secret before a rotation"
SECRETS, KEY = secrets_of("inference", CLUSTER_SECRET, EARLIER), "synth_live_x"
CREDENTIALS = SECRETS[Purpose.CREDENTIALS]
#: The process under test, as its callers name it.
RECEIVER = Replica(id="r", boot="1", url="http://test", pool="default", models=[])
VERIFIER = verifier_of(RECEIVER.recorder, CLUSTER_SECRET, EARLIER)
CHAT_BODY: dict[str, Any] = {"model": "whatever", "messages": [{"role": "user", "content": "What is 12 + 34?"}]}
API_KEY_HEADERS = {"Authorization": f"Bearer {KEY}"}


class OneModel:
    def __init__(self, engine: Engine, chat: ChatFormat) -> None:
        self.loaded = ServedModel(engine, chat)
        self.sampling = JobSampling(temperature=1.0, max_tokens=24)

    @asynccontextmanager
    async def for_rollout(self, cid: Cid) -> AsyncIterator[ModelBinding]:
        if cid.version is not None:
            raise Transient(f"policy version {cid.version} is not loaded")
        yield ModelBinding(self.loaded.engine, self.loaded.chat, "policy", "org_1", self.sampling)

    def org_of(self, cid: Cid) -> str:
        return "org_1"

    @asynccontextmanager
    async def for_model(self, model: str, principal: str) -> AsyncIterator[ModelBinding]:
        assert principal == "org_1"
        if model != "tiny":
            raise UserError(Problem(what=f"no model {model!r}", expected="tiny", where="model"))
        yield ModelBinding(self.loaded.engine, self.loaded.chat, model, "org_1")

    @asynccontextmanager
    async def for_teacher(self, job_id: str) -> AsyncIterator[Engine]:
        if job_id != "job_taught":
            raise Transient(f"the policy of {job_id} is not served here", delay=1)
        yield self.loaded.engine

    async def models(self, principal: str) -> list[str]:
        return ["tiny"]


async def authenticate(request: Request) -> str:
    if request.headers.get("authorization") != f"Bearer {KEY}":
        raise InvalidKey("no such API key")
    return "org_1"


def read_images(**settings: Any) -> ChatImages:
    """From this machine too; a store in memory."""
    limits = ImageLimits(**{"seconds": 5.0, **settings})
    client = guarded_client(GuardPolicy(allow_loopback=True), timeout=5)
    return ChatImages(client, BlobStore(MemoryStore(), None), replace(DECODER, limits=limits), at_once=4)


def serve(
    engine: Engine, chat: ChatFormat, limits: RequestLimits | None = None, images: ChatImages | None = None
) -> tuple[ASGIApp, Recorder, OneModel]:
    recorder = Recorder(lambda text: read_cid(text, CREDENTIALS, now=0))
    router = OneModel(engine, chat)
    app = build_api(
        router,
        recorder,
        authenticate,
        calls=VERIFIER,
        images=images or read_images(),
        off_loop=OffLoop(),
        limits=limits,
    )
    return app, recorder, router


def credential(rollout: str = "job_1_t0_0", *, calls: int = 50, version: int | None = None, seconds: int = 600) -> str:
    expires = int(time.time()) + seconds
    return mint_cid(
        Cid(rollout_id=rollout, nonce=1, replica="r", version=version, calls=calls, ends=expires, expires=expires),
        CREDENTIALS,
    )


class Served:
    """The app over one engine, called without a network."""

    def __init__(
        self,
        engine: Engine,
        chat: ChatFormat,
        limits: RequestLimits | None = None,
        images: ChatImages | None = None,
    ) -> None:
        self.engine = engine
        self.chat = chat
        self.images = images or read_images()
        self.app, self.recorder, self.router = serve(engine, chat, limits, self.images)
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://test")

    def change_template(self, change: Callable[[str], str]) -> None:
        """Serve the same engine with another chat template."""
        tokenizer = self.chat.tokenizer
        tokenizer.full.chat_template = change(tokenizer.full.chat_template)
        self.chat = ChatFormat(tokenizer)
        self.router.loaded = ServedModel(self.engine, self.chat)

    async def ask(self, cid: str | None, *, path: str = "/v1/chat/completions", **body: Any) -> httpx.Response:
        query = f"?cid={cid}" if cid else ""
        return await self.http.post(
            f"{path}{query}", json={**CHAT_BODY, **body}, headers={} if cid else API_KEY_HEADERS
        )

    async def chunks(self, cid: str | None, **body: Any) -> list[dict[str, Any]]:
        """The chunks of a streamed reply."""
        got = await self.ask(cid, stream=True, **body)
        events = [line.removeprefix("data: ") for line in got.text.split("\n\n") if line]
        assert events[-1] == "[DONE]", got.text
        return [json.loads(event) for event in events[:-1]]

    async def close(self, cid: str, authorization: str | None = None, job_id: str = "job_1") -> httpx.Response:
        token = calls_of("rollouts").authorization(RECEIVER.recorder, job_id)
        headers = {"authorization": token if authorization is None else authorization, "x-synth-job": job_id}
        return await self.http.post("/internal/rollouts/close", json={"cids": [cid]}, headers=headers)

    async def records(self, cid: str) -> list[CompletionRecord]:
        [closed] = closed_from_bytes((await self.close(cid)).content)
        return records_from_bytes(closed.records)
