"""The live inference processes and the models that they serve: announced every 3 s, forgotten after 10."""

# nats-py annotates parts of itself not at all.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from nats.errors import Error as NatsError

from synth.bus.connection import Connection
from synth.bus.replay import StreamFollower
from synth.bus.server.topology import HEARTBEAT_S, REPLICA_TTL_S, REPLICAS
from synth.runtime import logs

log = logs.get("replicas")

#: Announcements whose clocks are remembered: half a minute of them.
_CLOCKS = 10


class Replica(msgspec.Struct, frozen=True, kw_only=True):
    """One inference process. models: the loaded ones, policies of jobs (by job id) included.

    boot: of this very process. A successor has the same id and knows nothing of what its predecessor recorded.
    """

    id: str
    boot: str
    url: str
    pool: str
    models: list[str]
    running: int = 0
    waiting: int = 0

    @property
    def recorder(self) -> str:
        """The name that a rollout's credential pins."""
        return f"{self.id}-{self.boot}"


class Announcement(msgspec.Struct, frozen=True, kw_only=True):
    """The announcement of a replica. clock: unix seconds by its own clock when it was sent."""

    replica: Replica
    clock: float


@dataclass
class _Seen:
    """A replica as this process knows it.

    at: when its last announcement arrived, on the monotonic clock. ahead: by how many seconds its clock was ahead of
    ours at the latest announcements, less the time that each was under way.
    """

    replica: Replica
    at: float
    ahead: deque[float]


async def announce(bus: Connection, describe: Callable[[], Replica], changed: asyncio.Event) -> None:
    """Announce the models of this process, every 3 s and whenever `changed` is set, for ever."""
    while True:
        announcement = Announcement(replica=describe(), clock=time.time())
        try:
            await bus.js.publish(
                f"$KV.{REPLICAS}.{announcement.replica.id}",
                msgspec.json.encode(announcement),
                timeout=2,
                stream=f"KV_{REPLICAS}",
            )
        except (NatsError, TimeoutError) as error:
            log.warning("cannot announce", error=repr(error))
        try:
            async with asyncio.timeout(HEARTBEAT_S):
                await changed.wait()
        except TimeoutError:
            continue
        changed.clear()


class ReplicaTable:
    """The replicas that have announced themselves within their time to live."""

    def __init__(self, bus: Connection) -> None:
        self._bus = bus
        self._seen: dict[str, _Seen] = {}
        self._news = asyncio.Event()

    async def follow(self) -> None:
        """Keep the table, for ever."""
        follower = StreamFollower(self._bus.nc, [f"$KV.{REPLICAS}.>"], stream=f"KV_{REPLICAS}", last=True)
        try:
            async for msg in follower.messages():
                try:
                    announcement = msgspec.json.decode(msg.data, type=Announcement)
                except msgspec.DecodeError as error:
                    # A deletion's empty marker, or another version's record: the table works without that replica.
                    log.warning("a replica's record cannot be read", subject=msg.subject, error=str(error))
                    continue
                self._add(announcement)
                self._news.set()
        finally:
            await follower.close()

    def _add(self, said: Announcement) -> None:
        known = self._seen.get(said.replica.id)
        # The first one may have been in the bucket for a while, so it does not show the difference of the clocks.
        ahead: deque[float] = known.ahead if known is not None else deque(maxlen=_CLOCKS)
        if known is not None:
            ahead.append(said.clock - time.time())
        self._seen[said.replica.id] = _Seen(said.replica, time.monotonic(), ahead)

    def clock_of(self, replica: Replica) -> float:
        """Return a lower bound of that replica's clock, in unix seconds, for times that it compares with its own clock.

        Clocks of two machines may differ by more than a rollout lasts. Returns the time of our clock until two
        announcements have arrived.
        """
        known = self._seen.get(replica.id)
        # An announcement that was long under way makes the other clock seem to be behind.
        return time.time() + max(known.ahead, default=0.0) if known is not None else time.time()

    def forget(self, replica: Replica) -> None:
        """Leave out a replica that did not answer, until it announces itself again."""
        known = self._seen.get(replica.id)
        if known is not None and known.replica.boot == replica.boot:
            del self._seen[replica.id]

    def alive(self) -> list[Replica]:
        """Return every live replica."""
        since = time.monotonic() - REPLICA_TTL_S
        return [seen.replica for seen in self._seen.values() if seen.at > since]

    def serving(self, model: str) -> list[Replica]:
        """Return the live replicas that have this model (or job's policy) loaded, the least busy first."""
        able = [r for r in self.alive() if model in r.models]
        return sorted(able, key=lambda r: r.running + r.waiting)

    async def wait_serving(self, model: str, *, timeout: float) -> list[Replica]:
        """Wait until a replica serves the model, and return like `serving`. Raises `TimeoutError`."""
        async with asyncio.timeout(timeout):
            while not (result := self.serving(model)):
                self._news.clear()
                await self._news.wait()
            return result
