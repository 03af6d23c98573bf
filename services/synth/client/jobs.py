"""Jobs: submit, follow, wait, and read their results."""

from __future__ import annotations

import time
import uuid
from builtins import list as List
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from synth.api.rollouts import RolloutDetail, RolloutSummary
from synth.api.schemas import (
    Checkpoint,
    EventPage,
    EventView,
    JobCheck,
    JobWithConfig,
    LoggedLine,
    Point,
    Points,
    SubmittedJob,
)
from synth.client.api import LONG_TIMEOUT_S, Api
from synth.client.connections.known_origins import require_confirmed
from synth.client.errors import FailedJob
from synth.client.files import AsyncFiles
from synth.client.follow import PAGE, EventFollower
from synth.client.organisation import AsyncKeys
from synth.client.transports import Blocking, blocking, blocking_iterator
from synth.jobs.lifecycle import TERMINAL, State

#: Seconds that an outage of the cluster may last while a job is followed.
PATIENCE_S = 600.0


class AsyncJobs:
    """The jobs of the organisation. In each method, `job_id` is a job's whole id."""

    def __init__(self, api: Api, files: AsyncFiles, keys: AsyncKeys) -> None:
        self._api = api
        self._files = files
        self._keys = keys

    async def submit(
        self,
        config: str | Path | Mapping[str, Any],
        *,
        name: str | None = None,
        model: str | None = None,
        dataset: str | Path | None = None,
        validation: str | Path | None = None,
        task_url: str | None = None,
        examples: int | None = None,
        seed: int | None = None,
        allow_experimental: bool = False,
        idempotency_key: str | None = None,
        check_timeout: float = 600.0,
    ) -> SubmittedJob:
        """Check a job file, upload its datasets, and submit it.

        config: a path of a TOML file, the text of one, or its tables as a dict; a `str` with a line break is a text.
        name: of the job, instead of its file's. model: to train from, instead of the file's. dataset, validation: the
        path of a JSONL or Parquet file, or the id of an uploaded one, instead of the file's. task_url: the address of
        the task app, instead of the file's. examples: only the first rows, for a trial. seed: the job's.
        allow_experimental: accept a model that is marked experimental. idempotency_key: the same key with the same
        job, any number of times, is one job; a new key by default, which covers the retries of this call.
        check_timeout: seconds until an uploaded dataset is checked. Raises `UsageProblem` with every problem of the
        file, its values and its datasets; no job is created then.
        """
        # Only a submission needs the checks of a job file, which take a while to import.
        from synth.client.submission import prepare
        from synth.jobs.resolve.context import Overrides

        overrides = Overrides(
            model=model,
            training_file=dataset and str(dataset),
            validation_file=validation and str(validation),
            task_url=task_url,
            examples=examples,
            seed=seed,
            allow_experimental=allow_experimental,
        )
        settings = self._api.config
        checked = prepare(config, settings, overrides, name=name)
        app, key = checked.task_app, settings.environment_key
        if app is not None and key is not None:
            require_confirmed(key, app)
        files = {role: await self._uploaded(file, check_timeout) for role, file in checked.files.items()}
        if not files and app is not None and key is not None:
            # The verifier tries the keys that belong to the app's address: the one in use here must be among them.
            await self._keys.add_environment_key(key.text, app.text)
        return await self.create(checked.body | files, idempotency_key=idempotency_key)

    async def _uploaded(self, file: str, timeout: float) -> str:
        """Return a file's id; a path is uploaded first."""
        if file.startswith("file_"):
            return file
        uploaded = await self._files.upload(file)
        return (await self._files.wait(uploaded.id, timeout=timeout, name=file)).id

    async def create(self, body: Mapping[str, Any], *, idempotency_key: str | None = None) -> SubmittedJob:
        """Submit a job as `POST /api/jobs` takes it, without any check on this machine."""
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        return await self._api.request("POST", "/jobs", SubmittedJob, json=dict(body), headers=headers)

    async def check(self, body: Mapping[str, Any]) -> JobCheck:
        """Check a submission, and return the job that it would make. Creates no job. body: as in `create`."""
        return await self._api.request("POST", "/jobs/check", JobCheck, json=dict(body))

    async def list(
        self,
        *,
        state: str | None = None,
        kind: str | None = None,
        prefix: str | None = None,
        name: str | None = None,
        tags: Sequence[str] = (),
        limit: int | None = None,
    ) -> AsyncGenerator[JobWithConfig]:
        """Yield jobs, newest first; pages are read as they are needed.

        state, kind: only jobs of this one. prefix: only those whose id begins so. name: the job's, or its label. tags:
        each as `owner=ada`; a job has all. limit: at most so many.
        """
        params = {"state": state, "kind": kind, "prefix": prefix, "name": name, "tag": [*tags] or None}
        async for job in self._api.pages("/jobs", JobWithConfig, limit=limit, params=params):
            yield job

    async def get(self, job_id: str) -> JobWithConfig:
        """Read one job."""
        return await self._api.request("GET", _path(job_id), JobWithConfig)

    async def cancel(self, job_id: str) -> JobWithConfig:
        """Request that a job stops."""
        return await self._api.request("POST", f"{_path(job_id)}/cancel", JobWithConfig)

    async def pause(self, job_id: str) -> JobWithConfig:
        """Request that a running job releases its workers."""
        return await self._api.request("POST", f"{_path(job_id)}/pause", JobWithConfig)

    async def resume(self, job_id: str) -> JobWithConfig:
        """Resume a paused job, or a failed one from its last checkpoint."""
        return await self._api.request("POST", f"{_path(job_id)}/resume", JobWithConfig)

    async def delete(self, job_id: str) -> None:
        """Delete a job that has ended, and its results. A second call changes nothing."""
        await self._api.send("DELETE", _path(job_id))

    async def follow(
        self,
        job_id: str,
        *,
        after: int = 0,
        timeout: float | None = None,
        patience: float = PATIENCE_S,
        interval: float = 1.0,
        on_away: Callable[[str], None] = lambda reason: None,
        on_back: Callable[[float], None] = lambda seconds: None,
    ) -> AsyncGenerator[EventView]:
        """Yield the events of a job until it has ended, each once and in order, across broken connections.

        after: the `seq` of the last event that is already known. timeout: seconds, then `TimedOut`; the job goes on.
        patience: seconds that an outage of the cluster may last, then `Unreachable`. interval: seconds between two
        looks where events cannot be streamed. on_away, on_back: called when an outage begins, with its reason, and
        when it is over, with its seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        follower = EventFollower(
            self._api, job_id, _path(job_id), after, patience, deadline, interval, on_away=on_away, on_back=on_back
        )
        async with aclosing(follower.events()) as events:
            async for event in events:
                yield event

    async def wait(self, job_id: str, *, timeout: float | None = None, patience: float = PATIENCE_S) -> JobWithConfig:
        """Wait until a job has ended, and return it.

        timeout, patience: as in `follow`. Raises `FailedJob` for a job that failed, was rejected or was cancelled; its
        `job` is the job as it ended.
        """
        job = await self.get(job_id)
        if job.state not in TERMINAL:
            async for _ in self.follow(job_id, after=job.last_seq, timeout=timeout, patience=patience):
                pass
            job = await self.get(job_id)
        if job.state != State.SUCCEEDED:
            raise FailedJob(job)
        return job

    async def events(self, job_id: str, *, after: int = 0) -> AsyncGenerator[EventView]:
        """Yield the events that a job has now, in order. after: the `seq` of the last one that is already known."""
        while True:
            params = {"after": after, "limit": PAGE}
            page = await self._api.request("GET", f"{_path(job_id)}/events", EventPage, params=params)
            for event in page.events:
                yield event
            if not page.more or not page.events:
                return
            after = page.events[-1].seq

    async def checkpoints(self, job_id: str) -> List[Checkpoint]:
        """List the checkpoints that a job still keeps, newest first."""
        return await self._api.list_of(f"{_path(job_id)}/checkpoints", Checkpoint)

    async def logs(self, job_id: str, *, since: datetime | None = None) -> List[LoggedLine]:
        """List the lines that services logged about a job."""
        params = {"since": since and since.isoformat()}
        return await self._api.list_of(f"{_path(job_id)}/logs", LoggedLine, params=params)

    async def metrics(self, job_id: str, *, name: str | None = None, after_step: int | None = None) -> List[Point]:
        """Read all metrics of a job, or all of one, ascending by step.

        name: of the metric, such as `loss` or `eval.reward_mean`. after_step: only later steps.
        """
        points: List[Point] = []
        while True:
            params = {"name": name, "after_step": after_step}
            page = await self._api.request("GET", f"{_path(job_id)}/metrics", Points, params=params)
            points += page.points
            if not page.more or not page.points:
                return points
            after_step = page.points[-1].step

    async def rollouts(
        self, job_id: str, *, limit: int | None = None, **filters: Any
    ) -> AsyncGenerator[RolloutSummary]:
        """Yield rollouts of a job; pages are read as they are needed.

        limit: at most so many. filters: the parameters of `GET /api/jobs/{job_id}/rollouts`, such as `mode="eval"`,
        `sort="worst"` or `failed=True`.
        """
        path = f"{_path(job_id)}/rollouts"
        async for rollout in self._api.pages(path, RolloutSummary, limit=limit, params=filters, usual=LONG_TIMEOUT_S):
            yield rollout

    async def rollout(self, job_id: str, rollout_id: str) -> RolloutDetail:
        """Read one rollout with its transcript."""
        path = f"{_path(job_id)}/rollouts/{quote(rollout_id, safe='')}"
        return await self._api.request("GET", path, RolloutDetail, usual=LONG_TIMEOUT_S)


class Jobs(Blocking):
    """The jobs of the organisation. In each method, `job_id` is a job's whole id."""

    submit = blocking(AsyncJobs.submit)
    create = blocking(AsyncJobs.create)
    check = blocking(AsyncJobs.check)
    list = blocking_iterator(AsyncJobs.list)
    get = blocking(AsyncJobs.get)
    cancel = blocking(AsyncJobs.cancel)
    pause = blocking(AsyncJobs.pause)
    resume = blocking(AsyncJobs.resume)
    delete = blocking(AsyncJobs.delete)
    follow = blocking_iterator(AsyncJobs.follow)
    wait = blocking(AsyncJobs.wait)
    events = blocking_iterator(AsyncJobs.events)
    checkpoints = blocking(AsyncJobs.checkpoints)
    logs = blocking(AsyncJobs.logs)
    metrics = blocking(AsyncJobs.metrics)
    rollouts = blocking_iterator(AsyncJobs.rollouts)
    rollout = blocking(AsyncJobs.rollout)


def _path(job_id: str) -> str:
    return f"/jobs/{quote(job_id, safe='')}"
