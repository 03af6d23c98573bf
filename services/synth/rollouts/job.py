"""The owner of one job's collect task: follows its requests, collects them, ends with the job.

An RL job is the trainer's; its collector only serves it. An evaluation is the collector's own: it holds the attempt.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

import structlog

from synth import logs
from synth.blobs import BlobStore
from synth.bus.connection import Connection
from synth.bus.job_log import JobHistory, append_as_owner, read_job, start_attempt
from synth.bus.publish import Fence
from synth.bus.replay import follow
from synth.bus.replicas import ReplicaTable
from synth.bus.secrets import SecretStore
from synth.bus.worker import Lease
from synth.catalogue import Event
from synth.events import (
    EvalCompleted,
    JobCancelled,
    JobFailed,
    JobSucceeded,
    JobValidated,
    JobVerified,
    PolicyLoaded,
    PolicyRefused,
    RolloutRequested,
    Task,
)
from synth.jobs.lifecycle import TERMINAL, State, apply
from synth.jobs.resolved import EvalJob, RlJob, job_from_data
from synth.rollouts.collector import Broken, Collector, PolicyVersions, Request
from synth.rollouts.drive import Driver
from synth.rollouts.groups import build_batch, collection_values
from synth.rollouts.record import RolloutLog, as_request
from synth.rollouts.settings import RolloutsSettings
from synth.rollouts.task_client import RecorderClient, TaskClient

log = logs.get("collect")

_STALL_S = 60.0


@dataclass(frozen=True)
class CollectorService:
    """What every collect task of this process shares."""

    bus: Connection
    blobs: BlobStore
    settings: RolloutsSettings
    replicas: ReplicaTable

    async def run(self, task: Task, lease: Lease) -> None:
        """Own one collect task until its job has ended."""
        with structlog.contextvars.bound_contextvars(job=task.job_id):
            history = await read_job(self.bus, task.org, task.job_id)
            if history.ended:
                return
            job = job_from_data(history.need(JobValidated).job)
            assert isinstance(job, RlJob | EvalJob)
            async with AsyncExitStack() as stack:
                run = await self._open(stack, history, job, lease)
                await (run.serve() if isinstance(job, RlJob) else run.evaluate(job))

    async def _open(self, stack: AsyncExitStack, history: JobHistory, job: RlJob | EvalJob, lease: Lease) -> _Run:
        verified = history.need(JobVerified)
        secret = self.settings.cluster_secret.get_secret_value()
        keys = {k.id: k.key for k in await SecretStore(self.bus, secret).environment_keys(history.org)}
        limit = job.rollout.max_concurrent_rollouts
        app = TaskClient(
            job.rollout,
            job_id=history.job_id,
            key=keys.get(verified.task_key_id or ""),
            limit=limit,
            guard=self.settings.guard,
        )
        recorder = RecorderClient(secret, limit=limit)
        stack.push_async_callback(app.close)
        stack.push_async_callback(recorder.close)
        driver = Driver(
            history.job_id,
            job.rollout,
            app=app,
            recorder=recorder,
            replicas=self.replicas,
            secret=secret,
            public_url=self.settings.inference_public_url,
            replica_wait_s=120,
        )
        record = RolloutLog(self.bus, self.blobs, history.org, history.job_id)

        def progress(done: int, of: int) -> None:
            lease.progress(f"collecting {done} of {of}", deadline=deadline)

        # Silence is a hang only when it outlasts everything that a rollout may rightly wait for.
        deadline = self.settings.policy_wait_s + (job.rollout.rollout_timeout_s + 10) * (job.rollout.max_retries + 2)
        lease.progress("start", deadline=deadline)
        collector = Collector(
            history.job_id,
            limit=limit,
            max_tries=1 + job.rollout.max_retries,
            attempt=driver.attempt,
            keep=record.keep,
            give_up=record.give_up,
            progress=progress,
        )
        return _Run(self, history, job, collector, record, idle=lambda: lease.progress("idle", deadline=deadline))


class _Run:
    """One job's collection."""

    def __init__(
        self,
        service: CollectorService,
        history: JobHistory,
        job: RlJob | EvalJob,
        collector: Collector,
        record: RolloutLog,
        *,
        idle: Callable[[], None],
    ) -> None:
        self._service = service
        self._history = history
        self._job = job
        self._collector = collector
        self._record = record
        self._idle = idle
        self._versions = PolicyVersions()
        self._order = asyncio.Lock()

    async def serve(self) -> None:
        """Collect an RL job's requests, in their order, until the job has ended."""
        org, job_id = self._history.org, self._history.job_id
        # From the start: policy versions that were loaded before us count, requests that are finished are skipped.
        await self._record.read()
        subjects = [f"{fact}.{org}.{job_id}" for fact in ("rollout.requested", "policy.loaded")]
        state: State | None = None
        async with asyncio.TaskGroup() as group:
            running: dict[tuple[str, int], asyncio.Task[None]] = {}
            ticker = group.create_task(self._tick())
            async for recorded in follow(self._service.bus.nc, [*subjects, f"job.*.{org}.{job_id}"]):
                match recorded.event:
                    case PolicyLoaded(version=version):
                        await self._versions.loaded(version)
                    case RolloutRequested() as event:
                        request = as_request(event)
                        key = (request.mode, request.iteration)
                        if not self._record.finished(request) and key not in running:
                            previous = list(running.values())[-1:] if request.mode == "train" else []
                            running[key] = group.create_task(self._collect(request, previous))
                    case _ if recorded.type.startswith("job."):
                        state = apply(state, recorded.type)
                        if state in TERMINAL:
                            break
            ticker.cancel()
            for task in running.values():
                task.cancel()

    async def _tick(self) -> None:
        # An RL collector waits for its trainer as long as that takes: an idle owner is not a hung one.
        while True:
            await asyncio.sleep(_STALL_S / 4)
            self._idle()

    async def _collect(self, request: Request, previous: list[asyncio.Task[None]]) -> None:
        started = time.monotonic()
        job = self._job
        assert isinstance(job, RlJob)
        wait = self._service.settings.policy_wait_s
        await self._versions.at_least(max(request.oldest_version, request.pinned_version or 0), timeout=wait)
        result = await self._collector.collect(request, await self._record.durable(request))
        if isinstance(result, Broken):
            await self._record.blocked(request.iteration, result.problem)
            return
        rollouts, failed = result
        values = collection_values(rollouts, failed=failed) | {"collect_seconds": time.monotonic() - started}
        if request.mode == "eval":
            await self._record.evaluated(
                EvalCompleted(
                    model=f"{self._history.job_id}@v{request.pinned_version}",
                    instances=len(rollouts),
                    values=values,
                    step=request.pinned_version,
                    iteration=request.iteration,
                )
            )
            return
        batch = build_batch(
            rollouts,
            job_id=self._history.job_id,
            iteration=request.iteration,
            temperature=job.rollout.sampling.temperature,
            groups=len(request.seeds),
            group_size=request.group_size,
            by_std=job.advantage_std,
            values=values,
        )
        # Batches are a chain: the one before must be in the log first.
        if previous:
            await asyncio.wait(previous)
        await self._record.batch(batch, values)
        log.info("batch", iteration=request.iteration, sequences=batch.sequences, reward=values.get("reward_mean"))

    async def evaluate(self, job: EvalJob) -> None:
        """Run an evaluation job, whose owner we are, to its end."""
        service, history = self._service, self._history
        obstacle = await self._until_served()
        history, fence = await start_attempt(service.bus, history.org, history.job_id, worker=service.settings.replica)
        if fence is None:
            return
        if obstacle is not None or history.state is State.CANCELLING:
            await self._end(fence, obstacle or JobCancelled(step=0))
            return
        work = asyncio.create_task(self._evaluate(job))
        interrupted = asyncio.create_task(self._interruption())
        try:
            await asyncio.wait([work, interrupted], return_when=asyncio.FIRST_COMPLETED)
            ending = work.result() if work.done() else interrupted.result()
        finally:
            for task in (work, interrupted):
                task.cancel()
            await asyncio.gather(work, interrupted, return_exceptions=True)
        await self._end(fence, ending)

    async def _until_served(self) -> JobFailed | None:
        """Wait for the model: a job that lacks an engine has not started, and the gateway says what it waits for."""
        facts = ("policy.loaded", "policy.refused", "job.*")
        subjects = [f"{fact}.{self._history.org}.{self._history.job_id}" for fact in facts]
        ticker = asyncio.create_task(self._tick())
        try:
            state: State | None = None
            async for recorded in follow(self._service.bus.nc, subjects):
                match recorded.event:
                    case PolicyLoaded():
                        return None
                    case PolicyRefused(problem=problem):
                        return JobFailed(code="cannot_serve", problem=problem)
                    case _:
                        state = apply(state, recorded.type)
                        if state in TERMINAL:
                            return None
            raise AssertionError("a follow never ends")
        finally:
            ticker.cancel()

    async def _interruption(self) -> Event:
        """Wait for a reason to stop before the end."""
        facts = ("job.cancel_requested", "policy.refused")
        subjects = [f"{fact}.{self._history.org}.{self._history.job_id}" for fact in facts]
        async for recorded in follow(self._service.bus.nc, subjects):
            if isinstance(recorded.event, PolicyRefused):
                return JobFailed(code="cannot_serve", problem=recorded.event.problem)
            return JobCancelled(step=0)
        raise AssertionError("a follow never ends")

    async def _evaluate(self, job: EvalJob) -> Event:
        await self._record.read()
        request = Request(iteration=0, mode="eval", seeds=job.seeds, group_size=1, oldest_version=0)
        result = await self._collector.collect(request, await self._record.durable(request))
        if isinstance(result, Broken):
            return JobFailed(code="task_app_failed", problem=result.problem)
        rollouts, lost = result
        values = collection_values(rollouts, failed=lost)
        await self._record.evaluated(EvalCompleted(model=job.model, instances=len(rollouts), values=values))
        return JobSucceeded(steps=0, values=values)

    async def _end(self, fence: Fence, ending: Event) -> None:
        def unless_ended(history: JobHistory) -> Event | None:
            if history.ended:
                return None
            return JobCancelled(step=0) if history.state is State.CANCELLING else ending

        await append_as_owner(self._service.bus, fence, unless_ended)
