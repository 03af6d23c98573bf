"""Watches live jobs: appends heartbeats for silent ones that somebody watches, and says which service waiting ones
lack. Pauses jobs that may take no more GPU-seconds. Removes what was deleted, and traces that are not kept any longer.

Invariants. Every gateway checks every job that waits, and those that its own clients watch; an event's id is made of
the job and the time slot, so that all of them together append one. Live jobs are read in pages between which requests
are answered, for a small part of the time. An error is logged, and the next turn tries again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial

from synth.blobs import BlobStore
from synth.bus.connection import Connection
from synth.bus.publish import Publisher
from synth.events import Heartbeat, QueueWaiting
from synth.gateway.commands.delete import empty_trash
from synth.gateway.commands.expire import expire_traces
from synth.gateway.limits.device_limit import pause_beyond_limit
from synth.gateway.read_model.hub import Hub
from synth.gateway.read_model.live_jobs import WAITING, live_jobs
from synth.gateway.read_model.projection import JobRow
from synth.gateway.read_model.store import ReadModel
from synth.gateway.settings import GatewaySettings
from synth.jobs.lifecycle import TERMINAL, State
from synth.runtime import logs

log = logs.get("watchdog")

_INTERVAL_S = 1.0
_HEARTBEAT_TTL_S = 3600.0
_SLOT_S = 4
#: All traces are counted to find those that are too many.
_TRACES_EVERY_S = 60.0
#: Looks at all live jobs take this part of the time at most, and lie no further apart than so many seconds.
_LOOKING_SHARE = 0.25
_LOOKING_EVERY_S = 10.0
#: Appends that are under way at one time.
_AT_ONCE = 64
_Append = Callable[[], Awaitable[int]]


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


def slot_of(waited_s: float, *, after_s: float) -> int:
    """How often it is said that a job waits, when it has waited for so long: after `after_s`, then each time that it
    has waited twice as long.
    """
    return int(waited_s / after_s).bit_length()


async def watch_jobs(bus: Connection, hub: Hub, blobs: BlobStore, settings: GatewaySettings) -> None:
    """Watch over all live jobs, for ever."""
    publisher = Publisher(bus)
    traces_due = look_due = 0.0
    while True:
        await asyncio.sleep(_INTERVAL_S)
        if not hub.caught_up:
            continue  # in an old view every job looks silent
        try:
            await say_heartbeats(hub.model, hub.watched_jobs(), publisher, settings, datetime.now(UTC))
            if (begun := time.monotonic()) >= look_due:
                await say_waiting(hub.model, publisher, settings, datetime.now(UTC))
                await pause_beyond_limit(bus, hub.model, settings, now=time.time())
                await empty_trash(hub.model, blobs)
                hub.model.remove_leftovers()
                took = time.monotonic() - begun
                look_due = time.monotonic() + min(took / _LOOKING_SHARE, _LOOKING_EVERY_S)
            if time.monotonic() >= traces_due:
                more = await expire_traces(hub.model, blobs, settings, datetime.now(UTC))
                traces_due = time.monotonic() + (0 if more else _TRACES_EVERY_S)
        except Exception:
            # Whatever it is, the API must live on, and the next turn is in a second.
            log.exception("sweep failed")


async def say_heartbeats(
    model: ReadModel, watched: Iterable[str], publisher: Publisher, settings: GatewaySettings, now: datetime
) -> None:
    """Append a heartbeat for each of these jobs that is live and has shown no event for a while."""
    slot = int(now.timestamp() // _SLOT_S)
    due: list[_Append] = []
    for id in watched:
        row = model.find("jobs", JobRow, id)
        if row is None or row.job.state in TERMINAL:
            continue
        if (now - row.last_shown_at).total_seconds() >= settings.heartbeat_after_s:
            beat = Heartbeat(state=row.job.state)
            due.append(partial(publisher.once, beat, org=row.org, key=id, id=f"hb:{slot}", ttl=_HEARTBEAT_TTL_S))
    await _append_all(due)


async def say_waiting(model: ReadModel, publisher: Publisher, settings: GatewaySettings, now: datetime) -> None:
    """Append `queue.waiting` for each job that has waited for a service for so long that it is due, with its place."""
    after_s, positions = settings.waiting_after_s, dict[str, int]()
    async for page in live_jobs(model, states=WAITING):
        due: list[_Append] = []
        for row in page:
            missing = missing_service(row)
            if missing is None:
                continue
            positions[missing] = position = positions.get(missing, 0) + 1
            waited, last = (now - row.state_since).total_seconds(), row.job.waiting
            slot = slot_of(waited, after_s=after_s)
            said = 0 if last is None or last.need != missing else slot_of(last.seconds, after_s=after_s)
            if slot > said:
                event = QueueWaiting(need=missing, pool=settings.pool, position=position, seconds=round(waited, 1))
                id = f"{missing}:{int(row.state_since.timestamp())}:{slot}"
                due.append(partial(publisher.once, event, org=row.org, key=row.job.id, id=id))
        await _append_all(due)


async def _append_all(due: Sequence[_Append]) -> None:
    for first in range(0, len(due), _AT_ONCE):
        await asyncio.gather(*(append() for append in due[first : first + _AT_ONCE]))
