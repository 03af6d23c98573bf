"""A job keeps what it starts from, whatever the checkpoints of the job that made it become."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from synth.blobs import BlobStore
from synth.bus.connection import Connection
from synth.bus.history.job_log import append_decided, start_attempt
from synth.bus.history.model_leases import lease_models
from synth.bus.history.model_refs import find_model
from synth.bus.publish import Fence, Publisher
from synth.errors import UserError
from synth.events import (
    BlobRef,
    JobCreated,
    JobSucceeded,
    JobValidated,
    JobVerified,
    JobWithdrawn,
    ModelDeleted,
    ModelPublished,
    ModelRef,
)
from synth.ids import new_job_id
from synth.methods.job import job_from_data
from synth.models import Registry
from synth.trainer.owner.announcer import Announcer
from synth.trainer.owner.history import read_history
from synth.trainer.owner.provisional_steps import ProvisionalSteps
from synth.trainer.protocol import Saved
from synth.validator.validate import validate
from tests.service.bus.test_job_log import verified_job
from tests.service.jobs import SFT, create, make_model_dir

pytestmark = pytest.mark.timeout(60)


class Parent:
    """A training job, whose trainer keeps its last checkpoint alone, and its children."""

    def __init__(self, bus_as: Any, blobs: BlobStore, folder: Path, fence: Fence, registry: Registry) -> None:
        self.bus_as, self.blobs, self.folder, self.fence, self.registry = bus_as, blobs, folder, fence, registry
        self.org, self.job = fence.org, fence.job_id

    def checkpoint(self, step: int) -> str:
        return f"fft:tiny-qwen3:{self.job}:step_{step}"

    async def trainer(self) -> Announcer:
        """One that knows what the log says."""

        def model_at(step: int, tree: BlobRef) -> ModelRef:
            return ModelRef(id=self.checkpoint(step), tree=tree)

        bus = await self.bus_as("trainer")
        shown = ProvisionalSteps(Publisher(bus), self.fence, every_s=60.0, ttl_s=60.0)
        history = await read_history(bus, self.org, self.job)
        announcer = Announcer(
            bus, self.blobs, self.fence, history, total=9, model_at=model_at, watch=None, provisional=shown
        )
        announcer._published_step = 9
        return announcer

    async def save(self, trainer: Announcer, step: int) -> None:
        made = self.folder / f"checkpoint-{step}"
        made.mkdir()
        (made / "state").write_text(f"state {step}")
        await trainer.store_checkpoint(Saved(step=step, folder=str(made), sha256={}), keep=lambda steps: {max(steps)})

    async def child(self, step: int) -> str:
        """A job that starts from a checkpoint, as the validator takes it."""
        job = new_job_id()
        await create(await self.bus_as("gateway"), self.org, job, SFT)
        validated = validate(JobCreated(config=SFT, config_name="job.toml", body_sha256="0"), self.registry)
        assert isinstance(validated, JobValidated), validated
        starts = job_from_data(validated.job | {"model": self.checkpoint(step)})
        await lease_models(await self.bus_as("validator"), self.org, job, starts, self.registry, origins={})
        return job

    async def has(self, step: int, *, for_job: str | None = None) -> bool:
        """Whether the checkpoint is a model, with all of its files."""
        bus = await self.bus_as("verifier")
        try:
            ref = await find_model(bus, self.org, self.checkpoint(step), self.registry, for_job=for_job)
        except UserError:
            return False
        assert ref.tree is not None
        manifest = await self.blobs.manifest(ref.tree)
        return [await self.blobs.get_bytes(file) for file in manifest.files.values()] == [f"state {step}".encode()]


@pytest.fixture
async def parent(bus_as, tmp_path: Path, cluster_dir: Path) -> Parent:
    org, job = await verified_job(bus_as)
    _, fence = await start_attempt(await bus_as("trainer"), org, job, worker="w")
    assert fence is not None
    registry = Registry(make_model_dir(cluster_dir))
    return Parent(bus_as, BlobStore.open(f"file:{tmp_path / 'blobs'}"), tmp_path, fence, registry)


async def test_a_checkpoint_that_a_job_starts_from_is_kept_until_that_job_has_ended(parent: Parent):
    trainer = await parent.trainer()
    await parent.save(trainer, 1)
    child = await parent.child(1)
    for step in (2, 3):
        await parent.save(trainer, step)
    assert [await parent.has(step) for step in (1, 2, 3)] == [True, False, True]
    # Another trainer goes on with the job.
    trainer = await parent.trainer()
    await trainer.delete_expired_blobs()
    await parent.save(trainer, 4)
    assert [await parent.has(step) for step in (1, 3)] == [True, False]
    await append_decided(await parent.bus_as("gateway"), parent.org, child, lambda _: JobWithdrawn())
    await parent.save(trainer, 5)
    assert not await parent.has(1)
    with pytest.raises(UserError, match="step_1' has expired"):
        await parent.child(1)


async def test_a_checkpoint_that_expires_while_it_is_leased_is_there_for_who_leased_it(
    parent: Parent, monkeypatch: pytest.MonkeyPatch
):
    trainer = await parent.trainer()
    await parent.save(trainer, 1)
    children: list[str] = []
    read = trainer._leased

    async def read_and_then_lease(trees):
        found = await read(trees)
        if not children:
            children.append(await parent.child(1))
        return found

    monkeypatch.setattr(trainer, "_leased", read_and_then_lease)
    await parent.save(trainer, 2)
    assert await parent.has(1, for_job=children[0])
    assert not await parent.has(1)
    await (await parent.trainer()).delete_expired_blobs()
    assert await parent.has(1, for_job=children[0])


async def test_a_checkpoint_below_a_model_is_kept_when_the_job_that_made_that_has_ended(parent: Parent):
    trainer = await parent.trainer()
    await parent.save(trainer, 1)
    child = await parent.child(1)
    bus = await parent.bus_as("verifier")
    below = await find_model(bus, parent.org, parent.checkpoint(1), parent.registry)
    validated, verified = JobValidated(job={}, origins={}, warnings=[]), JobVerified(source=below)
    facts = (("validator", validated), ("verifier", verified))
    for service, fact in facts:
        await append_decided(await parent.bus_as(service), parent.org, child, lambda _, f=fact: f)
    bus = await parent.bus_as("trainer")
    _, fence = await start_attempt(bus, parent.org, child, worker="w")
    assert fence is not None
    adapter = BlobRef(uri=f"blob://jobs/{child}/model/manifest.json", size=1, sha256="0")
    made = ModelRef(id=f"lora:tiny-qwen3:{child}", kind="lora", tree=adapter, base=below)
    await Publisher(bus).fenced(ModelPublished(model=made, kind="lora", step=5), fence=fence, id="model")
    await append_decided(bus, parent.org, child, lambda _: JobSucceeded(steps=5, model=made.id))
    await parent.save(trainer, 2)
    assert await parent.has(1)
    gone = ModelDeleted(model=made.id, tree=adapter, requested_by="key")
    await Publisher(await parent.bus_as("gateway")).once(gone, org=parent.org, key=child, id=made.id)
    await parent.save(trainer, 3)
    assert not await parent.has(1)


@pytest.fixture
async def append(bus_admin: Connection) -> AsyncIterator[Callable[[str, bytes, str], Awaitable[None]]]:
    """Puts anything into the log; taken out again, as every gateway of the session reads it."""
    appended: list[int] = []

    async def put(subject: str, body: bytes, schema: str) -> None:
        ack = await bus_admin.js.publish(subject, body, stream="EVENTS", headers={"Synth-Schema": schema})
        appended.append(ack.seq)

    yield put
    for seq in appended:
        await bus_admin.js.delete_msg("EVENTS", seq)


@pytest.mark.parametrize(("schema", "body"), [("99", b"{}"), ("1", b"garbage")])
async def test_a_log_that_cannot_be_read_expires_nothing_and_ends_no_training(
    parent: Parent, append: Callable[[str, bytes, str], Awaitable[None]], schema: str, body: bytes
):
    trainer = await parent.trainer()
    await parent.save(trainer, 1)
    child = await parent.child(1)
    await append_decided(await parent.bus_as("gateway"), parent.org, child, lambda _: JobWithdrawn())
    await append(f"checkpoint.saved.{parent.org}.{child}", body, schema)
    await parent.save(trainer, 2)
    await parent.save(trainer, 3)
    assert [await parent.has(step) for step in (1, 2, 3)] == [True, False, True]
    await append(f"model.leased.{parent.org}.{parent.job}", body, schema)
    await parent.save(trainer, 4)
    assert [checkpoint.step for checkpoint in trainer.announced.checkpoints] == [1, 3, 4]
