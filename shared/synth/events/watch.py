"""The gateway's events about jobs that are silent or wait."""

from __future__ import annotations

from synth.events.catalogue import Event, Role, event


@event("watch.heartbeat", by=Role.GATEWAY)
class Heartbeat(Event, frozen=True, kw_only=True):
    """A live job that is watched has been silent for a while; nothing is wrong. Some clients give up without it."""

    state: str


@event("queue.waiting", by=Role.GATEWAY)
class QueueWaiting(Event, frozen=True, kw_only=True):
    """A job lacks a worker. need: "trainer", "inference", "rollouts"; position: 1 is next."""

    need: str
    pool: str
    position: int
    seconds: float
