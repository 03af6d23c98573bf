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

from synth.bus.recorded import EVENTS
from synth.bus.versions.declared_schemas import declare, written_schemas
from synth.events.catalogue import CATALOGUE, MAX_EVENT_BYTES, SERVICES, Reading, Role
from synth.work import TASKS

WORK = "WORK"
DEAD = "DEAD"
AUDIT = "AUDIT"
REPLICAS = "replicas"
#: Organisations, API keys, approvals of devices and grants of chat: of the gateway alone.
API_KEYS = "api_keys"
ENVIRONMENT_KEYS = "environment_keys"
JUDGE_KEYS = "judge_keys"
#: The bucket of each kind of secret, by the first part of its key in the bucket.
SECRETS = {
    **dict.fromkeys(("org", "owner", "api", "device", "chat"), API_KEYS),
    "environment": ENVIRONMENT_KEYS,
    "judge": JUDGE_KEYS,
}
SECRET_BUCKETS = (API_KEYS, ENVIRONMENT_KEYS, JUDGE_KEYS)
#: The check of a gateway's health that fails when the bus has lost an acknowledged message.
DAMAGE = "damage"
JUDGING = "judging"
TASK_FAILURES = "task_failures"
EVENT_TRIES = "event_tries"
#: How far the deletions of the log are erased: of the user `bus` alone.
ERASURE = "erasure"

ACK_WAIT_S = 10.0
HEARTBEAT_S = 3.0
DEDUPE_WINDOW_S = 600.0
PUBLISH_TIMEOUT_S = 5.0
PUBLISH_BUDGET_S = 30.0
#: Deliveries of an event to a handler.
MAX_DELIVERIES = 6
REPLICA_TTL_S = 10.0
#: Longer than the time between two calls of a judge: the state of its API's limits expires after it.
JUDGING_TTL_S = 86_400.0
#: Seconds since a task was last begun, or advanced, after which its failures in a row are forgotten.
TASK_FAILURES_TTL_S = 7 * 86_400.0
#: Seconds since a suspected event was last tried.
EVENT_TRIES_TTL_S = 7 * 86_400.0
#: Events of one queue that were delivered and have not ended. They wait for their turn in the process that has them, or
#: for another event, with one follower of the log each, and EVENTS has room for 10,000.
EVENTS_IN_FLIGHT = 5_000
#: Tasks of one queue that are owned, or looked at by a worker that chooses one.
TASKS_IN_FLIGHT = 10_000
#: How long a record of the audit stream is kept, and how many of each kind of each organisation, the newest.
AUDIT_DAYS = 365.0
AUDIT_RECORDS = 100_000
_MAX_AUDIT_RECORD_BYTES = 16 << 10
#: The largest size of one message of any kind.
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
    replicas: int = 1
    """Of each stream and bucket."""


def entities() -> list[str]:
    """Return the first tokens of all event subjects: `job`, `file`, `rollout` …"""
    return sorted({name.split(".")[0] for name in CATALOGUE})


def event_readers() -> list[tuple[Role, str]]:
    """Return each service that takes an event from a queue, with the type of the event."""
    return [
        (role, spec.type)
        for spec in CATALOGUE.values()
        for role, reading in spec.reads.items()
        if reading is Reading.QUEUE
    ]


def queue_name(reader: Role, event_type: str) -> str:
    """Return the durable through which a service's replicas share an event: `validator-job-created`."""
    return f"{reader.value}-{event_type.replace('.', '-')}"


def retry_queue_name(reader: Role, event_type: str) -> str:
    """Return the durable through which they share the retried dead letters of that event."""
    return f"retry-{queue_name(reader, event_type)}"


def task_queue_name(kind: str, pool: str) -> str:
    """Return the durable through which a pool's workers share a kind of task: `train-default`."""
    return f"{kind}-{pool}"


def audit_subject(org: str | None, kind: str) -> str:
    """Return the subject of audit records. org: None for records without an organisation; each may be a pattern."""
    return f"audit.{org or '_'}.{kind}"


DEFAULT_POOL = "default"


def read_pools(text: str) -> tuple[str, ...]:
    """Return the worker pools that a setting lists: names separated by commas."""
    return tuple(name for part in text.split(",") if (name := part.strip()))


