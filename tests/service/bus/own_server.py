"""A nats-server that a test may kill: its own, with a short `ack_wait`, restarted on the same store."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nats.js.errors import NotFoundError
from pydantic import SecretStr

from synth.bus.connection import Connection, connect
from synth.bus.replay import StreamFollower
from synth.bus.server.embedded import ServerConfig, free_port, new_users, start, wait_healthy
from synth.bus.server.provision import provision
from synth.bus.server.topology import EVENTS, BusTopology, topology
from synth.bus.versions.declared_schemas import Declared, read_declared
from synth.bus.versions.declared_schemas import declare as declare_in
from synth.runtime.settings import ServiceSettings

ACK_WAIT_S = 2.0
HEARTBEAT_S = 0.25


@dataclass
class OwnServer:
    """One nats-server of one test."""

    home: Path
    config: ServerConfig
    process: subprocess.Popen[bytes] | None = None
    opened: list[Connection] = field(default_factory=list[Connection])

    @classmethod
    def at(cls, home: Path) -> OwnServer:
        users = new_users()
        return cls(home, ServerConfig(port=free_port(), http_port=free_port(), store=home / "store", users=users))

    def start(self) -> None:
        self.process = start(self.config, self.home / "nats.conf", self.home / "nats.log")
        wait_healthy(self.config)

    def kill(self) -> None:
        """`kill -9`: nothing is flushed, nothing is said."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)

    def settings(self, service: str) -> ServiceSettings:
        return ServiceSettings(
            nats_url=self.config.url,
            nats_user=service,
            nats_password=SecretStr(self.config.users[service]),
            replica=f"{service}-0",
            grace_s=2,
        )

    async def connect(self, service: str) -> Connection:
        self.opened.append(await connect(self.settings(service), service))
        return self.opened[-1]

    async def provision(self, *, ack_wait: float = ACK_WAIT_S) -> Connection:
        bus = await self.connect("bus")
        await provision(bus.js, topology())
        for consumer in topology().consumers:
            consumer.config.ack_wait = ack_wait
            await bus.js.add_consumer(consumer.stream, consumer.config)
        return bus

    async def close(self) -> None:
        for bus in self.opened:
            await bus.close()
        self.kill()


async def declare(bus: Connection, **schemas: int) -> None:
    """What `synthd bus init` of a newer version says: the schemas of events by their types (`_` for the point).

    bus: of the user `bus`.
    """
    [log] = [stream for stream in topology().streams if stream.name == EVENTS]
    newer = {type_.replace("_", ".", 1): schema for type_, schema in schemas.items()}
    wanted = replace(log, metadata=declare_in(newer, metadata=log.metadata or {}, last_seq=0))
    await provision(bus.js, BusTopology([wanted], []))


async def declared(bus: Connection) -> Declared:
    """What the log declares."""
    return read_declared((await bus.js.stream_info(EVENTS)).config.metadata or {})


@dataclass(frozen=True)
class DeadLetter:
    subject: str
    body: bytes
    headers: dict[str, str]


async def next_dead_letter(bus: Connection) -> DeadLetter:
    """The first dead letter, past or to come."""
    follower = StreamFollower(bus.nc, ["dead.>"], stream="DEAD")
    messages = follower.messages()
    try:
        msg = await anext(messages)
        return DeadLetter(msg.subject, msg.data, msg.headers or {})
    finally:
        await messages.aclose()
        await follower.close()


async def left_in(bus: Connection, stream: str, durable: str) -> tuple[int, int]:
    """What a consumer has not been given yet, and what it was given and has not acknowledged."""
    info: Any = await bus.js.consumer_info(stream, durable)
    return info.num_pending, info.num_ack_pending


async def delivered_up_to(bus: Connection, stream: str, durable: str) -> int:
    """The sequence number of the last message of its stream that a consumer was given."""
    info: Any = await bus.js.consumer_info(stream, durable)
    return info.delivered.stream_seq


async def is_queued(bus: Connection, subject: str) -> bool:
    """Whether a task is in the queue, owned or not."""
    try:
        await bus.js.get_last_msg("WORK", subject)
    except NotFoundError:
        return False
    return True
