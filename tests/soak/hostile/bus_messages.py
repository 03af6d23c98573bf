"""What somebody with a service's credential may say on the bus, and no service would."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field

from synth.bus.server.permissions import in_account_of_service, may_publish
from synth.bus.server.topology import DEFAULT_POOL
from synth.events.catalogue import SERVICES
from tests.soak.hostile.values import RAW_NUMBERS, TEXTS, nested, text, value

_MOST_BYTES = 900_000
#: Of consumers and of entries in a bucket.
_NAMES = (
    "validator-job-created",
    "files-file-uploaded",
    "verifier-job-validated",
    "mine",
    f"outside-{64 * '0'}-0",
    "x" * 300,
)
_DELIVERED_TO = (
    "job.created.org_x.job_x",
    "work.train.default.org_x.job_x.0",
    "$JS.API.STREAM.PURGE.EVENTS",
    "$JS.ACK.EVENTS.validator-job-created.1.1.1.1.0",
    "_INBOX.gateway.x",
    "ask.validate",
    "ask.verify",
    "$KV.api_keys.api.x",
)


@dataclass(frozen=True)
class Message:
    """One message. thief: the service whose credential is used."""

    thief: str
    subject: str
    body: bytes
    headers: dict[str, str] = field(default_factory=dict[str, str])


def bus_message(rng: random.Random, *, orgs: list[str], keys: list[str]) -> Message:
    """A message to a subject that the server lets its sender publish to.

    orgs, keys: organisations, and ids of jobs and files, that there are; others are made up.
    """
    thief = rng.choice(SERVICES)
    pattern = rng.choice(may_publish(thief, (DEFAULT_POOL,)))
    tail = [rng.choice(orgs), rng.choice([*keys, f"job_{rng.randrange(1 << 40):x}", "file_x", _token(rng)])]
    if pattern.startswith("work."):
        kind = pattern.split(".")[1]
        term = rng.choice(("0", "1", "-1", "9" * 20, "x"))
        subject = ".".join(["work", kind, rng.choice(("default", "gpu")), *tail, term])
    elif pattern.endswith(".>"):
        made = tail if rng.random() < 0.7 else [_token(rng) for _ in range(rng.randint(1, 4))]
        subject = pattern.removesuffix(">") + ".".join(made)
    else:
        subject = ".".join(rng.choice(_NAMES) if part == "*" else part for part in pattern.split("."))
    body = _consumer(rng, subject) if ".CONSUMER.CREATE." in subject and rng.random() < 0.7 else _body(rng)
    return Message(thief, in_account_of_service(subject), body[:_MOST_BYTES], _headers(rng))


def _consumer(rng: random.Random, subject: str) -> bytes:
    """A consumer of a stream that services may read: it may take a queue's name, and deliver to anybody."""
    config: dict[str, object] = {
        "name": rng.choice(_NAMES),
        "deliver_subject": rng.choice(_DELIVERED_TO),
        "filter_subject": rng.choice((">", "job.created.>", "job.created.nobody.>", "", "$KV.api_keys.>")),
        "deliver_policy": rng.choice(("all", "new", "last", "by_start_sequence")),
        "opt_start_seq": rng.choice((0, 1, -1, 1 << 62)),
        "ack_policy": rng.choice(("none", "explicit", "all")),
        "inactive_threshold": rng.choice((0, 1, 1 << 62)),
        "max_ack_pending": rng.choice((1, -1, 0)),
    }
    if rng.random() < 0.3:
        config["durable_name"] = rng.choice(_NAMES)
    made = {name: config[name] for name in rng.sample(list(config), rng.randint(2, len(config)))}
    stream = subject.split(".CONSUMER.CREATE.")[1].split(".")[0]
    return json.dumps({"stream_name": stream, "config": made, "action": rng.choice(("", "create", "update"))}).encode()


def _token(rng: random.Random) -> str:
    """One part of a subject: any characters but those that NATS itself refuses."""
    made = "".join(c for c in text(rng)[:60] if c.isprintable() and c not in " .*>\\")
    return made.encode("utf-8", "ignore").decode() or "x"


def _body(rng: random.Random) -> bytes:
    match rng.randrange(6):
        case 0:
            return rng.choice((b"", b"{}", b"null", b"[]", b"0", b'""', rng.randbytes(200), b"\xff" * 1000))
        case 1:
            return nested(rng)
        case 2:
            return b'{"attempt": ' + rng.choice(RAW_NUMBERS).encode() + b"}"
        case 3:
            return json.dumps({rng.choice(TEXTS): "x" * rng.choice((10, 800_000))}).encode()
        case _:
            return json.dumps(_event(rng)).encode()


def _event(rng: random.Random) -> dict[str, object]:
    """Fields that many events have, with values of any type."""
    names = ("attempt", "worker", "step", "of", "values", "problem", "code", "name", "blob", "rows", "version", "steps")
    names += ("rollout_id", "reward", "iteration", "mode", "config", "job", "origins", "source", "seq", "letter", "org")
    made: dict[str, object] = {name: value(rng, 2) for name in rng.sample(names, rng.randint(0, 12))}
    if rng.random() < 0.3:
        made["blob"] = {"uri": rng.choice(("file:///etc/passwd", "../../x", "blob://x", "")), "size": -1, "sha256": "z"}
    return made


def _headers(rng: random.Random) -> dict[str, str]:
    made: dict[str, str] = {}
    if rng.random() < 0.4:
        made["Synth-Schema"] = rng.choice(("1", "2", "999999999", "-1", "9" * 100, "x", "٣"))
    if rng.random() < 0.3:
        made["traceparent"] = rng.choice(("00-" + "0" * 32 + "-" + "0" * 16 + "-01", "x" * 5000, "00-zz"))
    if rng.random() < 0.3:
        made["Nats-Msg-Id"] = f"{rng.random()}"
    if rng.random() < 0.2:
        made["Synth-Reason"] = rng.choice(("\x1b[2J", "r" * 5000, ""))
    return made
