"""What becomes of a damaged byte: the cluster's own checks are compared with what was there before."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from nats.aio.msg import Msg
from pydantic import SecretStr

from synth.blobs import BlobCorrupt, BlobMissing, BlobStore
from synth.bus.connection import Connection, connect
from synth.bus.recorded import TTL, delivery_numbers, from_delivery
from synth.bus.replay import replay_messages
from synth.bus.server.embedded import ServerConfig, free_port, start, wait_healthy
from synth.bus.server.provision import provision
from synth.bus.server.topology import DEFAULT_POOL, WORK, task_queue_name, topology
from synth.bus.server.work_queue import drop_unreadable_work
from synth.bus.tasks.pull import pull
from synth.errors import SynthError, Transient
from synth.events import BlobRef
from synth.gateway.ledger.file import LedgerFile
from synth.gateway.ledger.watch import LedgerWatch
from synth.runtime.settings import ServiceSettings
from synth.verifier.settings import VerifierSettings
from synth.verifier.tasks.lost import LostTasks
from synth.work import TASKS
from tests.soak.damage.places import STREAMS, Damage, is_checkpoint
from tests.soak.references import references

#: Beside the data folder: the same for a copy of it.
LEDGER = "gateway.db.ledger"
_START_S = 10.0
_CHECK_S = 3600.0
#: Until tasks that were owned when the cluster was stopped are delivered again, and longer.
_DELIVERED_S = 20.0
_MANIFEST = ".manifest.json"

#: Of a message: its sequence, its time and headers, its body.
Content = dict[tuple[str, str], tuple[int, int, dict[str, str], bytes]]


@dataclass(frozen=True)
class Verdict:
    """What became of a damage. outcome: detected, recovered, harmless or silent."""

    outcome: str
    reason: str


@dataclass(frozen=True)
class Cluster:
    """A stopped cluster. content: of its streams. tasks: their subjects. refs: of the named blobs, by key."""

    data: Path
    users: dict[str, str]
    content: Content
    tasks: frozenset[str]
    refs: dict[str, BlobRef]


async def read_cluster(data: Path, scratch: Path) -> Cluster:
    """Read a stopped cluster, from a copy of its bus."""
    users = msgspec.json.decode((data / "cluster.json").read_bytes())["users"]
    async with _bus_of(data, scratch, users) as bus:
        content = await _content(bus.gateway)
        tasks = frozenset((await bus.admin.js.stream_info(WORK, subjects_filter=">")).state.subjects or {})
        lost = await _queue_again(bus)
        assert not lost, f"of an intact queue these are lost: {lost}"
        facts = [from_delivery(msg) for msg in await replay_messages(bus.gateway.nc, [">"])]
    refs = {ref.uri: _whole(ref) for fact in facts for ref in references(fact.event)}
    for ref in list(refs.values()):
        if ref.uri.endswith(_MANIFEST):
            members = (await BlobStore.open(f"file:{data / 'blobs'}").manifest(ref)).files.values()
            refs |= {member.uri: member for member in members}
    return Cluster(data, users, content, tasks, {uri.removeprefix("blob://"): ref for uri, ref in refs.items()})


def _whole(ref: BlobRef) -> BlobRef:
    """The whole blob that a reference names a part of."""
    return ref if ref.part is None else BlobRef(uri=ref.uri, size=0, sha256=ref.stored_sha256)


async def judge(cluster: Cluster, damage: Damage, scratch: Path) -> Verdict:
    """Damage a copy of the cluster, and look what its checks say."""
    if damage.place == "tasks":
        return await _judge_tasks(cluster, damage, scratch)
    if damage.place in STREAMS:
        return await _judge_bus(cluster, damage, scratch)
    return await _judge_blob(cluster, damage, scratch)


async def _judge_bus(cluster: Cluster, damage: Damage, scratch: Path) -> Verdict:
    try:
        async with _bus_of(cluster.data, scratch, cluster.users, damage) as bus:
            watch = LedgerWatch(bus.gateway, LedgerFile(scratch / LEDGER), check_s=_CHECK_S)
            await watch.begin()
            await watch.look(log_too=True)
            if (problem := watch.check()) is not None:
                return Verdict("detected", problem)
            await watch.look_at_records()
            if watch.records_lost:
                return Verdict("detected", f"reported as lost: {watch.records_lost}")
            try:
                lost = differing(cluster.content, await _content(bus.gateway))
            except Transient as error:
                return Verdict("silent", f"what the bus holds cannot be read: {error}")
    except (SynthError, TimeoutError) as error:
        return Verdict("detected", f"the bus does not start: {error!r}")
    return (
        Verdict("silent", f"{len(lost)} messages differ: {lost[:3]}") if lost else Verdict("harmless", "all is there")
    )


async def _judge_tasks(cluster: Cluster, damage: Damage, scratch: Path) -> Verdict:
    """Start the cluster's bus and have its verifier queue lost tasks: their workers must get each task."""
    try:
        async with _bus_of(cluster.data, scratch, cluster.users, damage) as bus:
            lost = await _queue_again(bus)
            delivered = set[str]()
            deadline = time.monotonic() + _DELIVERED_S
            while time.monotonic() < deadline and not cluster.tasks <= delivered:
                for kind, (taker, _) in TASKS.items():
                    queue = task_queue_name(kind, DEFAULT_POOL)
                    messages = await pull(await bus.as_(taker.value), queue, batch=100)
                    delivered |= {message.subject for message in messages}
    except (SynthError, TimeoutError) as error:
        return Verdict("detected", f"the bus does not start: {error!r}")
    if missing := cluster.tasks - delivered:
        return Verdict("silent", f"{len(missing)} tasks are not delivered: {sorted(missing)[:3]}")
    if lost or bus.dropped:
        return Verdict("recovered", f"queued again: {lost}; cannot be read: {bus.dropped}")
    return Verdict("harmless", "all tasks are delivered")


