"""The owner of a serve task proves each version by the trainer's canary, and refuses one that computes otherwise."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from synth.blobs import BlobStore
from synth.bus.connection import Connection
from synth.bus.history.job_log import append_decided, start_attempt
from synth.bus.kv.task_failures import TaskFailures
from synth.bus.publish import Fence, Publisher
from synth.bus.replay import follow
from synth.bus.tasks.lease import Lease
from synth.errors import Problem
from synth.events import (
    Canary,
    JobCreated,
    JobFailed,
    JobValidated,
    JobVerified,
    ModelRef,
    PolicyLoaded,
    PolicyPublished,
    PolicyRefused,
)
from synth.ids import new_job_id, new_org_id
from synth.inference.serving.engine_factory import TransformersEngineFactory
from synth.inference.serving.model_pool import ModelPool
from synth.inference.serving.owner import ServeTaskOwner
from synth.inference.serving.router import ModelRouter
from synth.inference.settings import InferenceSettings
from synth.methods.job import job_from_data
from synth.methods.rl import RlJob
from synth.models import Registry
from synth.trainer.learner.canary import score_canary
from synth.trainer.learner.model.policy import load_policy
from synth.trainer.learner.rl import RlTrainer
from synth.validator.validate import validate
from synth.weights.local_model import training_source
from synth.work import Task
from tests.service.jobs import RL, make_model_dir
from tests.unit.trainer.batches import random_batch
from tests.unit.trainer.jobs import OPEN_GATES, rl_job

pytestmark = pytest.mark.timeout(60)


class Served:
    """An RL job, the trainer of its policy, and the inference service that has its serve task."""

    def __init__(self, bus: Connection, blobs: BlobStore, fence: Fence, trainer: RlTrainer, folder: Path) -> None:
        self.trainer = trainer
        self._bus, self._blobs, self._fence, self._folder = bus, blobs, fence, folder

    async def publish(self, canary: Callable[[Canary], Canary | None]) -> None:
        """One step of training, and its weights with what `canary` makes of their canary."""
        version = self.trainer.state.step + 1
        self.trainer.step(random_batch(version))
        file = self._folder / f"{version}.safetensors"
        self.trainer.policy.write_serving_weights(file, version=version)
        assert self.trainer.state.canary is not None
        truth = score_canary(self.trainer.policy, self.trainer.state.canary)
        ref = await self._blobs.put_file(f"jobs/{self._fence.job_id}/{version}", file)
        kind = self.trainer.policy.kind
        event = PolicyPublished(version=version, attempt=1, kind=kind, weights=ref, canary=canary(truth))
        await Publisher(self._bus).fenced(event, fence=self._fence, id=str(version))

    async def heard(self, version: int) -> PolicyLoaded | PolicyRefused:
        """That the version is served, or that the policy is refused."""
        subjects = [f"{fact}.{self._fence.org}.{self._fence.job_id}" for fact in ("policy.loaded", "policy.refused")]
        async with asyncio.timeout(20), aclosing(follow(self._bus, subjects)) as events:
            async for recorded in events:
                event = recorded.event
                if isinstance(event, PolicyRefused) or (isinstance(event, PolicyLoaded) and event.version == version):
                    return event
        raise AssertionError("a follow never ends")


@pytest.fixture(params=["full", "lora", "qlora"])
async def served(
    request: pytest.FixtureRequest, bus_as, blobs, settings_of, cluster_dir, model_dir: Path, tmp_path: Path
) -> AsyncIterator[Served]:
    org, job = new_org_id(), new_job_id()
    config = RL.replace("[rollout]", f'trainer_mode = "{request.param}"\n[rollout]')
    created = JobCreated(config=config, config_name="job.toml", body_sha256="0")
    registry = Registry(make_model_dir(cluster_dir))
    verdict = validate(created, registry)
    assert isinstance(verdict, JobValidated), verdict
    job_settings = job_from_data(verdict.job)
    assert isinstance(job_settings, RlJob)
    source = job_settings.start_model(ModelRef(id="tiny-qwen3", path=str(model_dir)))
    verified = JobVerified(source=source)
    for by, fact in (("gateway", created), ("validator", verdict), ("verifier", verified)):
        await append_decided(await bus_as(by), org, job, lambda _, f=fact: f)
    trainer_bus = await bus_as("trainer")
    _, fence = await start_attempt(trainer_bus, org, job, worker="trainer-0", term=0)
    assert fence is not None
    config = rl_job(mode=request.param, lr=1e-2, **OPEN_GATES)
    local = await training_source(source, job_settings.lora_shape, blobs, tmp_path / "models", hub=False)
    trainer = RlTrainer(load_policy(local.model, config, dropout=False), config)

    bus = await bus_as("inference")
    settings = InferenceSettings(**settings_of("inference").model_dump(), device="cpu")
    router = ModelRouter(bus, blobs, tmp_path / "cache", registry)
    model_pool = ModelPool(router.files_of, TransformersEngineFactory(settings), max_models=3, load_timeout=300)
    router.attach_model_pool(model_pool)
    task = Task(kind="serve", pool="default", org=org, job_id=job)
    no_message: Any = None
    owner = ServeTaskOwner(bus, blobs, settings, router, "boot", asyncio.Event())
    serving = asyncio.create_task(owner.run(task, Lease(task, no_message, failures=TaskFailures(bus, task))))
    yield Served(trainer_bus, blobs, fence, trainer, tmp_path)
    await append_decided(
        await bus_as("trainer"), org, job, lambda _: JobFailed(code="over", problem=Problem(what="the test is over"))
    )
    async with asyncio.timeout(20):
        await serving
    await model_pool.close()


async def test_a_version_that_computes_what_its_trainer_computed_is_served(served: Served) -> None:
    for version in (1, 2):
        await served.publish(lambda truth: truth)
        loaded = await served.heard(version)
        assert isinstance(loaded, PolicyLoaded), loaded
        assert loaded.proven > 0
        assert loaded.canary_error is not None
        assert loaded.canary_error < 1e-4


async def test_a_version_without_a_canary_is_served_on_its_digests(served: Served) -> None:
    await served.publish(lambda truth: None)
    loaded = await served.heard(1)
    assert isinstance(loaded, PolicyLoaded), loaded
    assert (loaded.canary_error, loaded.proven > 0) == (None, True)


async def test_a_version_that_computes_otherwise_is_refused_with_the_numbers(served: Served) -> None:
    published: list[Canary] = []

    def of_the_version_before(truth: Canary) -> Canary:
        published.append(truth)
        return published[0]

    await served.publish(of_the_version_before)
    assert isinstance(await served.heard(1), PolicyLoaded)
    await served.publish(of_the_version_before)
    refused = await served.heard(2)
    assert isinstance(refused, PolicyRefused), refused
    what = refused.problem.what
    numbers = re.search(r"^.*: policy version 2 computes otherwise .* (\S+) here and (\S+) there", what)
    assert numbers is not None, what
    then, now = published
    apart = [abs(a - b) for a, b in zip(then.logprobs, now.logprobs, strict=True)]
    worst = apart.index(max(apart))
    assert [float(n) for n in numbers.groups()] == pytest.approx([now.logprobs[worst], then.logprobs[worst]], abs=1e-4)
