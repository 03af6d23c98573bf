"""Applies the topology, and says where a running bus differs from it. The only code that declares streams."""

# nats-py annotates parts of itself not at all.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from dataclasses import asdict
from typing import Any

from nats.js import JetStreamContext
from nats.js.api import KeyValueConfig, StorageType
from nats.js.errors import NotFoundError

from synth.bus.server.topology import BusTopology
from synth.runtime import logs

log = logs.get("provision")


async def provision(js: JetStreamContext, topology: BusTopology) -> None:
    """Create what is missing and update what differs: running it twice changes nothing."""
    for stream in topology.streams:
        try:
            await js.stream_info(stream.name or "")
            await js.update_stream(stream)
        except NotFoundError:
            await js.add_stream(stream)
    for consumer in topology.consumers:
        await js.add_consumer(consumer.stream, consumer.config)
    for bucket, ttl in topology.buckets.items():
        await _ensure_bucket(js, bucket, ttl, topology.streams[0].num_replicas or 1)
    log.info(
        "bus provisioned",
        streams=len(topology.streams),
        consumers=len(topology.consumers),
        buckets=len(topology.buckets),
    )


async def drift(js: JetStreamContext, topology: BusTopology) -> list[str]:
    """Every difference between the bus and the topology, a sentence each; empty when there is none."""
    found: list[str] = []
    for stream in topology.streams:
        try:
            actual = (await js.stream_info(stream.name or "")).config
        except NotFoundError:
            found.append(f"stream {stream.name} is missing")
            continue
        found += _differences(f"stream {stream.name}", asdict(stream), asdict(actual))
    for consumer in topology.consumers:
        try:
            config = (await js.consumer_info(consumer.stream, consumer.name)).config
        except NotFoundError:
            found.append(f"consumer {consumer.stream}/{consumer.name} is missing")
            continue
        found += _differences(f"consumer {consumer.name}", asdict(consumer.config), asdict(config))
    for bucket in topology.buckets:
        try:
            await js.stream_info(f"KV_{bucket}")
        except NotFoundError:
            found.append(f"bucket {bucket} is missing")
    return found


def _differences(what: str, wanted: dict[str, Any], actual: dict[str, Any]) -> list[str]:
    return [
        f"{what}: {name} is {actual.get(name)!r}, should be {value!r}"
        for name, value in wanted.items()
        if value is not None and actual.get(name) != value
    ]


async def _ensure_bucket(js: JetStreamContext, bucket: str, ttl: float, replicas: int) -> None:
    try:
        await js.stream_info(f"KV_{bucket}")
    except NotFoundError:
        await js.create_key_value(
            KeyValueConfig(
                bucket=bucket, history=1, ttl=ttl or None, storage=StorageType.FILE, replicas=replicas, direct=True
            )
        )
