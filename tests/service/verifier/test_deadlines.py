"""A verification ends: at its deadline, however many keys are stored, and with its job."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from synth.blobs import BlobStore
from synth.bus.history.job_log import append_decided, read_job
from synth.bus.kv.secrets import SecretStore
from synth.events import JobRefused, JobValidated, JobWithdrawn
from synth.fairness.slots import FairSlots
from synth.ids import new_org_id
from synth.jobs.lifecycle import State
from synth.models import Registry
from synth.outbound.answer_memory import AnswerMemory
from synth.outbound.http_guard import guarded_client
from synth.runtime.off_loop import OffLoop
from synth.verifier.handlers import VerifierHandlers
from synth.verifier.rendering import Rendering
from synth.verifier.settings import VerifierSettings
from tests.keyrings import secrets_of
from tests.service.jobs import make_model_dir
from tests.service.verifier.task_apps import Answer, Call, hang, scripted
from tests.service.verifier.test_verifier import EVAL, outcome, validated


@pytest.fixture(scope="module")
def models_dir(cluster_dir):
    return make_model_dir(cluster_dir)


@asynccontextmanager
async def verifying(bus_as, models_dir, org: str, job: str, **settings: float):
    """The handler at work on this job, in this process."""
    bus = await bus_as("verifier")
    options = VerifierSettings(allow_loopback=True, **settings)  # type: ignore[arg-type]
    async with guarded_client(options.guard, timeout=options.call_deadline_s) as client:
        secrets = SecretStore(bus, secrets_of("gateway"))
        registry = Registry(models_dir)
        rendering = Rendering(BlobStore.open(options.blob_url), registry, options, FairSlots(1))
        handlers = VerifierHandlers(
            bus,
            secrets,
            registry,
            client,
            options,
            asyncio.Event(),
            OffLoop(),
            AnswerMemory(1 << 30, wait_s=5),
            rendering,
        )
        following = asyncio.create_task(handlers.withdrawals.follow(bus))
        event = (await read_job(bus, org, job)).facts[1]
        assert isinstance(event.event, JobValidated)
        task = asyncio.create_task(handlers.job_validated(event, event.event))
        try:
            yield task
        finally:
            task.cancel()
            following.cancel()


async def test_keys_that_are_refused_slowly_have_one_deadline_together(bus_as, models_dir):
    org, gateway = new_org_id(), await bus_as("gateway")

    async def refuse_slowly(call: Call) -> Answer:
        await asyncio.sleep(0.3)
        return 403, b"no"

    async with scripted(refuse_slowly) as app:
        secrets = SecretStore(gateway, secrets_of("gateway"))
        for n in range(60):
            await secrets.add_environment_key(org, f"env_{n}", origin=app.url)
        org, job = await validated(bus_as, models_dir, EVAL, org=org, task_url=app.url)
        async with verifying(bus_as, models_dir, org, job, verify_within_s=1.0) as task:
            await asyncio.wait_for(task, 30)
    found = await outcome(gateway, org, job)
    assert isinstance(found, JobRefused)
    [problem] = found.problems
    assert "within 1 s (SYNTH_VERIFY_WITHIN_S); 60 keys are stored" in problem.what
    assert len(app.calls) < 60


def test_the_deadline_follows_from_what_the_job_needs():
    settings = VerifierSettings(call_deadline_s=7, retry_for_s=3)
    assert [settings.task_app_within_s(calls=n) for n in (2, 3)] == [24, 31]


async def test_a_job_that_is_cancelled_is_verified_no_further(bus_as, models_dir):
    gateway, asked = await bus_as("gateway"), asyncio.Event()

    async def ask_and_hang(call: Call) -> Answer:
        asked.set()
        return await hang(call)

    async with scripted(ask_and_hang) as app:
        org, job = await validated(bus_as, models_dir, EVAL, task_url=app.url)
        async with verifying(bus_as, models_dir, org, job, call_deadline_s=600) as task:
            await asyncio.wait_for(asked.wait(), 30)
            await append_decided(gateway, org, job, lambda _: JobWithdrawn())
            await asyncio.wait_for(task, 30)
    assert (await read_job(gateway, org, job)).state is State.CANCELLED
