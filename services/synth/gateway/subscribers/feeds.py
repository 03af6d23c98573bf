"""Feeds: consumers of the log that deliver one organisation's events to a bus key's own subject.

The gateway makes them, so that a subscriber needs to publish nothing: whoever may ask JetStream for a message names the
subject that it is delivered to, and that subject may be anybody's (decision 43). A feed keeps no place: its subscriber
does, and asks for a new one behind it. Invariant: a key has as many feeds as it may, whatever it asks for, since they
have their names and the server refuses a second one of a name; one without a listener is removed by the server.
"""

# nats-py annotates parts of itself not at all.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import asyncio
import json
import secrets
from typing import Any

from nats.errors import Error as NatsError

from synth.api.schemas import Feed
from synth.bus.connection import Connection
from synth.bus.kv.secrets import ApiKey
from synth.bus.server.topology import EVENTS
from synth.errors import Transient
from synth.gateway.subscribers.settings import MOST_FEEDS, SubscriberSettings

_REQUEST_S = 5.0
#: No organisation has this id.
_NOTHING = "*.*.ended.>"
# JetStream's error codes. The second one is said of an update.
_GONE = (10014, 10149)
_EXISTS = 10148


def subjects_of(key: ApiKey) -> str:
    """The subjects that a bus key may listen to."""
    return f"outside.{key.org}.{key.key_id}.>"


async def open_feed(bus: Connection, key: ApiKey, *, after: int, settings: SubscriberSettings) -> Feed | None:
    """A feed of the events behind the sequence `after`; None where the key has as many as it may.

    Raises `Transient` while the log is away.
    """
    subject = subjects_of(key).removesuffix(">") + secrets.token_hex(8)
    config: dict[str, object] = {
        "deliver_subject": subject,
        "filter_subject": f"*.*.{key.org}.>",
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": after + 1,
        "ack_policy": "none",
        "max_deliver": 1,
        "idle_heartbeat": int(settings.bus_feed_heartbeat_s * 1e9),
        "inactive_threshold": int(settings.bus_feed_idle_s * 1e9),
        "rate_limit_bps": settings.bus_feed_bytes_per_s * 8,
        "mem_storage": True,
        "num_replicas": 1,
    }
    for slot in range(settings.bus_feeds):
        reply = await _write(bus, "create", config | {"name": _name(key, slot)})
        if "error" not in reply:
            return Feed(subject=subject, after=after, heartbeat_s=settings.bus_feed_heartbeat_s)
        if reply["error"].get("err_code") != _EXISTS:
            raise Transient(f"no feed could be made: {reply['error'].get('description')}", delay=2)
    return None


async def end_feeds(bus: Connection, key: ApiKey) -> None:
    """Let the feeds of a key deliver nothing from now on; the server removes them with their listener's session.

    Also those that it has from when `SYNTH_BUS_FEEDS` was higher. Raises `Transient` while the log is away.
    """
    # Each by itself: one may lie on a server that is away.
    ends = [_end(bus, _name(key, slot)) for slot in range(MOST_FEEDS)]
    failed = [error for error in await asyncio.gather(*ends, return_exceptions=True) if error is not None]
    if failed:
        raise failed[0]


async def _end(bus: Connection, name: str) -> None:
    reply = await _ask(bus, f"{bus.nc.api}.CONSUMER.INFO.{EVENTS}.{name}", {})
    if "error" not in reply:
        reply = await _write(bus, "update", reply["config"] | {"filter_subject": _NOTHING})
    if "error" in reply and reply["error"].get("err_code") not in _GONE:
        raise Transient(f"a feed could not be ended: {reply['error'].get('description')}", delay=2)


def _name(key: ApiKey, slot: int) -> str:
    # Nobody else can guess the digest: a service that could name a feed could change it.
    return f"outside-{key.digest}-{slot}"


async def _write(bus: Connection, action: str, config: dict[str, object]) -> dict[str, Any]:
    body = {"stream_name": EVENTS, "action": action, "config": config}
    return await _ask(bus, f"{bus.nc.api}.CONSUMER.CREATE.{EVENTS}.{config['name']}", body)


async def _ask(bus: Connection, subject: str, body: dict[str, object]) -> dict[str, Any]:
    try:
        reply = await bus.nc.request(subject, json.dumps(body).encode(), timeout=_REQUEST_S)
    except (NatsError, TimeoutError) as error:
        raise Transient(f"the event log is away ({error!r})", delay=2) from error
    return json.loads(reply.data)
