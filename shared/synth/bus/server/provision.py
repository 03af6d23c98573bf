"""Applies the topology, and reports the differences of a running bus. The only code that declares streams."""

# nats-py annotates parts of itself not at all.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import asdict, replace
from typing import Any

from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeout
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, StorageType, StreamConfig, StreamInfo
from nats.js.errors import APIError, NotFoundError, ServiceUnavailableError

from synth.bus.server.earlier_buckets import split_secrets
from synth.bus.server.topology import BusTopology
from synth.bus.versions.declared_schemas import declare, read_declared
from synth.errors import Problem, UserError
from synth.runtime import logs

log = logs.get("provision")

_PATIENCE_S = 45.0
#: JetStream's error codes for more replicas than there are servers: from a server that is no member of a cluster, and
#: from a cluster.
_TOO_FEW_SERVERS = (10074, 10005)
#: The window in which a bucket recognises a message that was sent twice.
_DUPLICATES_S = 120.0


async def provision(js: JetStreamContext, topology: BusTopology, *, patience_s: float = _PATIENCE_S) -> None:
    """Create missing parts of the bus and update parts that differ: a second run changes nothing.

    Replicas are added if there are too few, and never taken away. Servers that elect their leaders, or have not all
    found each other yet, may take `patience_s` seconds until one more part is there. Then their error is raised:
    `UserError` for more replicas than there are servers.
    """
    deadline, furthest = time.monotonic() + patience_s, 0
    while True:
        parts = 0
        try:
            async for _ in _provision(js, topology):
                parts += 1
                if parts > furthest:
                    # A busy machine may need minutes for all of them.
                    deadline, furthest = time.monotonic() + patience_s, parts
            break
        except APIError as error:
            late = time.monotonic() > deadline
            if error.err_code in _TOO_FEW_SERVERS:
                one = error.err_code == _TOO_FEW_SERVERS[0]
                if one or late:
                    raise UserError(_too_few_servers(topology.replicas, one=one)) from error
            elif late or not isinstance(error, ServiceUnavailableError):
                raise
            log.warning("the bus is not ready", error=repr(error))
            await asyncio.sleep(0.5)
        except (NatsTimeout, TimeoutError, NoRespondersError) as error:
            if time.monotonic() > deadline:
                raise
            log.warning("the bus is not ready", error=repr(error))
            await asyncio.sleep(0.5)
    log.info(
        "bus provisioned",
        streams=len(topology.streams),
        consumers=len(topology.consumers),
        buckets=len(topology.buckets),
    )


def _too_few_servers(replicas: int, *, one: bool) -> Problem:
    servers = "is one nats-server, which cannot hold" if one else "has too few nats-servers (or room on them) for"
    return Problem(
        what=f"the bus {servers} {replicas} replicas of a stream",
        expected="as many servers in its cluster as replicas",
        fix="lower SYNTH_BUS_REPLICAS (1 for one server), or run nats-server as a cluster of so many",
        where="SYNTH_BUS_REPLICAS",
    )


async def _provision(js: JetStreamContext, topology: BusTopology) -> AsyncGenerator[None]:
    """Create or update each part; yields after each."""
    for stream in topology.streams:
        try:
            await js.update_stream(_with_what_stays(stream, await js.stream_info(stream.name or "")))
        except NotFoundError:
            await js.add_stream(stream)
        yield
    for consumer in topology.consumers:
        await js.add_consumer(consumer.stream, consumer.config)
        yield
    for bucket, ttl in topology.buckets.items():
        await _ensure_bucket(js, bucket, ttl, topology.replicas)
        yield
    if topology.buckets:
        await split_secrets(js)


async def drift(js: JetStreamContext, topology: BusTopology) -> list[str]:
    """Return every difference between the bus and the topology, a sentence each; empty when there is none."""
    results: list[str] = []
    for stream in topology.streams:
        try:
            actual = await js.stream_info(stream.name or "")
        except NotFoundError:
            results.append(f"stream {stream.name} is missing")
            continue
        results += _differences(
            f"stream {stream.name}", asdict(_with_what_stays(stream, actual)), asdict(actual.config)
        )
    for consumer in topology.consumers:
        try:
            config = (await js.consumer_info(consumer.stream, consumer.name)).config
        except NotFoundError:
            results.append(f"consumer {consumer.stream}/{consumer.name} is missing")
            continue
        results += _differences(f"consumer {consumer.name}", asdict(consumer.config), asdict(config))
    for bucket in topology.buckets:
        try:
            actual = (await js.stream_info(f"KV_{bucket}")).config
        except NotFoundError:
            results.append(f"bucket {bucket} is missing")
            continue
        if (has := actual.num_replicas or 1) < topology.replicas:
            results.append(f"bucket {bucket}: num_replicas is {has}, should be {topology.replicas}")
    return results


def _with_what_stays(wanted: StreamConfig, info: StreamInfo) -> StreamConfig:
    """Return the configuration to which the stream can be updated.

    A server never takes `deny_delete` back, and a stream keeps replicas that an operator has added beyond the setting.
    Schemas that another version has declared stay declared.
    """
    actual = info.config
    replicas = max(wanted.num_replicas or 1, actual.num_replicas or 1)
    schemas = {type_: max(its) for type_, its in read_declared(wanted.metadata or {}).items()}
    metadata = declare(schemas, metadata=actual.metadata or {}, last_seq=info.state.last_seq)
    deny_delete = wanted.deny_delete or actual.deny_delete
    return replace(wanted, num_replicas=replicas, metadata=metadata, deny_delete=deny_delete)


def _differences(what: str, wanted: dict[str, Any], actual: dict[str, Any]) -> list[str]:
    return [
        f"{what}: {name} is {actual.get(name)!r}, should be {value!r}"
        for name, value in wanted.items()
        if value is not None and actual.get(name) != value
    ]


async def _ensure_bucket(js: JetStreamContext, bucket: str, ttl: float, replicas: int) -> None:
    try:
        actual = (await js.stream_info(f"KV_{bucket}")).config
        expected = replace(actual, num_replicas=max(actual.num_replicas or 1, replicas), allow_rollup_hdrs=False)
        if expected != actual:
            await js.update_stream(expected)
    except NotFoundError:
        # As clients make a bucket, except that its entries can be erased, and that no message replaces others: with a
        # rollup header, a user that may write one key of a bucket could remove all keys.
        await js.add_stream(
            StreamConfig(
                name=f"KV_{bucket}",
                subjects=[f"$KV.{bucket}.>"],
                max_msgs_per_subject=1,
                max_age=ttl or None,
                duplicate_window=min(ttl, _DUPLICATES_S) if ttl else _DUPLICATES_S,
                discard=DiscardPolicy.NEW,
                storage=StorageType.FILE,
                num_replicas=replicas,
                allow_rollup_hdrs=False,
                allow_direct=True,
                allow_msg_ttl=True,
                deny_delete=False,
            )
        )
