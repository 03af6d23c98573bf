"""The watchdog of live jobs: heartbeats for silent jobs with watchers, and the missing service of waiting jobs.

It also pauses jobs that may take no more GPU-seconds, and removes deleted items and expired traces.

Invariants. Every gateway checks every waiting job, and the jobs that its own clients watch; an event's id is made from
the job and the time slot, so that all gateways together append one event. Live jobs are read in pages, between which
requests are served, for a small part of the time. An error is logged, and the next turn tries again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Container, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial

from synth.blobs import BlobStore
from synth.bus.connection import Connection
from synth.bus.publish import Publisher
from synth.events import Heartbeat, QueueWaiting
from synth.gateway.commands.delete import count_erased, empty_trash
from synth.gateway.commands.expire import expire_checkpoints, expire_traces
from synth.gateway.ledger.watch import LedgerWatch
from synth.gateway.limits.device_limit import pause_beyond_limit
from synth.gateway.read_model.hub import Hub
from synth.gateway.read_model.live_jobs import WAITING, JobQueue, live_jobs
from synth.gateway.read_model.projection import JobRow
from synth.gateway.read_model.store import ReadModel
from synth.gateway.settings import GatewaySettings
from synth.jobs.lifecycle import TERMINAL
from synth.runtime import logs

log = logs.get("watchdog")

_INTERVAL_S = 1.0
_CATCH_UP_S = 0.05
_HEARTBEAT_TTL_S = 3600.0
_SLOT_S = 4
#: The interval at which all traces are counted to find excess traces.
_TRACES_EVERY_S = 60.0
#: The largest part of the time that checks of all live jobs take, and the longest pause in seconds between two checks.
_LOOKING_SHARE = 0.25
_LOOKING_EVERY_S = 10.0
#: A job passes its checks and reaches a free worker in less time than this.
_PASSING_S = 1.0
_FIRST_PLACES = 10
#: Appends that run at a time.
_AT_ONCE = 64
_Append = Callable[[], Awaitable[int]]


def slot_of(waited_s: float, *, after_s: float) -> int:
    """Return how often a wait of this length has been announced: after `after_s`, then at each doubling."""
    return int(waited_s / after_s).bit_length()


async def watch_jobs(
    bus: Connection, hub: Hub, queue: JobQueue, blobs: BlobStore, settings: GatewaySettings, ledger: LedgerWatch
) -> None:
    """Watch all live jobs, for ever, while the bus has lost nothing."""
    publisher = Publisher(bus)
    traces_due = look_due = 0.0
    while True:
        if not hub.caught_up or ledger.damage:
            await asyncio.sleep(_CATCH_UP_S)
            continue  # in an old view every job looks silent, and in a damaged one no blob looks needed
        try:
            await say_heartbeats(hub.model, hub.watched_jobs(), publisher, settings, datetime.now(UTC))
            if (begun := time.monotonic()) >= look_due:
                await queue.update(hub.model)
                watched = hub.watched_jobs()
                await say_waiting(hub.model, queue, publisher, settings, datetime.now(UTC), watched=watched)
                await pause_beyond_limit(bus, hub.model, settings, now=time.time())
                await empty_trash(hub.model, blobs)
                await count_erased(bus, hub.model)
                hub.model.remove_leftovers()
                took = time.monotonic() - begun
                look_due = time.monotonic() + min(took / _LOOKING_SHARE, _LOOKING_EVERY_S)
            if time.monotonic() >= traces_due:
                await expire_checkpoints(hub.model, publisher, settings, datetime.now(UTC))
                more = await expire_traces(hub.model, blobs, settings, datetime.now(UTC))
                traces_due = time.monotonic() + (0 if more else _TRACES_EVERY_S)
        except Exception:
            # The API must continue after any error, and the next turn is in a second.
            log.exception("sweep failed")
        await asyncio.sleep(_INTERVAL_S)


async def say_heartbeats(
    model: ReadModel, watched: Iterable[str], publisher: Publisher, settings: GatewaySettings, now: datetime
) -> None:
    """Append a heartbeat for each of these jobs that is live and has had no shown event for a while."""
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


def is_news(position: int, announced: int) -> bool:
    """Return whether a watched job's new place is announced: each of the first ten, and before that each halving.

    A long queue in which every job is watched would otherwise fill the log with the square of its length.
    """
    return position < announced and (position <= _FIRST_PLACES or 2 * position <= announced)


async def say_waiting(
    model: ReadModel,
    queue: JobQueue,
    publisher: Publisher,
    settings: GatewaySettings,
    now: datetime,
    *,
    watched: Container[str] = (),
) -> None:
    """Append `queue.waiting`, with its place, for each job whose wait must be announced.

    A job with watchers is announced at once, and when its place changes (`is_news`); any job is announced when it has
    waited long enough.
    """
    after_s = settings.waiting_after_s
    async for page in live_jobs(model, states=WAITING):
        due: list[_Append] = []
        for row in page:
            place = queue.place(row)
            if place is None:
                continue
            waited, said = (now - row.state_since).total_seconds(), row.waiting
            known = said is not None and said.need == place.need
            slot = slot_of(waited, after_s=after_s)
            told = slot_of(said.seconds, after_s=after_s) if known and said is not None else 0
            followed = row.job.id in watched and waited >= _PASSING_S
            moved = followed and (not known or said is None or is_news(place.position, said.position))
            if slot > told or moved:
                event = QueueWaiting(
                    need=place.need, pool=place.pool, position=place.position, seconds=round(max(0.0, waited), 1)
                )
                which = f"{slot}" if slot > told else f"p{place.position}"
                id = f"{place.need}:{int(row.state_since.timestamp())}:{which}"
                due.append(partial(publisher.once, event, org=row.org, key=row.job.id, id=id))
        await _append_all(due)


async def _append_all(due: Sequence[_Append]) -> None:
    for first in range(0, len(due), _AT_ONCE):
        await asyncio.gather(*(append() for append in due[first : first + _AT_ONCE]))
