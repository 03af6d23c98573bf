"""The owner of one job's serve task: loads its policy, follows its versions, lets go when the job has ended."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import structlog

from synth import logs
from synth.blobs import BlobMissing, BlobStore
from synth.bus.connection import Connection
from synth.bus.job_log import read_job
from synth.bus.publish import Publisher, enqueue
from synth.bus.replay import follow, replay
from synth.bus.worker import Lease
from synth.errors import Permanent, Problem, Transient
from synth.events import JobValidated, JobVerified, PolicyLoaded, PolicyPublished, PolicyRefused
from synth.inference.engines.protocol import Engine
from synth.inference.requests import JobSampling
from synth.inference.routing import ServedJob, ServiceRouter
from synth.inference.settings import InferenceSettings
from synth.jobs.lifecycle import TERMINAL, State, apply
from synth.jobs.resolved import EvalJob, RlJob, job_from_data, lora_shape
from synth.work import Task

log = logs.get("serve")

_TURN_S = 5.0


@dataclass(frozen=True)
class ServeService:
    """What every serve task of this process shares. boot: names this process, for its announcements' ids."""

    bus: Connection
    blobs: BlobStore
    settings: InferenceSettings
    router: ServiceRouter
    boot: str
    changed: asyncio.Event

    async def run(self, task: Task, lease: Lease) -> None:
        """Own one serve task until its job has ended."""
        with structlog.contextvars.bound_contextvars(job=task.job_id):
            history = await read_job(self.bus, task.org, task.job_id)
            if history.ended:
                return
            job = job_from_data(history.need(JobValidated).job)
            assert isinstance(job, RlJob | EvalJob)
            sampling = JobSampling(
                temperature=job.rollout.sampling.temperature, max_tokens=job.rollout.sampling.max_tokens
            )
            served = ServedJob(
                org=task.org,
                job_id=task.job_id,
                source=history.need(JobVerified).source,
                sampling=sampling,
                lora=lora_shape(job) if isinstance(job, RlJob) else None,
                trained=isinstance(job, RlJob),
            )
            serving = _Serving(self, served)
            try:
                await serving.until_ended(lease)
            except Permanent as error:
                await serving.refuse(error)
            finally:
                self.router.jobs.pop(task.job_id, None)
                await self.router.policies.release(task.job_id)
                self.changed.set()


@dataclass
class _Serving:
    service: ServeService
    job: ServedJob
    newest: PolicyPublished | None = None
    loaded: tuple[int, int] = (0, 0)
    ended: bool = False
    news: asyncio.Event = field(default_factory=asyncio.Event)

    async def until_ended(self, lease: Lease) -> None:
        service, job = self.service, self.job
        lease.progress("load", deadline=service.settings.load_timeout_s + 60)
        started = time.monotonic()
        held = await service.router.policies.hold(job.job_id, await service.router.source_of(job))
        past = await replay(service.bus.nc, [f"policy.published.{job.org}.{job.job_id}"], last_per_subject=True)
        following = asyncio.create_task(self._follow())
        try:
            if past and isinstance(past[-1].event, PolicyPublished):
                # Whoever takes over serves the latest version at once: the ones before it are history.
                self.newest = past[-1].event
                await self._catch_up(held.engine)
            else:
                await self._announce(0, time.monotonic() - started, proven=0)
            # Not sooner: what was loaded first is the source, which is nobody's policy after the first iteration.
            service.router.jobs[job.job_id] = job
            service.changed.set()
            # The engine is up, so a trainer will not wait for it: now its task is due (decision 16).
            await self._train_is_due()
            while not self.ended:
                if not held.engine.healthy:
                    raise Transient(f"the engine of {job.job_id} has stopped")
                # Fetching, hashing and swapping a large policy takes minutes; waiting for one does not.
                lease.progress("load a version", deadline=service.settings.load_timeout_s)
                await self._catch_up(held.engine)
                lease.progress("serve", deadline=60)
                await self._wait(following)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def refuse(self, error: Permanent) -> None:
        """Say that this policy cannot be served. The trainer's task is due all the same: it ends the job."""
        log.error("policy refused", reason=str(error))
        event = PolicyRefused(problem=Problem(what=f"the model cannot be served: {error}"))
        await Publisher(self.service.bus).once(event, org=self.job.org, key=self.job.job_id, id="refused")
        await self._train_is_due()

    async def _train_is_due(self) -> None:
        if self.job.trained:
            pool = self.service.settings.pool
            await enqueue(self.service.bus, Task(kind="train", pool=pool, org=self.job.org, job_id=self.job.job_id))

    async def _wait(self, following: asyncio.Task[None]) -> None:
        if following.done():
            following.result()
        try:
            async with asyncio.timeout(_TURN_S):
                await self.news.wait()
        except TimeoutError:
            return
        self.news.clear()

    async def _catch_up(self, engine: Engine) -> None:
        event = self.newest
        if event is None or (event.attempt, event.version) <= self.loaded:
            return
        started = time.monotonic()
        name = f"{self.job.job_id}-{event.attempt}-{event.version}.safetensors"
        try:
            file = await self.service.blobs.fetch(event.weights, self.service.router.cache / name)
            proof = await engine.update_weights(file, event.version)
        except (BlobMissing, FileNotFoundError):
            # Expired between its event and our read: only a newer version makes that so.
            if self.newest is event:
                raise
            return
        self.loaded = (event.attempt, event.version)
        await self._announce(event.version, time.monotonic() - started, proven=proof.matched)

    async def _announce(self, version: int, seconds: float, *, proven: int) -> None:
        service = self.service
        event = PolicyLoaded(
            version=version, replica=service.settings.replica, seconds=round(seconds, 4), proven=proven
        )
        attempt = self.loaded[0]
        id = f"{attempt}:{version}:{service.settings.replica}:{service.boot}"
        await Publisher(service.bus).once(event, org=self.job.org, key=self.job.job_id, id=id)
        log.info("policy loaded", version=version, seconds=round(seconds, 4), proven=proven)

    async def _follow(self) -> None:
        org, job_id = self.job.org, self.job.job_id
        state: State | None = None
        async for recorded in follow(
            self.service.bus.nc, [f"job.*.{org}.{job_id}", f"policy.published.{org}.{job_id}"]
        ):
            if isinstance(recorded.event, PolicyPublished):
                self.newest = recorded.event
            elif recorded.type.startswith("job."):
                state = apply(state, recorded.type)
                self.ended = state in TERMINAL
            self.news.set()
            if self.ended:
                return
