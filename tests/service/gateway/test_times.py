"""How long jobs waited and ran: the same true seconds in every API and on the command line."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from typer.testing import CliRunner

from synth.bus.history.job_log import append_as_owner, start_attempt
from synth.bus.publish import Fence, Publisher
from synth.bus.replay import replay
from synth.cli.app import app
from synth.errors import Problem
from synth.events import BlobRef, CheckpointSaved, JobFailed, JobPaused, JobSucceeded, ModelRef
from tests.service.gateway import job_histories
from tests.service.gateway.conftest import Client
from tests.service.gateway.openai.sdk_jobs import sdk_of
from tests.service.gateway.wait import wait_until_shown

TREE = BlobRef(uri="blob://jobs/x/checkpoint", size=7, sha256="0")


async def paused_and_resumed(user: Client, bus_as: Any) -> str:
    """A job that ran, was paused, waited again, ran again and succeeded."""
    id = (await user.submit())["id"]
    trainer, fence = await job_histories.begin(bus_as, user.org, id)
    assert (await user.http.post(f"/api/jobs/{id}/pause")).status_code == 202
    _, seq = await append_as_owner(trainer, fence, lambda _: JobPaused(step=0))
    await wait_until_shown(user, seq or 0)
    assert (await user.http.post(f"/api/jobs/{id}/resume")).status_code == 202
    await run_to(user, trainer, id, JobSucceeded(steps=1, model=f"rl:tiny:{id}"), term=1)
    return id


async def failed(user: Client, bus_as: Any) -> str:
    """A job that failed after its first checkpoint."""
    id = (await user.submit())["id"]
    trainer, fence = await job_histories.begin(bus_as, user.org, id)
    model = ModelRef(id=f"rl:tiny:{id}:step_1", tree=TREE)
    saved = CheckpointSaved(step=1, version=1, attempt=fence.attempt, tree=TREE, size=7, model=model)
    await Publisher(trainer).fenced(saved, fence=fence, id="1")
    await end(user, trainer, fence, JobFailed(code="x", problem=Problem(what="it broke")))
    return id


async def continued(user: Client, bus_as: Any, job: str) -> str:
    """The job that goes on from a failed one, and succeeds."""
    id = (await user.http.post(f"/api/jobs/{job}/resume")).json()["id"]
    await job_histories.verify(bus_as, user.org, id)
    await run_to(user, await bus_as("trainer"), id, JobSucceeded(steps=2, model=f"rl:tiny:{id}"))
    return id


async def run_to(user: Client, trainer: Any, id: str, last: JobSucceeded, *, term: int = 0) -> None:
    _, fence = await start_attempt(trainer, user.org, id, worker="w", term=term)
    assert fence is not None
    await end(user, trainer, fence, last)


async def end(user: Client, trainer: Any, fence: Fence, last: JobSucceeded | JobFailed) -> None:
    _, seq = await append_as_owner(trainer, fence, lambda _: last)
    assert seq is not None
    await wait_until_shown(user, seq)


async def times_in_the_log(bus_as: Any, org: str, job: str) -> tuple[float, float]:
    """Seconds queued and seconds run, by the bus's own clock."""
    facts = await replay(await bus_as("gateway"), [f"job.*.{org}.{job}"])
    turns = [(fact.type, fact.time) for fact in facts if fact.type not in ("job.validated", "job.verified")]
    spent = {"queued": timedelta(), "ran": timedelta()}
    for (type, since), (_, until) in pairwise(turns):
        phase = {"job.created": "queued", "job.resumed": "queued", "job.paused": None}.get(type, "ran")
        if phase:
            spent[phase] += until - since
    return spent["queued"].total_seconds(), spent["ran"].total_seconds()


async def test_a_paused_a_failed_and_a_continued_job_show_the_same_true_times_everywhere(user: Client, bus_as: Any):
    paused, broken = await paused_and_resumed(user, bus_as), await failed(user, bus_as)
    went_on = await continued(user, bus_as, broken)
    ended = [paused, broken, went_on]
    waiting = (await user.submit())["id"]

    def on_the_command_line(*arguments: str) -> str:
        env = {"SYNTH_API_KEY": user.key, "BACKEND_BASE_URL": str(user.http.base_url)}
        done = CliRunner().invoke(app, ["jobs", *arguments], env=env)
        assert done.exit_code == 0, done.output
        return done.stdout

    def table(text: str, *labels: str) -> dict[str, list[str]]:
        rows = [line.split("\t") for line in text.splitlines()]
        return {label: next(row[1:] for row in rows if row[0] == label) for label in labels}

    true = [await times_in_the_log(bus_as, user.org, job) for job in ended]
    compared = table(await asyncio.to_thread(on_the_command_line, "compare", *ended), "queued", "ran", "continues")
    assert compared.pop("continues") == ["-", "-", broken]
    async with sdk_of(user) as sdk:
        for at, job in enumerate(ended):
            seconds = pytest.approx(true[at], abs=1e-3)
            assert min(true[at]) > 0
            openai = (await sdk.fine_tuning.jobs.retrieve(job)).model_dump()
            status = (await user.http.get(f"/api/learning/jobs/{job}/status")).json()
            shown = table(await asyncio.to_thread(on_the_command_line, "get", job), "queued", "ran")
            assert (openai["queued_seconds"], openai["execution_time"]) == seconds
            assert (status["queued_seconds"], status["execution_time"]) == seconds
            assert (float(shown["queued"][0]), float(shown["ran"][0])) == seconds
            assert (float(compared["queued"][at]), float(compared["ran"][at])) == seconds
        # The job that goes on counts its own times alone, and names the one that failed.
        assert (await sdk.fine_tuning.jobs.retrieve(went_on)).model_dump()["linked_job_id"] == broken
        assert (await user.http.get(f"/api/rl/jobs/{went_on}")).json()["linked_job_id"] == broken
        linked = table(await asyncio.to_thread(on_the_command_line, "get", went_on), "continues")
        assert linked == {"continues": [broken]}
        # The one that waits has waited since its submission, and has not run.
        looks = [
            float(table(await asyncio.to_thread(on_the_command_line, "get", waiting), "queued")["queued"][0]),
            (await user.http.get(f"/api/learning/jobs/{waiting}/status")).json()["queued_seconds"],
            (await sdk.fine_tuning.jobs.retrieve(waiting)).model_dump()["queued_seconds"],
        ]
        assert 0 < looks[0] < looks[1] < looks[2]
        assert (await sdk.fine_tuning.jobs.retrieve(waiting)).model_dump()["execution_time"] == 0
