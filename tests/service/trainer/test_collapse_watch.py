"""The collapse watch over a job's log: said once, behind its step, whatever attempt says it."""

from __future__ import annotations

from pathlib import Path

import pytest

from synth.blobs import BlobStore
from synth.bus.history.job_log import append_as_owner, append_decided, start_attempt
from synth.bus.publish import Publisher
from synth.bus.replay import replay
from synth.events import BlobRef, JobCreated, JobPaused, JobResumed, JobValidated, JobVerified, ModelRef
from synth.events.catalogue import Event
from synth.ids import new_job_id, new_org_id
from synth.methods.job import job_from_data
from synth.methods.rl import RlJob
from synth.models import Registry
from synth.trainer.owner.announcer import Announcer
from synth.trainer.owner.collapse_watch import CollapseWatch
from synth.trainer.owner.history import read_history
from synth.trainer.owner.provisional_steps import ProvisionalSteps
from synth.trainer.protocol import Saved, Stepped
from synth.validator.validate import validate
from tests.service.jobs import RL, make_model_dir

HEALTHY, SICK = {"entropy": 1.0, "skipped": 0.0}, {"entropy": 0.01, "skipped": 0.0}
#: The sign shows from step 4 on, counts at step 6, and again at 14: it was absent from 9 to 11.
STEPS = [HEALTHY] * 3 + [SICK] * 5 + [HEALTHY] * 3 + [SICK] * 3
WARNED = [6, 14]


class Job:
    """A verified RL job, and the attempts at it. action: of its watch."""

    def __init__(self, bus_as, blobs: BlobStore, models: Path, folder: Path, *, action: str) -> None:
        self.org, self.id = new_org_id(), new_job_id()
        self._bus_as, self._blobs, self._folder = bus_as, blobs, folder
        watch = f'[training.watch]\naction = "{action}"\npatience = 3\nwindow = 3\n'
        self._created = JobCreated(config=RL + watch, config_name="job.toml", body_sha256="0")
        validated = validate(self._created, Registry(models))
        assert isinstance(validated, JobValidated), validated
        self._validated = validated
        job = job_from_data(validated.job)
        assert isinstance(job, RlJob)
        self._job = job

    async def submitted(self) -> None:
        await self.append("gateway", self._created)
        await self.append("validator", self._validated)
        await self.append("verifier", JobVerified(source=ModelRef(id="tiny-qwen3")))

    async def append(self, by: str, fact: Event) -> None:
        await append_decided(await self._bus_as(by), self.org, self.id, lambda _: fact)

    async def log(self) -> list[tuple[str, int]]:
        """What the log says of steps and signs, in order."""
        subjects = [f"{fact}.{self.org}.{self.id}" for fact in ("train.step", "train.warned")]
        return [(r.type, r.event.step) for r in await replay(await self._bus_as("trainer"), subjects)]  # type: ignore[union-attr]

    async def attempt(self, until: int, *, every: int = 1, dies_silent: bool = False, term: int = 0) -> str | None:
        """Train until this step, or until the watch ends it, with a checkpoint after `every` steps; what it demands.

        dies_silent: before it could say what it found in its last step.
        """
        bus = await self._bus_as("trainer")
        _, fence = await start_attempt(bus, self.org, self.id, worker="trainer-0", term=term)
        assert fence is not None
        announced = await read_history(bus, self.org, self.id)
        watch = CollapseWatch(bus, fence, self._job)
        await watch.catch_up()

        def model_at(step: int, tree: BlobRef) -> ModelRef:
            return ModelRef(id="made", kind="full", tree=tree)

        # Nothing runs it: what is said of steps that are not durable is no matter of the watch.
        provisional = ProvisionalSteps(Publisher(bus), fence, every_s=1.0, ttl_s=60.0)
        announcer = Announcer(
            bus,
            self._blobs,
            fence,
            announced,
            total=len(STEPS),
            model_at=model_at,
            watch=watch,
            provisional=provisional,
        )
        k = announced.last_step
        while watch.demand is None and k < until:
            k += 1
            if dies_silent and k == until:
                watch.announce = _die  # type: ignore[method-assign]
            try:
                stepped = Stepped(step=k, values=STEPS[k - 1], trained_at=0.0)
                await announcer.announce_step(stepped, STEPS[k - 1], kind="full")
                if k % every == 0:
                    await announcer.store_checkpoint(self._checkpoint(fence.attempt, k), keep=set)
            except _Died:
                return None
        demand = watch.demand
        if demand is not None and k % every:
            await announcer.store_checkpoint(self._checkpoint(fence.attempt, k), keep=set)
        if demand is not None and demand.action == "pause":
            await append_as_owner(bus, fence, lambda _: JobPaused(step=k, reason=demand.problem.text()))
        return demand.action if demand else None

    def _checkpoint(self, attempt: int, step: int) -> Saved:
        folder = self._folder / f"{attempt}-{step}"
        folder.mkdir()
        (folder / "weights").write_text(f"{attempt} {step}")
        return Saved(step=step, folder=str(folder), sha256={})


class _Died(Exception):
    pass


async def _die(step: int) -> None:
    raise _Died


@pytest.fixture
async def make_job(bus_as, blobs, cluster_dir, tmp_path):
    async def make(action: str) -> Job:
        made = Job(bus_as, blobs, make_model_dir(cluster_dir), tmp_path, action=action)
        await made.submitted()
        return made

    return make


def steps_of(log: list[tuple[str, int]], type: str) -> list[int]:
    return [step for kind, step in log if kind == type]


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("cut", [3, 5, 6, 7, 11, 13, 14])
async def test_an_attempt_that_goes_on_says_what_one_that_never_stopped_would_have_said(
    make_job, cut: int, silent: bool
):
    job = await make_job("warn")
    assert await job.attempt(cut, dies_silent=silent) is None
    assert await job.attempt(len(STEPS)) is None
    log = await job.log()
    assert steps_of(log, "train.step") == list(range(1, len(STEPS) + 1))
    assert steps_of(log, "train.warned") == WARNED
    for step in WARNED:
        assert log.index(("train.warned", step)) > log.index(("train.step", step))


async def test_a_stop_is_demanded_at_once_and_again_by_whoever_takes_over(make_job):
    job = await make_job("stop")
    # A checkpoint every fifth step covers step 5: what was found in step 6 need not wait for step 10.
    assert await job.attempt(len(STEPS), every=5) == "stop"
    log = await job.log()
    assert log[-2:] == [("train.step", 6), ("train.warned", 6)]
    assert await job.attempt(len(STEPS)) == "stop"
    assert await job.log() == log


async def test_a_job_that_was_paused_and_resumed_is_not_paused_for_the_same_sign_again(make_job):
    job = await make_job("pause")
    assert await job.attempt(len(STEPS)) == "pause"
    await job.append("gateway", JobResumed())
    assert await job.attempt(len(STEPS), term=1) == "pause"
    await job.append("gateway", JobResumed())
    assert await job.attempt(len(STEPS), term=2) is None
    log = await job.log()
    assert steps_of(log, "train.warned") == WARNED
    assert log[-2:] == [("train.step", 14), ("train.warned", 14)]


async def test_a_pause_that_an_attempt_did_not_live_to_make_is_made_by_the_next(make_job):
    job = await make_job("pause")
    await job.attempt(6, dies_silent=True)
    assert steps_of(await job.log(), "train.warned") == []
    assert await job.attempt(len(STEPS)) == "pause"
    assert await job.log() == [*(("train.step", k) for k in range(1, 7)), ("train.warned", 6)]