def topology(
    *,
    pools: tuple[str, ...] = (DEFAULT_POOL,),
    replicas: int = 1,
    log_max_bytes: int | None = None,
    audit_days: float = AUDIT_DAYS,
    audit_records: int = AUDIT_RECORDS,
) -> BusTopology:
    """Return the bus of a cluster with these worker pools; replicas: of each stream (3 on a cluster of servers).

    log_max_bytes: the largest size of the log; None leaves it to the server. audit_days, audit_records: how long a
    record of the audit stream is kept, and how many of a subject.
    """
    streams = [
        StreamConfig(
            name=EVENTS,
            subjects=[f"{e}.>" for e in entities()],
            retention=RetentionPolicy.LIMITS,
            discard=DiscardPolicy.NEW,
            storage=StorageType.FILE,
            max_bytes=log_max_bytes,
            num_replicas=replicas,
            duplicate_window=DEDUPE_WINDOW_S,
            max_msg_size=MAX_EVENT_BYTES,
            # The server's default of 1000 is reached by a thousand followers.
            max_consumers=10_000,
            allow_direct=True,
            allow_msg_ttl=True,
            # Events of one owner that become ready together are appended together.
            allow_atomic=True,
            metadata=declare(written_schemas(), metadata={}, last_seq=0),
            deny_purge=True,
            # The user `bus` erases deleted jobs and files; no service may.
            deny_delete=False,
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
        StreamConfig(
            name=AUDIT,
            subjects=[audit_subject("*", "*")],
            retention=RetentionPolicy.LIMITS,
            # Per subject: records of one organisation, or of unknown keys, never displace records of another one.
            discard=DiscardPolicy.OLD,
            max_msgs_per_subject=audit_records,
            max_age=audit_days * 86_400,
            max_msg_size=_MAX_AUDIT_RECORD_BYTES,
            storage=StorageType.FILE,
            num_replicas=replicas,
            duplicate_window=DEDUPE_WINDOW_S,
            allow_direct=True,
            deny_purge=True,
            # The user `bus` erases an organisation; no service may.
            deny_delete=False,
        ),
    ]
    consumers = [
        Consumer(WORK, _durable(task_queue_name(kind, pool), f"work.{kind}.{pool}.>", TASKS_IN_FLIGHT))
        for kind in TASKS
        for pool in pools
    ]
    for reader, type_ in event_readers():
        queue, retries = queue_name(reader, type_), retry_queue_name(reader, type_)
        consumers.append(Consumer(EVENTS, _durable(queue, f"{type_}.>", EVENTS_IN_FLIGHT)))
        consumers.append(Consumer(WORK, _durable(retries, f"work.retry.{queue}.>", EVENTS_IN_FLIGHT)))
    buckets = {
        REPLICAS: REPLICA_TTL_S,
        **dict.fromkeys(SECRET_BUCKETS, 0),
        JUDGING: JUDGING_TTL_S,
        TASK_FAILURES: TASK_FAILURES_TTL_S,
        EVENT_TRIES: EVENT_TRIES_TTL_S,
        ERASURE: 0,
    }
    return BusTopology(streams, consumers, buckets, replicas)


def _durable(name: str, subject: str, in_flight: int) -> ConsumerConfig:
    return ConsumerConfig(
        durable_name=name,
        filter_subject=subject,
        ack_policy=AckPolicy.EXPLICIT,
        deliver_policy=DeliverPolicy.ALL,
        ack_wait=ACK_WAIT_S,
        # Deliveries are counted by the delivery middleware, which dead-letters with the payload and the reason;
        # the server's own limit would keep the message without a report.
        max_deliver=-1,
        max_ack_pending=in_flight,
    )


_ROLES: dict[str, frozenset[Role]] = {
    **{name: frozenset({Role(name)}) for name in SERVICES},
    "trainer": frozenset({Role.TRAINER, Role.OWNER}),
    "rollouts": frozenset({Role.ROLLOUTS, Role.OWNER}),
}


def roles_of(service: str) -> frozenset[Role]:
    """Return the roles of a service: its own, and the role of owner for services that run jobs."""
    return _ROLES[service]
