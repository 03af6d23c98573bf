"""What each service's user may publish and receive on the bus: rules that nats-server applies.

A request to JetStream is a publish. A user may read the log, take from its own queues and acknowledge its deliveries.
It receives the responses to its own requests and the questions that it answers; a response may go only to the
requester. Only `bus`, which provisions, can create, change or delete a stream, and change or delete a queue. The same
subjects are the imports of the service's account (`synth.bus.server.accounts`).
"""

from __future__ import annotations

from typing import Any

from synth.bus.access.client import ADMIN_API, SERVICE_API
from synth.bus.connection import inbox_of
from synth.bus.rpc import ANSWER_WITHIN_S, QUESTIONS
from synth.bus.server.topology import (
    AUDIT,
    DEAD,
    ENVIRONMENT_KEYS,
    EVENT_TRIES,
    EVENTS,
    JUDGE_KEYS,
    JUDGING,
    REPLICAS,
    SECRET_BUCKETS,
    TASK_FAILURES,
    WORK,
    audit_subject,
    event_readers,
    queue_name,
    retry_queue_name,
    roles_of,
    task_queue_name,
)
from synth.events.catalogue import CATALOGUE
from synth.work import TASKS

#: The subject on which the server requests a decision on a login that its configuration does not name.
LOGINS = "$SYS.REQ.USER.AUTH"
#: The subjects that outside subscribers receive.
OUTSIDE_SUBJECTS = "outside.>"

#: The buckets that a service writes: the verifier gives environment keys their origin.
_WRITES = {
    "gateway": SECRET_BUCKETS,
    "verifier": (ENVIRONMENT_KEYS,),
    "inference": (REPLICAS,),
    "judge": (JUDGING,),
}
_READS = {
    "gateway": (*SECRET_BUCKETS, REPLICAS),
    "verifier": (ENVIRONMENT_KEYS,),
    "rollouts": (ENVIRONMENT_KEYS, REPLICAS),
    "judge": (JUDGE_KEYS, REPLICAS, JUDGING),
}


def permissions_of(service: str, pools: tuple[str, ...]) -> dict[str, Any]:
    """Return the permissions of a service's user for nats-server's configuration. pools: of the cluster's workers."""
    # Readers choose the names of their consumers, except names of queues: creating a queue again would change it.
    queues = sorted(queue_name(role, type_) for role, type_ in event_readers())
    denied = [f"$JS.API.CONSUMER.CREATE.{EVENTS}.{queue}" for queue in queues]
    if service == "gateway":
        # It looks up the feeds of subscribers, whose names are not known here; it may not look up the services' queues.
        denied += [f"$JS.API.CONSUMER.INFO.{EVENTS}.{queue}" for queue in queues]
    allowed: dict[str, Any] = {
        "publish": {
            "allow": [in_account_of_service(subject) for subject in may_publish(service, pools)],
            "deny": [in_account_of_service(subject) for subject in denied],
        },
        "subscribe": may_subscribe(service),
    }
    if _answered_by(service) or service == "gateway":
        # Once to each subject on which an answer is awaited: the asker's inbox itself is closed.
        allowed["allow_responses"] = {"max": 1, "expires": f"{ANSWER_WITHIN_S + 10:.0f}s"}
    return allowed


def may_subscribe(service: str) -> list[str]:
    """Return the subjects that a service's user may listen to: its own inbox, and the questions that it answers."""
    # The server's requests to decide on other logins (`synth.gateway.subscribers`).
    logins = [LOGINS] if service == "gateway" else []
    return [f"{inbox_of(service)}.>", *logins, *_answered_by(service)]


def in_account_of_service(subject: str) -> str:
    """Return the subject by which a service publishes to this subject of the account of the streams."""
    return subject.replace(ADMIN_API, SERVICE_API, 1) if subject.startswith(f"{ADMIN_API}.") else subject


def may_publish(service: str, pools: tuple[str, ...]) -> list[str]:
    """Return the subjects that a service may publish to: its facts, tasks, questions, and requests to consume.

    They are subjects of the account of the streams. So the server applies the rule that an event has one publisher.
    """
    roles = roles_of(service)
    facts = [f"{spec.type}.>" for spec in CATALOGUE.values() if spec.by in roles]
    tasks = [f"work.{kind}.>" for kind, (_, queuers) in TASKS.items() if roles.intersection(queuers)]
    # Dead letters that an operator retries.
    retries = ["work.retry.>", audit_subject("*", "*")] if service == "gateway" else []
    questions = [subject for subject, (askers, _) in QUESTIONS.items() if service in askers]
    buckets = [f"$KV.{bucket}.>" for bucket in _WRITES.get(service, ())]
    buckets += [f"$KV.{TASK_FAILURES}.{kind}.>" for kind, (taker, _) in TASKS.items() if taker in roles]
    buckets += [f"$KV.{EVENT_TRIES}.{queue}.*" for _, queue in _event_queues(service)]
    return [*facts, *tasks, *retries, *questions, *buckets, f"dead.{service}.>", *_jetstream_requests(service, pools)]


def _event_queues(service: str) -> list[tuple[str, str]]:
    """Return the queues of events that a service takes from: each the name of its stream and its own."""
    roles = roles_of(service)
    return [
        queue
        for reader, type_ in event_readers()
        if reader in roles
        for queue in ((EVENTS, queue_name(reader, type_)), (WORK, retry_queue_name(reader, type_)))
    ]


def _answered_by(service: str) -> list[str]:
    return [subject for subject, (_, answerer) in QUESTIONS.items() if answerer == service]


def _jetstream_requests(service: str, pools: tuple[str, ...]) -> list[str]:
    """Return the subjects of the requests to JetStream's API that a service makes."""
    roles = roles_of(service)
    takes_tasks = any(taker in roles for taker, _ in TASKS.values())
    buckets = [*_READS.get(service, ())]
    buckets += [TASK_FAILURES] if takes_tasks else []
    buckets += [EVENT_TRIES] if _event_queues(service) else []
    readable = [EVENTS, *(f"KV_{bucket}" for bucket in buckets)]
    # For the organisations of waiting and running tasks: a worker takes tasks in turns of the organisations.
    requests = [f"$JS.API.STREAM.INFO.{WORK}"] if takes_tasks else []
    if service == "verifier":
        # It queues the tasks again that the queue has lost.
        requests += [f"$JS.API.STREAM.INFO.{WORK}", f"$JS.API.STREAM.MSG.GET.{WORK}"]
    if service == "gateway":
        readable += [DEAD, AUDIT]
        # A feed of an outside subscriber is looked up before it is ended.
        requests.append(f"$JS.API.CONSUMER.INFO.{EVENTS}.*")
    for stream in readable:
        # With the name of the consumer: the server takes it from the subject, not from the body.
        requests += [f"$JS.API.CONSUMER.CREATE.{stream}.*", f"$JS.API.STREAM.INFO.{stream}"]
        requests += [
            f"$JS.API.STREAM.MSG.GET.{stream}",
            f"$JS.API.DIRECT.GET.{stream}",
            f"$JS.API.DIRECT.GET.{stream}.>",
            f"$JS.FC.{stream}.>",
        ]
    queues = _event_queues(service)
    queues += [
        (WORK, task_queue_name(kind, pool)) for kind, (taker, _) in TASKS.items() if taker in roles for pool in pools
    ]
    for stream, queue in queues:
        requests += [
            f"$JS.API.CONSUMER.INFO.{stream}.{queue}",
            f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{queue}",
            # A delivery's own subject can be guessed: a user that may publish to all could end deliveries of others.
            f"$JS.ACK.{stream}.{queue}.>",
        ]
    return requests
