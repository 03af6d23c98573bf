"""Streams, consumers, buckets and users of the bus, as data. One owner applies them: `synthd bus init`."""

from __future__ import annotations

from dataclasses import dataclass, field

from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    DiscardPolicy,
    RetentionPolicy,
    StorageType,
    StreamConfig,
)

from synth.events.catalogue import CATALOGUE, MAX_EVENT_BYTES, Reading, Role
from synth.work import TASKS

EVENTS = "EVENTS"
WORK = "WORK"
DEAD = "DEAD"
REPLICAS = "replicas"
SECRETS = "secrets"
JUDGING = "judging"

ACK_WAIT_S = 10.0
HEARTBEAT_S = 3.0
DEDUPE_WINDOW_S = 600.0
PUBLISH_TIMEOUT_S = 5.0
PUBLISH_BUDGET_S = 30.0
MAX_DELIVERIES = 6
REPLICA_TTL_S = 10.0
#: Longer than two calls of a judge may lie apart: what the limits of its API remember is forgotten after it.
JUDGING_TTL_S = 86_400.0
#: Of one message of any kind.
MAX_PAYLOAD_BYTES = 8 << 20


@dataclass(frozen=True)
class Consumer:
    """A durable consumer that some service's replicas share."""

    stream: str
    config: ConsumerConfig

    @property
    def name(self) -> str:
        assert self.config.durable_name is not None
        return self.config.durable_name


@dataclass(frozen=True)
class BusTopology:
    """Everything that the bus must hold before a service starts."""

    streams: list[StreamConfig]
    consumers: list[Consumer]
    buckets: dict[str, float] = field(default_factory=dict[str, float])
    """Bucket name → seconds that an entry lives (0: for ever)."""


def entities() -> list[str]:
    """The first tokens of all event subjects: `job`, `file`, `rollout` …"""
    return sorted({name.split(".")[0] for name in CATALOGUE})


def queue_name(reader: Role, event_type: str) -> str:
    """The durable through which a service's replicas share an event: `validator-job-created`."""
    return f"{reader.value}-{event_type.replace('.', '-')}"


def task_queue_name(kind: str, pool: str) -> str:
    """The durable through which a pool's workers share a kind of task: `train-default`."""
    return f"{kind}-{pool}"


def topology(*, pools: tuple[str, ...] = ("default",), replicas: int = 1) -> BusTopology:
    """The bus of a cluster with these worker pools; replicas: of each stream (3 on a cluster of servers)."""
    streams = [
        StreamConfig(
            name=EVENTS,
            subjects=[f"{e}.>" for e in entities()],
            retention=RetentionPolicy.LIMITS,
            discard=DiscardPolicy.NEW,
            storage=StorageType.FILE,
            num_replicas=replicas,
            duplicate_window=DEDUPE_WINDOW_S,
            max_msg_size=MAX_EVENT_BYTES,
            # The server's default of 1000 is reached by a thousand followers.
            max_consumers=10_000,
            allow_direct=True,
            allow_msg_ttl=True,
            deny_purge=True,
            deny_delete=True,
        ),
        StreamConfig(
            name=WORK,
            subjects=["work.>"],
            retention=RetentionPolicy.WORK_QUEUE,
            discard=DiscardPolicy.NEW,
            discard_new_per_subject=True,
            max_msgs_per_subject=1,
            storage=StorageType.FILE,
            num_replicas=replicas,
            duplicate_window=DEDUPE_WINDOW_S,
            allow_direct=True,
        ),
        StreamConfig(
            name=DEAD,
            subjects=["dead.>"],
            retention=RetentionPolicy.LIMITS,
            storage=StorageType.FILE,
            num_replicas=replicas,
            max_age=30 * 86_400,
            duplicate_window=DEDUPE_WINDOW_S,
            allow_direct=True,
        ),
    ]
    consumers = [
        Consumer(EVENTS, _durable(queue_name(reader, spec.type), f"{spec.type}.>"))
        for spec in CATALOGUE.values()
        for reader, reading in spec.reads.items()
        if reading is Reading.QUEUE
    ] + [
        Consumer(WORK, _durable(task_queue_name(kind, pool), f"work.{kind}.{pool}.>"))
        for kind in TASKS
        for pool in pools
    ]
    return BusTopology(streams, consumers, {REPLICAS: REPLICA_TTL_S, SECRETS: 0, JUDGING: JUDGING_TTL_S})


def _durable(name: str, subject: str) -> ConsumerConfig:
    return ConsumerConfig(
        durable_name=name,
        filter_subject=subject,
        ack_policy=AckPolicy.EXPLICIT,
        deliver_policy=DeliverPolicy.ALL,
        ack_wait=ACK_WAIT_S,
        # Deliveries are counted by the delivery middleware, which dead-letters with the payload and the reason;
        # the server's own limit would keep the message and say nothing.
        max_deliver=-1,
        max_ack_pending=1000,
    )


#: Services that have a user of their own on the bus. `bus` provisions it, and is the one that may.
SERVICES: tuple[str, ...] = (
    "gateway",
    "validator",
    "verifier",
    "files",
    "rollouts",
    "inference",
    "judge",
    "trainer",
)

_ROLES: dict[str, frozenset[Role]] = {
    **{name: frozenset({Role(name)}) for name in SERVICES},
    "trainer": frozenset({Role.TRAINER, Role.OWNER}),
    "rollouts": frozenset({Role.ROLLOUTS, Role.OWNER}),
}


def roles_of(service: str) -> frozenset[Role]:
    """The roles that a service plays: its own, and that of owner for those that run jobs."""
    return _ROLES[service]
