"""Every way that nats-server has of writing for a client, tried with one service's credential against a target.

A client that may not publish to a subject can name it as the reply of a request, as a consumer's deliver subject, or in
a header. JetStream then publishes there, and no permission of the client applies.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from dataclasses import dataclass

from nats.aio.client import Client
from nats.errors import NoRespondersError

from synth.bus.server.accounts import covers
from synth.bus.server.permissions import may_publish
from synth.bus.server.topology import DEFAULT_POOL, EVENTS, topology
from synth.events.catalogue import CATALOGUE, SERVICES
from synth.work import TASKS

_ADMIN = "$JS.API"
_ANY = {"*": "x", ">": "org_x.job_x"}


def literal(pattern: str) -> str:
    """A subject that a pattern matches."""
    return ".".join(_ANY.get(token, token) for token in pattern.split("."))


def targets() -> list[str]:
    """One subject of each kind that a stream stores, the acknowledgement of each queue, and requests that change."""
    facts = [f"{type_}.org_x.job_x" for type_ in CATALOGUE]
    tasks = [f"work.{kind}.{DEFAULT_POOL}.org_x.job_x.0" for kind in TASKS]
    retries = [f"{consumer.config.filter_subject}" for consumer in topology().consumers if consumer.stream == "WORK"]
    letters = [f"dead.{service}.job.created.org_x.job_x" for service in SERVICES]
    letters += [literal(subject) for stream in topology().streams for subject in stream.subjects or ()]
    buckets = [f"$KV.{bucket}.{key}" for bucket in topology().buckets for key in ("x.y.z", "api.org_x.hash", "owner.h")]
    acknowledgements = [f"$JS.ACK.{c.stream}.{c.name}.1.1.1.1.0" for c in topology().consumers]
    requests = [f"STREAM.PURGE.{EVENTS}", f"STREAM.DELETE.{EVENTS}", "STREAM.DELETE.KV_api_keys"]
    requests += [f"CONSUMER.DELETE.{c.stream}.{c.name}" for c in topology().consumers]
    subjects = [*facts, *tasks, *map(literal, retries), *letters, *buckets, *acknowledgements]
    return [*subjects, *(f"{_ADMIN}.{request}" for request in requests)]


def foreign_targets(service: str) -> list[str]:
    """The targets that a service may not publish to."""
    own = may_publish(service, (DEFAULT_POOL,))
    return [target for target in targets() if not any(covers(pattern, target) for pattern in own)]


@dataclass
class Attacker:
    """A client with a service's credential. api: the prefix of JetStream's requests in its account."""

    nc: Client
    service: str
    api: str
    attempts: int = 0

    async def attack(self, target: str) -> None:
        """Try to have something stored, acknowledged or requested at the target, in every way."""
        await self._publish(target, b"forged")
        for pattern in may_publish(self.service, (DEFAULT_POOL,)):
            subject = literal(pattern).replace(_ADMIN, self.api, 1)
            for body in _bodies(subject, target):
                # The response has the target as its subject; so has what a pull or `+NXT` delivers.
                await self._publish(subject, body, reply=target)
        own_fact = next((p for p in may_publish(self.service, (DEFAULT_POOL,)) if p.split(".")[0] in _ENTITIES), None)
        if own_fact is not None:
            for headers in _headers(target):
                await self._publish(literal(own_fact), b"", headers=headers)

    async def replace_bucket(self, stream: str) -> None:
        """Publish to the own keys of a bucket with headers that remove other records."""
        for pattern in may_publish(self.service, (DEFAULT_POOL,)):
            if pattern.startswith(f"$KV.{stream}."):
                for rollup in ("all", "sub"):
                    await self._publish(literal(pattern), b"x", headers={"Nats-Rollup": rollup})

    async def change_streams(self) -> None:
        """Request every change of streams and consumers: mirrors and sources too."""
        for stream in (*(s.name or "" for s in topology().streams), *(f"KV_{b}" for b in topology().buckets)):
            mirror = {"name": stream, "mirror": {"name": EVENTS}}
            source = {"name": stream, "subjects": ["stolen.>"], "sources": [{"name": EVENTS}]}
            for verb, body in itertools.product(
                ("CREATE", "UPDATE", "PURGE", "DELETE", "MSG.DELETE", "SNAPSHOT", "RESTORE", "LEADER.STEPDOWN"),
                (b"", json.dumps(mirror).encode(), json.dumps(source).encode(), b'{"seq":1}'),
            ):
                await self._publish(f"{self.api}.STREAM.{verb}.{stream}", body, reply="_INBOX.none")
        for consumer in topology().consumers:
            for verb in ("DELETE", "PAUSE", "RESET", "UNPIN", "LEADER.STEPDOWN"):
                body = b'{"pause_until":"2100-01-01T00:00:00Z","seq":1}' if verb in ("PAUSE", "RESET") else b""
                await self._publish(f"{self.api}.CONSUMER.{verb}.{consumer.stream}.{consumer.name}", body)

    async def settle(self) -> None:
        """Return when the server has processed what was published, and delivered what it delivers by itself."""
        for _ in range(3):
            await self.nc.flush(timeout=30)
            try:
                await self.nc.request(f"{self.api}.STREAM.INFO.{EVENTS}", b"", timeout=30)
            except NoRespondersError:
                raise AssertionError(f"{self.service} does not reach the log") from None
            await asyncio.sleep(0)

    async def _publish(self, subject: str, body: bytes, reply: str = "", headers: dict[str, str] | None = None) -> None:
        self.attempts += 1
        await self.nc.publish(subject, body, reply=reply, headers=headers)


_ENTITIES = {type_.split(".")[0] for type_ in CATALOGUE}


def _bodies(subject: str, target: str) -> list[bytes]:
    """What makes a request to this subject answer or deliver."""
    if ".CONSUMER.CREATE." in subject:
        stream, name = subject.split(".CONSUMER.CREATE.")[1].split(".", 1)
        config = {"name": name, "deliver_subject": target, "ack_policy": "none", "mem_storage": True}
        config |= {"inactive_threshold": 5_000_000_000}
        beats = {"idle_heartbeat": 100_000_000, "flow_control": True}
        return [
            json.dumps({"stream_name": stream, "config": config | more}).encode()
            for more in ({}, {"deliver_policy": "last"}, beats, {"headers_only": True})
        ]
    if ".MSG.NEXT." in subject:
        return [b'{"batch":1,"no_wait":true}']
    if subject.startswith("$JS.ACK."):
        return [b"+NXT", b"+ACK"]
    if ".DIRECT.GET." in subject or ".MSG.GET." in subject:
        stream = subject.split(".GET.")[1].split(".")[0]
        last = ">" if not stream.startswith("KV_") else f"$KV.{stream.removeprefix('KV_')}.>"
        batch = {"multi_last": [last], "batch": 3}
        return [json.dumps(body).encode() for body in ({"seq": 1}, {"last_by_subj": last}, batch)]
    return [b"{}"]


def _headers(target: str) -> list[dict[str, str]]:
    return [
        {"Nats-Trace-Dest": target},
        {"Nats-Rollup": "all"},
        {"Nats-Schedule": "@every 1s", "Nats-Schedule-Target": target},
        {"Nats-Stream-Source": f"{EVENTS} 1 > > {target}"},
        {"Nats-Batch-Id": "x", "Nats-Batch-Sequence": "1", "Nats-Batch-Commit": "1"},
    ]
