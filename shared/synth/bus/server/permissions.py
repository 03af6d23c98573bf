"""What each service's user may publish on the bus: the server's own rule, whatever the service believes.

Asking JetStream is publishing too: a user may read the log, take from its own queues, and nothing else. Only `bus`,
which provisions, can make, change or delete a stream or a durable consumer.
"""

from __future__ import annotations

from synth.bus.rpc import QUESTIONS
from synth.bus.server.topology import EVENTS, JUDGING, REPLICAS, SECRETS, WORK, queue_name, roles_of
from synth.events.catalogue import CATALOGUE, Reading
from synth.work import TASKS

_WRITES = {"gateway": (SECRETS,), "inference": (REPLICAS,), "judge": (JUDGING,)}
_READS = {
    "gateway": (SECRETS, REPLICAS),
    "verifier": (SECRETS,),
    "rollouts": (SECRETS, REPLICAS),
    "judge": (SECRETS, REPLICAS, JUDGING),
}


def may_publish(service: str) -> list[str]:
    """The subjects that a service's user may publish to: its facts, tasks and questions, and what consuming needs.

    This makes "an event has one publisher" a rule of the server, not only of ours.
    """
    roles = roles_of(service)
    facts = [f"{spec.type}.>" for spec in CATALOGUE.values() if spec.by in roles]
    tasks = [f"work.{kind}.>" for kind, (_, queuers) in TASKS.items() if roles.intersection(queuers)]
    questions = [subject for subject, (askers, _) in QUESTIONS.items() if service in askers]
    buckets = [f"$KV.{bucket}.>" for bucket in _WRITES.get(service, ())]
    return [
        *facts,
        *tasks,
        *questions,
        *buckets,
        "dead.>",
        "_INBOX.>",
        *_jetstream_requests(service),
        "$JS.ACK.>",
        "$JS.FC.>",
    ]


def _jetstream_requests(service: str) -> list[str]:
    """The requests of JetStream's API that a service makes, as subjects."""
    roles = roles_of(service)
    readable = [EVENTS, *(f"KV_{bucket}" for bucket in _READS.get(service, ()))]
    requests: list[str] = []
    for stream in readable:
        # A consumer made without a name in the subject cannot be durable: a reader's own, and gone with it.
        requests += [f"$JS.API.CONSUMER.CREATE.{stream}", f"$JS.API.STREAM.INFO.{stream}"]
        requests += [
            f"$JS.API.STREAM.MSG.GET.{stream}",
            f"$JS.API.DIRECT.GET.{stream}",
            f"$JS.API.DIRECT.GET.{stream}.>",
        ]
    queues = [
        (EVENTS, queue_name(reader, spec.type))
        for spec in CATALOGUE.values()
        for reader, reading in spec.reads.items()
        if reader in roles and reading is Reading.QUEUE
    ]
    if any(taker in roles for taker, _ in TASKS.values()):
        # By pool, of which only the operator knows the names.
        queues.append((WORK, "*"))
    for stream, queue in queues:
        requests += [f"$JS.API.CONSUMER.INFO.{stream}.{queue}", f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{queue}"]
    return requests
