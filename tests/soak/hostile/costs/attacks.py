"""The attacks by cost: one request at a time, each at the limits of the settings."""

from __future__ import annotations

import asyncio
import json
import math
import random
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Generic, TypeVar

import httpx

from tests.soak.hostile.attacks import EVALUATION, Attack, Ring, wrong_of
from tests.soak.hostile.costs.answers import costly_answers
from tests.soak.hostile.costs.bodies import costly_bodies
from tests.soak.hostile.costs.chats import schema_chats, template_chats
from tests.soak.hostile.costs.graders import grader_bodies, python_bodies
from tests.soak.hostile.costs.history import make_history
from tests.soak.hostile.costs.images import image_chats
from tests.soak.hostile.costs.job_files import costly_job_files
from tests.soak.hostile.costs.lists import costly_lists
from tests.soak.hostile.target import MODEL, VISION_MODEL, post, upload

_Case = TypeVar("_Case")
_CONTROL_S = 8.0
_GRADERS = "/v1/fine_tuning/alpha/graders"


class _Cases(Generic[_Case]):
    """Sends cases one after the other, each once."""

    def __init__(
        self,
        make: Callable[[Ring], Awaitable[Sequence[tuple[str, _Case]]]],
        send: Callable[[Ring, _Case], Awaitable[httpx.Response | str | None]],
    ) -> None:
        self._make = make
        self._send = send
        self._left: list[tuple[str, _Case]] = []

    async def prepare(self, ring: Ring) -> int:
        """Make the cases; returns their number."""
        self._left = list(await self._make(ring))
        return len(self._left)

    async def send(self, ring: Ring) -> str | None:
        """Send the next case; returns what was wrong."""
        name, case = self._left.pop(0)
        begun = time.monotonic()
        answer = await self._send(ring, case)
        wrong = wrong_of(answer, name) if isinstance(answer, httpx.Response) else answer
        status = (
            f"{answer.status_code} {len(answer.content):,} bytes {answer.text[:60]}"
            if isinstance(answer, httpx.Response)
            else wrong or "ended"
        )
        await ring.note(name, status, time.monotonic() - begun)
        return f"{name}: {wrong}" if wrong else None


async def _chat(ring: Ring, fields: dict[str, Any]) -> httpx.Response:
    if "input" in fields:
        return await post(ring.http, "/v1/responses", {"model": MODEL, "max_output_tokens": 4} | fields)
    return await post(ring.http, "/v1/chat/completions", {"model": MODEL, "max_tokens": 4} | fields)


async def _show(ring: Ring, fields: dict[str, Any]) -> httpx.Response:
    return await _chat(ring, {"model": VISION_MODEL} | fields)


async def _post(ring: Ring, sent: tuple[str, dict[str, Any]]) -> httpx.Response:
    return await post(ring.http, *sent)


async def _grade(ring: Ring, body: dict[str, Any]) -> httpx.Response:
    read = await post(ring.http, f"{_GRADERS}/validate", {"grader": body["grader"]})
    return read if wrong_of(read, "") else await post(ring.http, f"{_GRADERS}/run", body)


async def _check_job(ring: Ring, text: str) -> str | httpx.Response | None:
    """Look at the job file, and submit it: it is rejected."""
    read = await post(ring.http, "/api/jobs/check", {"config": text})
    if wrong_of(read, ""):
        return read
    reply = await post(ring.http, "/api/jobs", {"config": text})
    return await ring.ends(reply, text)


async def _list(ring: Ring, path: str) -> httpx.Response:
    return await ring.http.get(path)


async def _lists(ring: Ring) -> list[tuple[str, str]]:
    """The lists, once there is what they show."""
    if not ring.known:
        await make_history(ring)
    return costly_lists(ring.rng, ring.known)


def _seeded(
    cases: Callable[[random.Random], Sequence[tuple[str, _Case]]],
) -> Callable[[Ring], Awaitable[Sequence[tuple[str, _Case]]]]:
    async def made(ring: Ring) -> Sequence[tuple[str, _Case]]:
        return cases(ring.rng)

    return made


def _image_rows(rng: random.Random) -> list[tuple[str, bytes]]:
    """Training files with one row each, by the images that it shows."""
    return [
        (name, json.dumps({"messages": [*chat["messages"], {"role": "assistant", "content": "4"}]}).encode())
        for name, chat in image_chats(rng)
    ]


async def _upload(ring: Ring, row: bytes) -> str | None:
    return await ring.ends(await upload(ring.http, "images.jsonl", row), row)


async def _play(ring: Ring, answer: bytes) -> str | None:
    """An evaluation of one seed at a task app that answers so, and a look at the app."""
    ring.server.costly = answer
    try:
        read = await post(ring.http, "/api/rl/verify_task_app", {"endpoint_base_url": f"{ring.server.url}/verify"})
        if wrong := wrong_of(read, ring.server.url):
            return wrong
        text = EVALUATION.format(url=ring.server.url, start=ring.rng.randrange(1 << 30), own_scores="true", count=1)
        return await ring.ends(await post(ring.http, "/api/jobs", {"config": text}), text)
    finally:
        ring.server.costly = None


_CHATS = ("gateway", "inference")
_JOB_FILES = ("gateway", "validator", "verifier")


def _cost(cases: _Cases[Any], *services: str, **environment: str) -> Attack:
    return Attack(
        cases.send,
        services,
        prepare=cases.prepare,
        at_once=1,
        environment=environment,
        most_slower=3.0,
        most_growth=300 << 20,
        most_gap_s=0.2,
    )


async def _prepare_one(_: Ring) -> int:
    return 1


def _control(processes: int) -> Attack:
    """No attack: processes beside the platform that compute all the time, which shows what a busy machine costs."""

    async def compute(_: Ring) -> None:
        async with AsyncExitStack() as closing:
            for _process in range(processes):
                busy = await asyncio.create_subprocess_exec(sys.executable, "-c", "while True: pass")
                closing.push_async_callback(busy.wait)
                closing.callback(busy.kill)
            await asyncio.sleep(_CONTROL_S)

    return Attack(compute, (*_CHATS, *_JOB_FILES), environment={}, most_slower=math.inf, prepare=_prepare_one)


#: Kind → how it is sent.
COSTS: dict[str, Attack] = {
    "two busy processes": _control(2),
    "cost of schemas": _cost(_Cases(_seeded(schema_chats), _chat), *_CHATS),
    "cost of templates": _cost(_Cases(_seeded(template_chats), _chat), *_CHATS),
    "cost of images": _cost(_Cases(_seeded(image_chats), _show), *_CHATS),
    "cost of image files": _cost(_Cases(_seeded(_image_rows), _upload), "gateway", "files"),
    "cost of graders": _cost(_Cases(_seeded(grader_bodies), _grade), "gateway", "judge"),
    "cost of refused code": _cost(_Cases(_seeded(python_bodies), _grade), "gateway"),
    "cost of bodies": _cost(_Cases(_seeded(costly_bodies), _post), "gateway", "judge"),
    "cost of lists": _cost(_Cases(_lists, _list), *_JOB_FILES, "files"),
    "cost of job files": _cost(_Cases(_seeded(costly_job_files), _check_job), *_JOB_FILES),
    "cost of answers": _cost(
        _Cases(_seeded(lambda rng: costly_answers()), _play), *_JOB_FILES, "rollouts", "inference"
    ),
    "cost of code": _cost(
        _Cases(_seeded(python_bodies), _grade),
        "gateway",
        SYNTH_PYTHON_GRADERS="true",
        # A grader without an end is ended sooner.
        SYNTH_PYTHON_GRADER_TIMEOUT_S="2",
    ),
}
