"""The owner of one job's serve task: loads its policy, follows its versions, lets go when the job ends or pauses."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import structlog

from synth.blobs import BlobStore
from synth.bus.connection import Connection
from synth.bus.history.job_log import read_job
from synth.bus.publish import Publisher, enqueue
from synth.bus.replay import follow, replay
from synth.bus.worker import Lease
from synth.errors import Permanent, Problem, Transient
from synth.events import JobValidated, JobVerified, PolicyLoaded, PolicyPublished, PolicyRefused
from synth.inference.api.requests import JobSampling
from synth.inference.serving.canary import CanaryMismatch, check_canary
from synth.inference.serving.model_pool import Loaded
from synth.inference.serving.router import ServedJob, ServiceRouter
from synth.inference.settings import InferenceSettings
from synth.jobs.lifecycle import JobStatus
from synth.jobs.resolved import EvalJob, RlJob, job_from_data, lora_shape
from synth.runtime import logs
from synth.work import Task

log = logs.get("serve")

_TURN_S = 5.0

#: How long the second serve task of a job stays in the queue when the process that serves it already has taken it.
_ELSEWHERE_S = 5.0


@dataclass(frozen=True)
class ServeService:
    """What every serve task of this process shares. boot: names this process, for its announcements' ids.

    serving: the jobs whose task it owns.
    """

    bus: Connection
    blobs: BlobStore
    settings: InferenceSettings
    router: ServiceRouter
    boot: str
    changed: asyncio.Event
    serving: set[str] = field(default_factory=set[str])

    async def run(self, task: Task, lease: Lease) -> None:
        """Own one serve task until its job has ended or is paused."""
        with structlog.contextvars.bound_contextvars(job=task.job_id):
            history = await read_job(self.bus, task.org, task.job_id)
            if history.status.is_over(task.term):
                return
            job = job_from_data(history.need(JobValidated).job)
            assert isinstance(job, RlJob | EvalJob)
            sampling = JobSampling.of(job.rollout)
            served = ServedJob(
                org=task.org,
                job_id=task.job_id,
                source=history.need(JobVerified).source,
                sampling=sampling,
                lora=lora_shape(job) if isinstance(job, RlJob) else None,
                trained=isinstance(job, RlJob),
            )
            if task.job_id in self.serving:
                raise Transient("this process serves the job already: it is another one's turn", delay=_ELSEWHERE_S)
            self.serving.add(task.job_id)
            serving = _Serving(self, served, task)
            try:
                await serving.until_over(lease)
            except Permanent as error:
                await self.refuse(task, str(error), train=served.trained)
            finally:
                self.serving.discard(task.job_id)
                self.router.jobs.pop(task.job_id, None)
                await self.router.policies.release(task.job_id)
                self.changed.set()

    async def give_up(self, task: Task, reason: str) -> None:
        """The task is a dead letter: say that the policy cannot be served, so that its owner ends the job."""
        history = await read_job(self.bus, task.org, task.job_id)
        if history.status.is_over(task.term):
            return
        job = job_from_data(history.need(JobValidated).job)
        await self.refuse(task, reason, train=isinstance(job, RlJob))

    async def refuse(self, task: Task, reason: str, *, train: bool) -> None:
        """Say that a policy cannot be served. The trainer's task is due all the same: it ends the job."""
        log.error("policy refused", job=task.job_id, reason=reason)
        event = PolicyRefused(problem=Problem(what=f"the model cannot be served: {reason}"))
        await Publisher(self.bus).once(event, org=task.org, key=task.job_id, id=f"refused:{task.term}")
        if train:
            await self.train_is_due(task)

    async def train_is_due(self, task: Task) -> None:
        """Queue the train task of the same job and term as this serve task."""
        train = Task(kind="train", pool=self.settings.pool, org=task.org, job_id=task.job_id, term=task.term)
        await enqueue(self.bus, train)


