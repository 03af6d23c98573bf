"""The pause of running jobs of organisations that have used all of their GPU-seconds.

Every gateway checks this limit; a job that another gateway has paused since is not changed.
"""

from __future__ import annotations

import asyncio

from synth.bus.connection import Connection
from synth.bus.history.job_log import JobHistory, append_decided
from synth.errors import SynthError
from synth.events import JobPauseRequested
from synth.events.catalogue import Event
from synth.gateway.limits.settings import LimitSettings
from synth.gateway.read_model.live_jobs import live_jobs
from synth.gateway.read_model.store import ReadModel
from synth.gateway.read_model.tables.device_time import device_seconds, holding_orgs
from synth.jobs.lifecycle import State
from synth.runtime import logs

log = logs.get("device_limit")

#: Pauses that are requested at a time.
_AT_ONCE = 32


async def pause_beyond_limit(bus: Connection, model: ReadModel, settings: LimitSettings, *, now: float) -> None:
    """Request the pause of jobs beyond the limit, with the reason. now: Unix time."""
    beyond: dict[str, str] = {}
    for org in holding_orgs(model.db):
        limits = settings.limits_of(org)
        if limits.gpu_seconds is None:
            continue
        used = device_seconds(model.db, org, now=now, days=limits.gpu_days)
        if used >= limits.gpu_seconds:
            beyond[org] = (
                f"the organisation's jobs have taken {used:,.0f} GPU-seconds in {limits.gpu_days} days, of which they "
                f"may take {limits.gpu_seconds:,.0f} (SYNTH_ORG_GPU_SECONDS); resume it when days with less count, or "
                "have the operator raise the limit"
            )
        await asyncio.sleep(0)
    if not beyond:
        return
    async for page in live_jobs(model, states={State.STARTED}, orgs=beyond):
        for first in range(0, len(page), _AT_ONCE):
            some = page[first : first + _AT_ONCE]
            await asyncio.gather(*(_pause(bus, row.org, row.job.id, beyond[row.org]) for row in some))


async def _pause(bus: Connection, org: str, job: str, reason: str) -> None:
    def decide(history: JobHistory) -> Event | None:
        return JobPauseRequested(reason=reason) if history.state is State.STARTED else None

    try:
        _, seq = await append_decided(bus, org, job, decide)
    except SynthError as error:
        # The next check tries it again; the other jobs are still paused now.
        log.warning("a job cannot be paused now", job=job, org=org, error=str(error))
        return
    if seq is not None:
        log.warning("a job is paused", job=job, org=org, reason=reason)
