"""Feeds: consumers of the log that deliver one organisation's events to a bus key's own subject.

The gateway creates them, so that a subscriber need not publish: a client that may request messages from JetStream also
chooses the subject of their delivery, which may be another client's (decision 43). A feed stores no position: its
subscriber does, and requests a new feed after it. Invariant: no request gives a key more feeds than its limit, since
feeds have fixed names and the server refuses a name twice; the server removes a feed without a listener.
"""

# Parts of nats-py have no type annotations.
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
# JetStream's error codes for a missing consumer. An update returns the second one.
_GONE = (10014, 10149)
_EXISTS = 10148


def subjects_of(key: ApiKey) -> str:
    """Return the subjects that a bus key may listen to."""
    return f"outside.{key.org}.{key.key_id}.>"


async def open_feed(bus: Connection, key: ApiKey, *, after: int, settings: SubscriberSettings) -> Feed | None:
    """Open a feed of the events after the sequence `after`; return None if the key has reached its limit of feeds.

    Raises `Transient` while the log is unavailable.
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
    """Stop all deliveries of a key's feeds; the server removes the feeds with their listener's session.

    This includes feeds from a time when `SYNTH_BUS_FEEDS` was higher. Raises `Transient` while the log is unavailable.
    """
    # End each feed separately, because one may be on a server that is unavailable.
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
    # Nobody else can guess the digest. A service that knew the name of a feed could change the feed.
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
