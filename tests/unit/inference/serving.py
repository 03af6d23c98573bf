"""An inference process without a bus: one engine as the policy of every rollout and as the model `tiny`."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request

from synth.errors import Problem, Transient, UserError
from synth.inference.chat import ChatFormat
from synth.inference.completion import PolicyBinding
from synth.inference.engines.protocol import Engine
from synth.inference.openai_api import build_api
from synth.inference.policies import Loaded
from synth.inference.recorder import Recorder
from synth.inference.requests import JobSampling
from synth.keys import Cid, InvalidKey, mint_cid, read_cid

SECRET, TOKEN, KEY = "cluster", "internal", "synth_live_x"


class OneModel:
    def __init__(self, engine: Engine, chat: ChatFormat) -> None:
        self.loaded = Loaded(engine, chat)
        self.sampling = JobSampling(temperature=1.0, max_tokens=24)

    @asynccontextmanager
    async def for_rollout(self, cid: Cid) -> AsyncIterator[PolicyBinding]:
        if cid.version is not None:
            raise Transient(f"policy version {cid.version} is not loaded")
        yield PolicyBinding(self.loaded.engine, self.loaded.chat, "policy", self.sampling)

    @asynccontextmanager
    async def for_model(self, model: str, principal: str) -> AsyncIterator[PolicyBinding]:
        assert principal == "org_1"
        if model != "tiny":
            raise UserError(Problem(what=f"no model {model!r}", expected="tiny", where="model"))
        yield PolicyBinding(self.loaded.engine, self.loaded.chat, model)

    async def models(self, principal: str) -> list[str]:
        return ["tiny"]


async def authenticate(request: Request) -> str:
    if request.headers.get("authorization") != f"Bearer {KEY}":
        raise InvalidKey("no such API key")
    return "org_1"


def serve(engine: Engine, chat: ChatFormat) -> tuple[Starlette, Recorder, OneModel]:
    recorder = Recorder(lambda text: read_cid(text, SECRET, now=0))
    router = OneModel(engine, chat)
    return build_api(router, recorder, authenticate, internal_token=TOKEN, timeout=30), recorder, router


def credential(rollout: str = "job_1_t0_0", *, calls: int = 50, version: int | None = None, seconds: int = 600) -> str:
    expires = int(time.time()) + seconds
    return mint_cid(
        Cid(rollout_id=rollout, attempt=1, replica="r", version=version, calls=calls, expires=expires), SECRET
    )