async def _queue_again(bus: _Bus) -> list[str]:
    lost = LostTasks(await bus.as_("verifier"), VerifierSettings())
    tasks = await lost.queue_again()
    assert lost.check() is None, lost.check()
    return [task.subject for task in tasks]


async def _judge_blob(cluster: Cluster, damage: Damage, scratch: Path) -> Verdict:
    key = damage.file.relative_to("blobs").as_posix()
    ref = cluster.refs.get(key)
    if ref is None:
        return Verdict("harmless", "no event and no manifest names it, and nobody reads what it says")
    shutil.copytree(cluster.data / "blobs", scratch / "blobs")
    damage.strike(scratch)
    blobs = BlobStore.open(f"file:{scratch / 'blobs'}")
    trees = {
        name: tree for name, tree in cluster.refs.items() if name.endswith(_MANIFEST) and is_checkpoint(Path(name))
    }
    try:
        # As a trainer goes on from a checkpoint, the newest first, and as all others read.
        for name, tree in trees.items():
            if name == key or key.startswith(f"{name.removesuffix(_MANIFEST)}/"):
                await blobs.fetch_tree(tree, scratch / "fetched")
        async for _ in blobs.stream(ref):
            pass
    except (BlobCorrupt, BlobMissing, msgspec.DecodeError) as error:
        return await _after_detection(blobs, trees, key, str(error))
    return Verdict("silent", "it was read without an error")


async def _after_detection(blobs: BlobStore, trees: dict[str, BlobRef], key: str, error: str) -> Verdict:
    """A damaged checkpoint is recovered from if another one of its job is whole."""
    job = key.split("/")[1]
    others = [tree for name, tree in trees.items() if name.split("/")[1] == job]
    for tree in others if is_checkpoint(Path(key)) else ():
        try:
            await blobs.fetch_tree(tree, Path("unused"))
        except BlobCorrupt:
            continue
        return Verdict("recovered", f"{error}; the job goes on from {tree.uri}")
    return Verdict("detected", error)


@dataclass
class _Bus:
    """A started bus. dropped: the subjects of unreadable messages that `synthd bus init` has removed."""

    config: ServerConfig
    connections: dict[str, Connection] = field(default_factory=dict[str, Connection])
    dropped: list[str] = field(default_factory=list[str])

    async def as_(self, user: str) -> Connection:
        """Connect as a user, once."""
        if user not in self.connections:
            self.connections[user] = await connect(_settings(self.config, user), user)
        return self.connections[user]

    @property
    def admin(self) -> Connection:
        return self.connections["bus"]

    @property
    def gateway(self) -> Connection:
        return self.connections["gateway"]


@asynccontextmanager
async def _bus_of(
    data: Path, scratch: Path, users: dict[str, str], damage: Damage | None = None
) -> AsyncIterator[_Bus]:
    """Start a copy of a cluster's bus, as `synthctl up` does, and connect as its gateway. Raises `TimeoutError`."""
    shutil.copytree(data / "nats", scratch / "nats")
    shutil.copy(data / LEDGER, scratch / LEDGER)
    if damage is not None:
        damage.strike(scratch)
        for index in (scratch / "nats").rglob("index.db") if damage.killed else ():
            index.unlink()
    config = ServerConfig(port=free_port(), http_port=free_port(), store=scratch / "nats" / "store", users=users)
    process = start(config, scratch / "nats.conf", scratch / "nats.log")
    try:
        wait_healthy(config, timeout=_START_S)
        bus = _Bus(config)
        admin = await bus.as_("bus")
        await provision(admin.js, topology())
        bus.dropped = await drop_unreadable_work(admin.js)
        await bus.as_("gateway")
        yield bus
        for connection in bus.connections.values():
            await connection.close()
    finally:
        process.terminate()
        try:
            process.wait(_START_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _settings(config: ServerConfig, user: str) -> ServiceSettings:
    return ServiceSettings(nats_url=config.url, nats_user=user, nats_password=SecretStr(config.users[user]))


async def _content(bus: Connection) -> Content:
    """What the streams hold, but for the tasks."""
    content: Content = {}
    for stream in (name for place, names in STREAMS.items() if place != "tasks" for name in names):
        for msg in await replay_messages(bus.nc, [">"], stream=stream, timeout=_START_S):
            if TTL not in (msg.headers or {}):
                content[stream, _name(stream, msg)] = (
                    delivery_numbers(msg.reply)[0],
                    delivery_numbers(msg.reply)[2],
                    dict(msg.headers or {}),
                    msg.data,
                )
    return content


def _name(stream: str, msg: Msg) -> str:
    return msg.subject if stream.startswith("KV_") else str(delivery_numbers(msg.reply)[0])


def differing(before: Content, now: Content) -> list[tuple[str, str]]:
    """The messages that are not as they were."""
    return [name for name, content in before.items() if now.get(name) != content]
