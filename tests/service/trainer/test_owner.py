"""The owner of a train task, without its training: which attempts it begins, and how it ends them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from synth.blobs import BlobStore, StoreAbsent
from synth.bus.history.job_log import JobHistory, append_decided, read_job, start_attempt
from synth.bus.kv.task_failures import TaskFailures
from synth.bus.publish import Publisher
from synth.bus.tasks.lease import Lease
from synth.errors import Transient
from synth.events import (
    BlobRef,
    CheckpointSaved,
    JobCancelRequested,
    JobCreated,
    JobFailed,
    JobPaused,
    JobPauseRequested,
    JobResumed,
    JobStarted,
    JobSucceeded,
    JobValidated,
    JobVerified,
    ModelRef,
)
from synth.events.catalogue import Event
from synth.ids import new_job_id, new_org_id
from synth.jobs.lifecycle import State
from synth.methods.base import TrainingJob
from synth.models import Registry
from synth.trainer.owner.attempt import Attempt
from synth.trainer.owner.owner import TrainTaskOwner
from synth.trainer.settings import TrainerSettings
from synth.validator.validate import validate
from synth.work import Task
from tests.service.jobs import SFT, make_model_dir

Training = Callable[[Attempt], Awaitable[JobSucceeded | JobPaused]]


class OwnedJob:
    """A verified job, and the trainers that are given its tasks."""

    def __init__(self, bus_as, blobs: BlobStore, settings: TrainerSettings) -> None:
        self.org, self.job = new_org_id(), new_job_id()
        self._bus_as = bus_as
        self._blobs = blobs
        self._settings = settings

    async def append(self, *facts: Event, by: str = "gateway") -> None:
        bus = await self._bus_as(by)
        for fact in facts:
            await append_decided(bus, self.org, self.job, lambda _, f=fact: f)

    async def history(self) -> JobHistory:
        return await read_job(await self._bus_as("gateway"), self.org, self.job)

    def _task(self, term: int) -> Task:
        return Task(kind="train", pool="default", org=self.org, job_id=self.job, term=term)

    async def give_up(self, reason: str) -> None:
        """As the worker does with a task that has failed too often."""

        async def train(attempt: Attempt, job: TrainingJob) -> JobSucceeded | JobPaused:
            raise AssertionError("nobody is to train")

        owner = TrainTaskOwner(await self._bus_as("trainer"), self._blobs, self._settings, train)
        await owner.give_up(self._task(0), reason)

    async def save_checkpoint(self, *, step: int) -> None:
        """As an attempt of the job does."""
        bus = await self._bus_as("trainer")
        _, fence = await start_attempt(bus, self.org, self.job, worker="w")
        assert fence is not None
        tree = BlobRef(uri=f"blob://jobs/{self.job}/checkpoint", size=1, sha256="0")
        model = ModelRef(id=f"fft:tiny-qwen3:{self.job}:step_{step}", tree=tree)
        saved = CheckpointSaved(step=step, version=step, attempt=1, tree=tree, size=1, model=model)
        await Publisher(bus).fenced(saved, fence=fence, id=str(step))

    async def run(self, training: Training, *, term: int = 0) -> None:
        """Give a trainer the job's task of this term; its training is the test's."""

        async def train(attempt: Attempt, job: TrainingJob) -> JobSucceeded | JobPaused:
            return await training(attempt)

        bus = await self._bus_as("trainer")
        task = self._task(term)
        no_message: Any = None
        lease = Lease(task, no_message, failures=TaskFailures(bus, task))
        async with asyncio.timeout(20):
            await TrainTaskOwner(bus, self._blobs, self._settings, train).run(task, lease)


@pytest.fixture
async def make_job(bus_as, settings_of, blobs, cluster_dir):
    async def make(**settings: Any) -> OwnedJob:
        base = settings_of("trainer").model_dump()
        job = OwnedJob(bus_as, blobs, TrainerSettings(**base | settings))
        created = JobCreated(config=SFT, config_name="job.toml", body_sha256="0")
        validated = validate(created, Registry(make_model_dir(cluster_dir)))
        assert isinstance(validated, JobValidated), validated
        await job.append(created)
        await job.append(validated, by="validator")
        await job.append(JobVerified(source=ModelRef(id="tiny-qwen3")), by="verifier")
        return job

    return make


async def never(attempt: Attempt) -> JobSucceeded:
    raise AssertionError("nobody is to train")


async def succeed(attempt: Attempt) -> JobSucceeded:
    return JobSucceeded(steps=5)


async def paused(job: OwnedJob, *, term: int = 0) -> None:
    """Run the job until it is paused, before its first step."""

    async def at_once(attempt: Attempt) -> JobPaused:
        await job.append(JobPauseRequested())
        await attempt.pausing.wait()
        return JobPaused(step=0)

    await job.run(at_once, term=term)


async def test_an_attempt_says_how_many_devices_it_has_and_one_that_is_given_up_has_none(make_job):
    job = await make_job(ranks=3)
    await paused(job)
    assert (await job.history()).last(JobStarted).devices == 3
    given_up = await make_job(ranks=3)
    await given_up.give_up("it kills its worker")
    assert (await given_up.history()).last(JobStarted).devices == 0


async def test_a_job_that_is_paused_is_let_go_of_and_goes_on_in_its_next_term(make_job):
    job = await make_job()

    async def until_paused(attempt: Attempt) -> JobPaused:
        await job.append(JobPauseRequested())
        await attempt.pausing.wait()
        return JobPaused(step=3)

    await job.run(until_paused)
    history = await job.history()
    assert (history.state, history.last(JobPaused)) == (State.PAUSED, JobPaused(step=3))
    await job.append(JobResumed())
    # The pause that was asked for in the term before is no reason to stop.
    await job.run(succeed, term=1)
    history = await job.history()
    assert (history.state, history.attempt, history.term) == (State.SUCCEEDED, 2, 1)


async def test_a_training_that_is_given_up_is_paused_at_its_checkpoint_or_fails(make_job):
    without, saved = await make_job(), await make_job()
    await saved.save_checkpoint(step=3)
    for job in (without, saved):
        await job.give_up("6 times in a row its worker failed")
    failed = (await without.history()).last(JobFailed)
    assert failed is not None
    assert failed.code == "trainer_crashed"
    assert "6 times in a row" in failed.problem.what
    paused_at = (await saved.history()).last(JobPaused)
    assert paused_at is not None
    assert paused_at.step == 3


async def test_a_job_waits_for_an_absent_store_and_is_paused_when_it_stays_away(make_job, tmp_path):
    empty = BlobStore.open(f"file:{tmp_path / 'mount'}")

    async def read(attempt: Attempt) -> JobSucceeded:
        await empty.get_bytes(BlobRef(uri="blob://jobs/a", size=1, sha256="0"))
        raise AssertionError

    patient, over = await make_job(), await make_job(store_absent_s=0)
    with pytest.raises(StoreAbsent):
        await patient.run(read)
    assert (await patient.history()).state is State.STARTED
    await over.run(read)
    history = await over.history()
    assert history.state is State.PAUSED
    paused = history.last(JobPaused)
    assert paused is not None
    assert "is its disk mounted?; the trainer waited" in paused.reason
    assert "SYNTH_STORE_ABSENT_S" in paused.reason


async def test_tasks_of_a_paused_job_and_of_a_term_that_is_over_are_void(make_job):
    job = await make_job()
    await paused(job)
    await job.run(never)
    await job.append(JobResumed())
    await job.run(never)
    assert (await job.history()).state is State.VERIFIED


async def test_a_run_that_does_not_pause_in_time_is_let_go_of_as_it_was(make_job):
    job = await make_job(pause_s=0.2)

    async def deaf(attempt: Attempt) -> JobSucceeded:
        attempt.announced.last_step = 2
        await job.append(JobPauseRequested())
        await asyncio.Event().wait()
        raise AssertionError

    await job.run(deaf)
    assert (await job.history()).last(JobPaused) == JobPaused(step=2)


async def test_a_job_that_is_done_when_the_pause_is_asked_for_has_succeeded(make_job):
    job = await make_job()

    async def done(attempt: Attempt) -> JobSucceeded:
        await job.append(JobPauseRequested())
        return JobSucceeded(steps=5)

    await job.run(done)
    assert (await job.history()).state is State.SUCCEEDED


async def test_a_cancellation_wins_over_a_pause(make_job):
    job = await make_job()

    async def cancelled_meanwhile(attempt: Attempt) -> JobPaused:
        await job.append(JobPauseRequested())
        await attempt.pausing.wait()
        await job.append(JobCancelRequested())
        return JobPaused(step=3)

    await job.run(cancelled_meanwhile)
    assert (await job.history()).state is State.CANCELLED


async def test_an_attempt_that_dies_while_it_pauses_leaves_the_pause_to_the_next(make_job):
    job = await make_job()

    async def dies(attempt: Attempt) -> JobPaused:
        await job.append(JobPauseRequested())
        await attempt.pausing.wait()
        raise Transient("the disk is away")

    with pytest.raises(Transient):
        await job.run(dies)
    assert (await job.history()).state is State.PAUSING
    await job.run(never)
    history = await job.history()
    assert (history.state, history.attempt) == (State.PAUSED, 2)


async def test_attempts_that_ended_with_a_pause_are_no_crashes(make_job):
    job = await make_job()
    for term in range(4):
        await paused(job, term=term)
        await job.append(JobResumed())
    await job.run(succeed, term=4)
    assert (await job.history()).state is State.SUCCEEDED
