"""The owner of serve tasks: loads a job's policy, follows its versions, and releases it when the job ends or pauses."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from synth.blobs import BlobStore
from synth.bus.connection import Connection
from synth.bus.history.job_log import read_job
from synth.bus.publish import Publisher, enqueue
from synth.bus.replay import follow, replay
from synth.bus.tasks.lease import Lease
from synth.errors import Permanent, Problem, Transient
from synth.events import JobValidated, JobVerified, PolicyLoaded, PolicyPublished, PolicyRefused
from synth.inference.api.requests import JobSampling
from synth.inference.serving.canary import CanaryMismatch, check_canary
from synth.inference.serving.model_pool import ServedModel
from synth.inference.serving.router import ModelRouter, ServedJob
from synth.inference.settings import InferenceSettings
from synth.jobs.lifecycle import JobStatus
from synth.methods.base import PlayedJob
from synth.methods.job import job_from_data
from synth.runtime import logs
from synth.work import Task

log = logs.get("serve")

_POLL_S = 5.0
#: After so many seconds of serving, the policy counts as one that does not end its process.
_SERVES_WELL_S = 600.0

#: The delay of a job's second serve task that was delivered to the process that already serves the job.
_REQUEUE_DELAY_S = 5.0

#: The models that a job with a teacher needs at the same time.
_WITH_TEACHER = 2


@dataclass(frozen=True)
class ServeTaskOwner:
    """The owner of this process's serve tasks. boot: identifies this process in the ids of its announcements.

    serving: the jobs whose tasks it owns.
    """

    bus: Connection
    blobs: BlobStore
    settings: InferenceSettings
    router: ModelRouter
    boot: str
    changed: asyncio.Event
    serving: set[str] = field(default_factory=set[str])

    async def run(self, task: Task, lease: Lease) -> None:
        """Own one serve task until its job has ended or is paused."""
        history = await read_job(self.bus, task.org, task.job_id)
        if history.status.is_over(task.term):
            return
        job = job_from_data(history.need(JobValidated).job)
        assert isinstance(job, PlayedJob)
        sampling = JobSampling.of(job)
        served = ServedJob(
            org=task.org,
            job_id=task.job_id,
            source=history.need(JobVerified).source,
            sampling=sampling,
            lora=job.lora_shape,
            expects_new_weights=job.training is not None,
            teacher=history.need(JobVerified).teacher,
        )
        if task.job_id in self.serving:
            raise Transient("this process serves the job already: it is another one's turn", delay=_REQUEUE_DELAY_S)
        self.serving.add(task.job_id)
        served_task = _ServedTask(self, served, task)
        try:
            await served_task.serve_until_over(lease)
        except Permanent as error:
            await self.refuse(task, str(error), train=served.expects_new_weights)
        finally:
            self.serving.discard(task.job_id)
            self.router.jobs.pop(task.job_id, None)
            await self.router.model_pool.release(task.job_id)
            self.changed.set()

    async def give_up(self, task: Task, reason: str) -> None:
        """Announce for a dead letter that its policy cannot be served, so that the owner of the job ends it."""
        history = await read_job(self.bus, task.org, task.job_id)
        if history.status.is_over(task.term):
            return
        job = job_from_data(history.need(JobValidated).job)
        await self.refuse(task, reason, train=job.training is not None)

    def check_room(self, job: ServedJob) -> None:
        """Raise `Permanent` if this process can never hold the models that the job needs at the same time."""
        if job.teacher is not None and self.settings.max_models < _WITH_TEACHER:
            raise Permanent(
                f"a policy and its teacher {job.teacher.id!r} are {_WITH_TEACHER} models, and this process holds "
                f"{self.settings.max_models} (SYNTH_MAX_MODELS)"
            )

    async def refuse(self, task: Task, reason: str, *, train: bool) -> None:
        """Announce that a policy cannot be served. The train task is queued anyway, because its owner ends the job."""
        log.error("policy refused", job=task.job_id, reason=reason)
        event = PolicyRefused(problem=Problem(what=f"the model cannot be served: {reason}"))
        await Publisher(self.bus).once(event, org=task.org, key=task.job_id, id=f"refused:{task.term}")
        if train:
            await self.queue_train_task(task)

    async def queue_train_task(self, task: Task) -> None:
        """Queue the train task of the same job and term as this serve task."""
        train = Task(kind="train", pool=self.settings.pool, org=task.org, job_id=task.job_id, term=task.term)
        await enqueue(self.bus, train)


@dataclass
class _ServedTask:
    owner: ServeTaskOwner
    job: ServedJob
    task: Task
    newest: PolicyPublished | None = None
    loaded: tuple[int, int] = (0, 0)
    over: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve_until_over(self, lease: Lease) -> None:
        owner, job = self.owner, self.job
        lease.progress("load", deadline=owner.settings.load_wait_s + 60)
        started = time.monotonic()
        owner.check_room(job)
        await owner.router.check_teacher(job)
        policy = await owner.router.model_pool.hold(job.job_id, await owner.router.source_of(job), org=job.org)
        lease.progress("load the teacher", deadline=owner.settings.load_wait_s + 60)
        # A job needs its teacher as much as its policy: if one of the two has no place, neither keeps its place.
        async with owner.router.hold_teacher(job) as teacher:
            await self._serve(lease, policy, teacher, started)

    async def _serve(self, lease: Lease, policy: ServedModel, teacher: ServedModel | None, started: float) -> None:
        owner, job = self.owner, self.job
        self.newest = await self._last_published()
        following = asyncio.create_task(self._follow())
        try:
            if (await read_job(owner.bus, job.org, job.job_id)).status.is_over(self.task.term):
                # The job ended while the policy was loading, so the policy must not be announced.
                return
            if self.newest is not None:
                # After a takeover the newest version is served at once; earlier ones are not needed any more.
                await self._catch_up(policy)
            else:
                await self._announce(0, time.monotonic() - started, proven=0)
            # The job is routable only now: while its newest version was loading, the engine still held the source
            # model.
            owner.router.jobs[job.job_id] = job
            owner.changed.set()
            # The engine is ready, so a trainer will not have to wait for it: queue its task (decision 16).
            if job.expects_new_weights:
                await owner.queue_train_task(self.task)
            began, first = time.monotonic(), self.loaded
            while not self.over:
                if self.loaded != first or time.monotonic() - began > _SERVES_WELL_S:
                    await lease.advanced()
                if not policy.engine.healthy:
                    raise Transient(f"the engine of {job.job_id} has stopped")
                if teacher is not None and not teacher.engine.healthy:
                    raise Transient(f"the engine of the teacher of {job.job_id} has stopped")
                # Fetching, hashing and swapping a large policy takes minutes, and has a deadline of its own.
                lease.progress("load a version", deadline=owner.settings.load_wait_s + 60)
                await self._catch_up(policy)
                lease.progress("serve", deadline=60)
                await self._wait_for_change(following)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def _wait_for_change(self, following: asyncio.Task[None]) -> None:
        if following.done():
            following.result()
        try:
            async with asyncio.timeout(_POLL_S):
                await self.changed.wait()
        except TimeoutError:
            return
        self.changed.clear()

    async def _catch_up(self, policy: ServedModel) -> None:
        while (event := self.newest) is not None and (event.attempt, event.version) > self.loaded:
            started = time.monotonic()
            try:
                proven, canary_error = await self._load_version(policy, event)
            except CanaryMismatch:
                # A newer version would not help: the engine or the trainer is wrong.
                raise
            except Permanent:
                # A version can expire as soon as there is a newer one, of which our follower may not have heard yet.
                # But if this version is still the newest, it is broken.
                newest = await self._last_published()
                if newest is not None and self._is_newer(newest):
                    self.newest = newest
                if self.newest == event:
                    raise
                continue
            self.loaded = (event.attempt, event.version)
            await self._announce(event.version, time.monotonic() - started, proven=proven, canary_error=canary_error)

    async def _load_version(self, policy: ServedModel, event: PolicyPublished) -> tuple[int, float | None]:
        """Serve a version; returns how many tensors were proven, and the canary's largest error in nats, or None."""
        blobs = self.owner.blobs
        name = f"{self.job.job_id}-{event.attempt}-{event.version}.safetensors"
        file = await blobs.fetch(event.weights, self.owner.router.cache / name)
        try:
            proof = await policy.engine.update_weights(file, event.version)
        finally:
            if blobs.root is None:
                # Our own copy. A local store returns the blob itself.
                file.unlink(missing_ok=True)
        if event.canary is None:
            return proof.matched, None
        return proof.matched, await check_canary(policy.engine, event.canary, half_precision=policy.half_precision)

    async def _last_published(self) -> PolicyPublished | None:
        subject = f"policy.published.{self.job.org}.{self.job.job_id}"
        past = await replay(self.owner.bus, [subject], last_per_subject=True)
        return past[-1].event if past and isinstance(past[-1].event, PolicyPublished) else None

    def _is_newer(self, event: PolicyPublished) -> bool:
        known = self.newest
        return known is None or (event.attempt, event.version) > (known.attempt, known.version)

    async def _announce(self, version: int, seconds: float, *, proven: int, canary_error: float | None = None) -> None:
        owner = self.owner
        event = PolicyLoaded(
            version=version,
            replica=owner.settings.replica,
            index=self.task.index or 0,
            # The time is not rounded: two loads of one version are two facts, and rounded they could be equal.
            seconds=seconds,
            proven=proven,
            canary_error=canary_error,
        )
        # The id holds the term, because a policy that is loaded again after a pause must be announced again.
        id = f"{self.task.term}:{self.loaded[0]}:{version}:{owner.settings.replica}:{owner.boot}"
        await Publisher(owner.bus).once(event, org=self.job.org, key=self.job.job_id, id=id)
        log.info("policy loaded", version=version, seconds=round(seconds, 4), proven=proven, canary_error=canary_error)

    async def _follow(self) -> None:
        org, job_id = self.job.org, self.job.job_id
        status = JobStatus()
        async for recorded in follow(self.owner.bus, [f"job.*.{org}.{job_id}", f"policy.published.{org}.{job_id}"]):
            if isinstance(recorded.event, PolicyPublished):
                # The follower reads from the beginning of the log, so this version may be an old one.
                if self._is_newer(recorded.event):
                    self.newest = recorded.event
            elif recorded.type.startswith("job."):
                status.add(recorded.type)
                self.over = status.is_over(self.task.term)
            self.changed.set()
            if self.over:
                return