@dataclass
class _Serving:
    service: ServeService
    job: ServedJob
    task: Task
    newest: PolicyPublished | None = None
    loaded: tuple[int, int] = (0, 0)
    over: bool = False
    news: asyncio.Event = field(default_factory=asyncio.Event)

    async def until_over(self, lease: Lease) -> None:
        service, job = self.service, self.job
        lease.progress("load", deadline=service.settings.load_timeout_s + 60)
        started = time.monotonic()
        held = await service.router.policies.hold(job.job_id, await service.router.source_of(job))
        self.newest = await self._last_published()
        following = asyncio.create_task(self._follow())
        try:
            if (await read_job(service.bus, job.org, job.job_id)).status.is_over(self.task.term):
                # Loading took long: whoever hears of it would wait for a policy that is let go of.
                return
            if self.newest is not None:
                # Whoever takes over serves the latest version at once: the ones before it are history.
                await self._catch_up(held)
            else:
                await self._announce(0, time.monotonic() - started, proven=0)
            # Not sooner: what was loaded first is the source, which is nobody's policy after the first iteration.
            service.router.jobs[job.job_id] = job
            service.changed.set()
            # The engine is up, so a trainer will not wait for it: now its task is due (decision 16).
            if job.trained:
                await service.train_is_due(self.task)
            while not self.over:
                if not held.engine.healthy:
                    raise Transient(f"the engine of {job.job_id} has stopped")
                # Fetching, hashing and swapping a large policy takes minutes; waiting for one does not.
                lease.progress("load a version", deadline=service.settings.load_timeout_s)
                await self._catch_up(held)
                lease.progress("serve", deadline=60)
                await self._wait(following)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def _wait(self, following: asyncio.Task[None]) -> None:
        if following.done():
            following.result()
        try:
            async with asyncio.timeout(_TURN_S):
                await self.news.wait()
        except TimeoutError:
            return
        self.news.clear()

    async def _catch_up(self, held: Loaded) -> None:
        while (event := self.newest) is not None and (event.attempt, event.version) > self.loaded:
            started = time.monotonic()
            try:
                proven, apart = await self._load(held, event)
            except CanaryMismatch:
                # Of whatever version: the engine is wrong, or the trainer is.
                raise
            except Permanent:
                # A version expires, at any moment, once there is a newer one, of which our follower may be the last
                # to hear. What is still the newest is broken.
                newest = await self._last_published()
                if newest is not None and self._is_news(newest):
                    self.newest = newest
                if self.newest == event:
                    raise
                continue
            self.loaded = (event.attempt, event.version)
            await self._announce(event.version, time.monotonic() - started, proven=proven, canary_error=apart)

    async def _load(self, held: Loaded, event: PolicyPublished) -> tuple[int, float | None]:
        """Serve a version; returns how many tensors were proven, and how far its canary is from the trainer's."""
        blobs = self.service.blobs
        name = f"{self.job.job_id}-{event.attempt}-{event.version}.safetensors"
        file = await blobs.fetch(event.weights, self.service.router.cache / name)
        try:
            proof = await held.engine.update_weights(file, event.version)
        finally:
            if blobs.root is None:
                # Our copy; of a local store it is the blob itself.
                file.unlink(missing_ok=True)
        if event.canary is None:
            return proof.matched, None
        return proof.matched, await check_canary(held.engine, event.canary, half=held.half)

    async def _last_published(self) -> PolicyPublished | None:
        subject = f"policy.published.{self.job.org}.{self.job.job_id}"
        past = await replay(self.service.bus.nc, [subject], last_per_subject=True)
        return past[-1].event if past and isinstance(past[-1].event, PolicyPublished) else None

    def _is_news(self, event: PolicyPublished) -> bool:
        known = self.newest
        return known is None or (event.attempt, event.version) > (known.attempt, known.version)

    async def _announce(self, version: int, seconds: float, *, proven: int, canary_error: float | None = None) -> None:
        service = self.service
        event = PolicyLoaded(
            version=version,
            replica=service.settings.replica,
            seconds=round(seconds, 4),
            proven=proven,
            canary_error=canary_error,
        )
        # With the term: a policy that is loaded anew after a pause must be told anew.
        id = f"{self.task.term}:{self.loaded[0]}:{version}:{service.settings.replica}:{service.boot}"
        await Publisher(service.bus).once(event, org=self.job.org, key=self.job.job_id, id=id)
        log.info("policy loaded", version=version, seconds=round(seconds, 4), proven=proven, canary_error=canary_error)

    async def _follow(self) -> None:
        org, job_id = self.job.org, self.job.job_id
        standing = JobStatus()
        async for recorded in follow(
            self.service.bus.nc, [f"job.*.{org}.{job_id}", f"policy.published.{org}.{job_id}"]
        ):
            if isinstance(recorded.event, PolicyPublished):
                # We follow from the log's beginning: what is told may be long past.
                if self._is_news(recorded.event):
                    self.newest = recorded.event
            elif recorded.type.startswith("job."):
                standing.add(recorded.type)
                self.over = standing.is_over(self.task.term)
            self.news.set()
            if self.over:
                return
