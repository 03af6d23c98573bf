"""Watches live jobs: appends heartbeats for silent ones, and says which service waiting ones lack. Removes what was
deleted, and traces that are not kept any longer.

Invariants. Every gateway checks every job; an event's id is made of the job and the time slot, so that all of them
together append one. An error is logged, and the next turn tries again.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime

from synth.blobs import BlobStore
from synth.bus.publish import Publisher
from synth.events import Heartbeat, QueueWaiting
from synth.gateway.commands.delete import empty_trash
from synth.gateway.commands.expire import expire_traces
from synth.gateway.read_model.hub import Hub
from synth.gateway.read_model.projection import JobRow
from synth.gateway.settings import GatewaySettings
from synth.jobs.lifecycle import State
from synth.runtime import logs

log = logs.get("watchdog")

_INTERVAL_S = 1.0
_HEARTBEAT_TTL_S = 3600.0
_SLOT_S = 4
#: All traces are counted to find those that are too many.
_TRACES_EVERY_S = 60.0


def missing_service(row: JobRow) -> str | None:
    """The service that a job waits for; None when somebody owns it."""
    match row.job.state:
        case State.CREATED:
            return "validator"
        case State.VALIDATED:
            return "verifier"
        case State.VERIFIED if row.job.kind == "sft":
            return "trainer"
        case State.VERIFIED if not row.policy_loaded:
            return "inference"
        case State.VERIFIED:
            return "rollouts" if row.job.kind == "eval" else "trainer"
        case _:
            return None


def silent_jobs(rows: list[JobRow], now: datetime, *, after_s: float) -> list[JobRow]:
    """The live jobs that have shown no event for `after_s` seconds."""
    return [row for row in rows if (now - row.last_shown_at).total_seconds() >= after_s]


def waiting_jobs(rows: list[JobRow], now: datetime, *, pool: str, after_s: float) -> list[tuple[JobRow, QueueWaiting]]:
    """The jobs that wait for a service for `after_s` seconds, each with its place in that queue."""
    found: list[tuple[JobRow, QueueWaiting]] = []
    positions: dict[str, int] = {}
    for row in rows:
        missing = missing_service(row)
        if missing is None:
            continue
        positions[missing] = position = positions.get(missing, 0) + 1
        seconds = (now - row.state_since).total_seconds()
        if seconds >= after_s:
            found.append((row, QueueWaiting(need=missing, pool=pool, position=position, seconds=round(seconds, 1))))
    return found


async def watch_jobs(hub: Hub, publisher: Publisher, blobs: BlobStore, settings: GatewaySettings) -> None:
    """Watch over all live jobs, for ever."""
    traces_due = 0.0
    while True:
        await asyncio.sleep(_INTERVAL_S)
        if not hub.caught_up:
            continue  # in an old view every job looks silent
        try:
            await check_jobs(hub.model.live_jobs(), publisher, settings, datetime.now(UTC))
            await empty_trash(hub.model, blobs)
            if time.monotonic() >= traces_due:
                more = await expire_traces(hub.model, blobs, settings, datetime.now(UTC))
                traces_due = time.monotonic() + (0 if more else _TRACES_EVERY_S)
        except Exception:
            # Whatever it is, the API must live on, and the next turn is in a second.
            log.exception("sweep failed")


async def check_jobs(rows: list[JobRow], publisher: Publisher, settings: GatewaySettings, now: datetime) -> None:
    """Append the heartbeats and the `queue.waiting` that are due for these live jobs."""
    for row, event in waiting_jobs(rows, now, pool=settings.pool, after_s=settings.waiting_after_s):
        slot = int(event.seconds // settings.waiting_after_s)
        last = row.job.waiting
        if last is None or last.need != event.need or int(last.seconds // settings.waiting_after_s) < slot:
            id = f"{event.need}:{int(row.state_since.timestamp())}:{slot}"
            await publisher.once(event, org=row.org, key=row.job.id, id=id)
    for row in silent_jobs(rows, now, after_s=settings.heartbeat_after_s):
        slot = int(now.timestamp() // _SLOT_S)
        event = Heartbeat(state=row.job.state)
        await publisher.once(event, org=row.org, key=row.job.id, id=f"hb:{slot}", ttl=_HEARTBEAT_TTL_S)
