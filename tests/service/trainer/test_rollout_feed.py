"""What a run waits for: a batch that takes long is waited for as long as its rollouts come in."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from synth.bus.publish import Publisher
from synth.errors import Transient
from synth.events import BlobRef, JobCreated, JobValidated, RolloutCompleted
from synth.ids import new_job_id, new_org_id
from synth.methods.job import job_from_data
from synth.methods.rl import RlJob
from synth.models import Registry
from synth.trainer.owner.attempt import Attempt
from synth.trainer.owner.history import AttemptHistory
from synth.trainer.owner.rollout_feed import RolloutFeed
from synth.validator.validate import validate
from tests.service.jobs import RL, make_model_dir, unclaimed

#: Seconds of silence, which the end of the test waits for once.
SILENCE_S = 5.0


class Marks:
    """A lease that counts how often the wait began anew."""

    def __init__(self) -> None:
        self.deadlines: list[float] = []
        self.arrived = asyncio.Event()

    def progress(self, stage: str, *, deadline: float) -> None:
        self.deadlines.append(deadline)
        self.arrived.set()


def rollout(index: int) -> RolloutCompleted:
    blob = BlobRef(uri="file:x", size=1, sha256="0" * 64)
    return RolloutCompleted(
        rollout_id=f"r{index}",
        iteration=1,
        mode="train",
        index=index,
        group=0,
        seed=0,
        reward=0.0,
        trajectory=blob,
        completion_tokens=1,
        calls=1,
        versions=(0, 0),
        seconds=1.0,
        tries=1,
    )


async def test_each_rollout_begins_the_wait_for_a_batch_anew(bus_as, blobs, cluster_dir: Path, tmp_path: Path):
    text = RL.replace("[training]", "rollout_timeout_s = 0.5\nmax_retries = 0\n[training]")
    created = JobCreated(config=text, config_name="job.toml", body_sha256="0")
    validated = validate(created, Registry(make_model_dir(cluster_dir)))
    assert isinstance(validated, JobValidated), validated
    job = job_from_data(validated.job)
    assert isinstance(job, RlJob)
    org, id = new_org_id(), new_job_id()
    marks = Marks()
    trainer = await bus_as("trainer")
    attempt: Any = SimpleNamespace(
        bus=trainer,
        blobs=blobs,
        settings=SimpleNamespace(batch_wait_s=SILENCE_S - 0.5),
        fence=SimpleNamespace(org=org, job_id=id),
        announced=AttemptHistory(),
        lease=marks,
        work_dir=tmp_path,
    )
    feed = RolloutFeed(cast(Attempt, attempt), job, cast(Any, None))
    publisher = Publisher(await bus_as("rollouts"))
    waiting = asyncio.create_task(feed.wait_batch(1))
    try:
        for index in range(5):
            await marks.arrived.wait()
            marks.arrived.clear()
            await publisher.fenced(rollout(index), fence=unclaimed(org, id), id=f"r{index}")
        with pytest.raises(Transient, match=r"wait for batch 1: no rollout came in for 5 s \(SYNTH_BATCH_WAIT_S\)"):
            await waiting
    finally:
        await feed.close()
    # The wait itself is one rollout's, however many the batch has, and began anew with each.
    assert marks.deadlines == [SILENCE_S + 60] * 6
