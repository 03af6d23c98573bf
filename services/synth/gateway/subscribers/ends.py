"""The ends of bus keys, at which their feeds are ended.

The request of a revocation ends the feeds itself. An end that was set earlier, by a rotation with a grace period or at
the key's creation, has no request. Every gateway checks for ends, and ending a feed twice changes nothing. Invariant:
no feed outlives its key by more than `SYNTH_BUS_END_CHECK_S` while the log and a gateway are available.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from synth.bus.connection import Connection
from synth.errors import Transient
from synth.gateway.auth import ApiKeyCache
from synth.gateway.subscribers.feeds import end_feeds
from synth.gateway.subscribers.settings import SubscriberSettings
from synth.runtime import logs

log = logs.get("bus key ends")


def watched_s(settings: SubscriberSettings) -> float:
    """Return for how many seconds after a key's end its feeds are searched for.

    No session that began before the end lasts longer, and the server itself removes a feed without a listener.
    """
    return settings.bus_session_s + settings.bus_feed_idle_s + settings.bus_end_check_s


async def watch_ends(bus: Connection, keys: ApiKeyCache, settings: SubscriberSettings) -> None:
    """End the feeds of every bus key that has ended, until cancelled."""
    lasts = timedelta(seconds=watched_s(settings))
    done: dict[str, datetime] = {}
    while True:
        now = datetime.now(UTC)
        done = {digest: end for digest, end in done.items() if end > now - lasts}
        for key in keys.ending():
            end = min(moment for moment in (key.revoked_at, key.expires_at) if moment is not None)
            if not key.bus or key.digest in done or not now - lasts < end <= now:
                continue
            try:
                await end_feeds(bus, key)
            except Transient as error:
                log.warning("the feeds of a key that has ended could not be ended yet", error=str(error))
                continue
            done[key.digest] = end
        await asyncio.sleep(settings.bus_end_check_s)
