"""Jobs whose tasks cannot be queued: they do not wait for ever, and can be resumed once the cause is gone."""

from __future__ import annotations

import pytest

from synth.bus.history.job_log import append_decided, read_job, start_attempt
from synth.events import JobParked, JobPaused, JobResumed, JobValidated, JobVerified, ModelRef
from synth.ids import new_job_id, new_org_id
from synth.jobs.lifecycle import State
from tests.service.jobs import RL, create, wait_for
from tests.service.process import running


@pytest.fixture
def verifier(settings_of, bus_admin, tmp_path):
    """Not the one of other tests: it is started when the job's log is as the test needs it."""

    def start():
        return running("verifier", settings_of("verifier"), tmp_path / "log")

    return start


async def verified(bus_as, org: str, job: str) -> None:
    """A job that a version verified whose jobs this one cannot read."""
    await create(await bus_as("gateway"), org, job, RL)
    strange = JobValidated(job={"kind": "of another version"}, origins={}, warnings=[])
    await append_decided(await bus_as("validator"), org, job, lambda _: strange)
    source = JobVerified(source=ModelRef(id="tiny", path="tiny"))
    await append_decided(await bus_as("verifier"), org, job, lambda _: source)


async def test_a_verified_job_whose_tasks_cannot_be_queued_is_parked_with_its_dead_letter(verifier, bus_as):
    org, job = new_org_id(), new_job_id()
    await verified(bus_as, org, job)
    gateway = await bus_as("gateway")
    with verifier():
        parked = (await wait_for(gateway, f"job.*.{org}.{job}", "job.parked", timeout=60)).event
    assert isinstance(parked, JobParked)
    assert "was validated by another version" in parked.problem.what
    assert parked.problem.where.startswith("verifier, dead letter ")
    assert (await read_job(gateway, org, job)).state is State.PAUSED


async def test_a_resumed_job_whose_tasks_cannot_be_queued_is_parked_and_can_be_resumed_again(verifier, bus_as):
    org, job = new_org_id(), new_job_id()
    await verified(bus_as, org, job)
    gateway, owner = await bus_as("gateway"), await bus_as("rollouts")
    await start_attempt(owner, org, job, worker="w")
    await append_decided(owner, org, job, lambda _: JobPaused(step=0))
    await append_decided(gateway, org, job, lambda _: JobResumed())
    with verifier():
        first = await wait_for(gateway, f"job.parked.{org}.{job}", "job.parked", timeout=60)
        await append_decided(gateway, org, job, lambda _: JobResumed())
        again = await wait_for(gateway, f"job.parked.{org}.{job}", "job.parked", timeout=60, after=first.seq)
    assert isinstance(again.event, JobParked)
    history = await read_job(gateway, org, job)
    assert (history.state, history.term) == (State.PAUSED, 2)
