"""What the lists have to show: jobs with tags and metadata, files with bad lines, a job with many steps and traces."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from typing import Any

from synth.bus.connection import Connection, connect
from synth.bus.history.job_log import start_attempt
from synth.bus.publish import Publisher
from synth.datasets.check import PROBLEMS_KEPT
from synth.events import BlobRef, RolloutCompleted, TrainStep
from synth.gateway.presentation.vocabulary import HEADLINE_METRICS
from synth.gateway.settings import GatewaySettings
from tests.service.jobs import unclaimed
from tests.soak.hostile.attacks import Ring
from tests.soak.hostile.job_texts import GOOD_JOB
from tests.soak.hostile.target import MODEL, post, upload
from tests.soak.waiting import until

_CONDITIONS = GatewaySettings().list_conditions
_TAGGED, _DESCRIBED, _FILES, _STEPS, _TRACES = 200, 40, 600, 3000, 2000
#: Metrics of a step beside the headline ones.
_METRICS = 50
_AT_ONCE = 8
_ROWS = b'{"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]}\n'
#: Bytes of the tags of a job, and of its text beside them.
_TAG_BYTES, _TEXT_BYTES = 15_000, 100_000
_HISTORY_S = 120.0


async def make_history(ring: Ring) -> str:
    """Make everything; returns the job with many steps, the first of the known jobs."""
    file = str((await upload(ring.http, "rows.jsonl", _ROWS)).raise_for_status().json()["id"])
    ring.known += await _at_once(lambda i: _create_tagged(ring, file if i % 8 == 0 else "file_x"), range(_TAGGED))
    await _at_once(lambda i: _create_described(ring, file), range(_DESCRIBED))
    await _at_once(lambda i: _upload_bad(ring, i), range(_FILES))
    job = ring.known[0]
    await ring.target.verified_or_ended(job)
    await _append_history(ring, job)

    async def is_projected() -> bool:
        page = await ring.http.get(f"/api/jobs/{job}/metrics", params={"after_step": _STEPS - 1})
        traces = await ring.http.get("/api/traces", params={"job": job, "seed": _TRACES - 1})
        return bool(page.json()["points"]) and bool(traces.json()["data"])

    await until(is_projected, seconds=_HISTORY_S, what="the gateway has projected the history")
    return job


def tags() -> dict[str, str]:
    """The tags of each tagged job, beside a long one."""
    return {f"t{i}": f"v{i}" for i in range(_CONDITIONS)}


def pairs() -> dict[str, str]:
    """The metadata of each described job."""
    return {f"m{i}": f"v{i}" for i in range(min(_CONDITIONS, 16))}


async def _at_once(make: Callable[[int], Awaitable[str]], numbers: Iterable[int]) -> list[str]:
    places = asyncio.Semaphore(_AT_ONCE)

    async def one(number: int) -> str:
        async with places:
            return await make(number)

    return await asyncio.gather(*map(one, numbers))


async def _create_tagged(ring: Ring, file: str) -> str:
    listed = "".join(f'{name} = "{value}"\n' for name, value in tags().items())
    text = f'# {"x" * _TEXT_BYTES}\n{GOOD_JOB % file}[tags]\n{listed}long = "{"x" * _TAG_BYTES}"\n'
    return str((await post(ring.http, "/api/jobs", {"config": text})).raise_for_status().json()["id"])


async def _create_described(ring: Ring, file: str) -> str:
    body: dict[str, Any] = {"model": MODEL, "training_file": file, "metadata": pairs()}
    return str((await post(ring.http, "/v1/fine_tuning/jobs", body)).raise_for_status().json()["id"])


async def _upload_bad(ring: Ring, number: int) -> str:
    lines = b"".join(b"[%d, %d]\n" % (number, line) for line in range(PROBLEMS_KEPT))
    return str((await upload(ring.http, f"bad-{number}.jsonl", lines)).raise_for_status().json()["id"])


async def _append_history(ring: Ring, job: str) -> None:
    """Append the steps and the traces of a job as their services do."""
    org, rng = ring.target.org, random.Random(0)
    async with AsyncExitStack() as closing:

        async def open_as(service: str) -> Connection:
            bus = await connect(ring.target.bus.settings(service), service)
            closing.push_async_callback(bus.close)
            return bus

        trainer = await open_as("trainer")
        _, fence = await start_attempt(trainer, org, job, worker="w")
        assert fence is not None
        names = [*HEADLINE_METRICS, *(f"metric_{i}" for i in range(_METRICS))]
        for step in range(1, _STEPS + 1):
            values = {name: rng.random() for name in names}
            event = TrainStep(step=step, of=_STEPS, attempt=fence.attempt, values=values)
            await Publisher(trainer).fenced(event, fence=fence, id=str(step))
        collector, collection = Publisher(await open_as("rollouts")), unclaimed(org, job)
        for i in range(_TRACES):
            await collector.fenced(_trace(job, i), fence=collection, id=str(i))


def _trace(job: str, index: int) -> RolloutCompleted:
    blob = BlobRef(uri="blob://t", size=1, sha256="0")
    return RolloutCompleted(
        rollout_id=f"{job}_t1_{index}",
        iteration=1,
        mode="train",
        index=index,
        group=0,
        seed=index,
        reward=index / _TRACES,
        trajectory=blob,
        transcript=blob,
        traced=True,
        completion_tokens=3,
        calls=1,
        versions=(0, 0),
        seconds=0.1,
        tries=1,
    )
