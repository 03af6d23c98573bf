"""The order of what an attempt announces of a step, whoever is faster: its weights, its checkpoint, the step."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from synth.blobs import BlobStore
from synth.bus.publish import Fence, Publisher
from synth.bus.replay import replay
from synth.events import BlobRef, JobStarted, ModelRef
from synth.ids import new_job_id, new_org_id
from synth.trainer.owner.announcer import Announcer
from synth.trainer.owner.history import AttemptHistory
from synth.trainer.owner.provisional_steps import ProvisionalSteps
from synth.trainer.protocol import Saved, Stepped

pytestmark = pytest.mark.timeout(60)


async def test_a_checkpoint_that_is_stored_before_its_weights_are_announced_is_announced_behind_them(
    bus_as, tmp_path: Path
):
    bus, org, job = await bus_as("trainer"), new_org_id(), new_job_id()
    publisher = Publisher(bus)
    seq = await publisher.lifecycle(JobStarted(attempt=1, worker="trainer-0"), org=org, key=job, id="1", after=0)
    fence = Fence(org, job, 1, seq)

    def model_at(step: int, tree: BlobRef) -> ModelRef:
        return ModelRef(id="made", tree=tree)

    announcer = Announcer(
        bus,
        BlobStore.open(f"file:{tmp_path / 'blobs'}"),
        fence,
        AttemptHistory(),
        total=1,
        model_at=model_at,
        watch=None,
        provisional=ProvisionalSteps(publisher, fence, every_s=60.0, ttl_s=60.0),
    )
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "state").write_text("state")
    (tmp_path / "weights").write_text("weights")
    written = Saved(step=1, folder=str(tmp_path / "checkpoint"), sha256={})
    storing = asyncio.create_task(announcer.store_checkpoint(written, keep=set))
    # As far as it gets by itself.
    await asyncio.wait([storing], timeout=0.5)
    stepped = Stepped(step=1, values={}, trained_at=0.0, weights=str(tmp_path / "weights"))
    await announcer.announce_step(stepped, {}, kind="full")
    await asyncio.wait_for(storing, 20)
    said = [fact.type for fact in await replay(bus, [f"*.*.{org}.{job}"])]
    assert said == ["job.started", "policy.published", "checkpoint.saved", "train.step"]
