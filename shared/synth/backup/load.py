"""Restores a backup into an empty cluster: blobs first, the log last, then the tasks of the jobs that go on.

A restore that was killed can be started again: it recognises the data that it has already restored. Tasks follow from
the log: the queues of the services begin again at the oldest job that has not ended and the oldest file that was not
checked, and every handler may run twice.
"""

# nats-py annotates parts of itself not at all.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from nats.js.errors import NotFoundError

from synth.backup.folder import BackupFolder, BackupManifest
from synth.backup.save import STREAMS
from synth.backup.streams import StreamFile, load_stream
from synth.blobs import BlobCorrupt, BlobStore
from synth.bus.connection import Connection
from synth.bus.history.store_identity import check_restorable, saved_id
from synth.bus.recorded import Recorded
from synth.bus.replay import replay
from synth.bus.server.provision import provision
from synth.bus.server.topology import EVENTS, WORK, BusTopology
from synth.errors import Permanent, UserError
from synth.events import BlobRef
from synth.jobs.lifecycle import TERMINAL_FACTS

Report = Callable[[str], None]
_READ_S = 600.0


async def load_cluster(
    bus: Connection, blobs: BlobStore, folder: BackupFolder, topology: BusTopology, *, report: Report
) -> BackupManifest:
    """Restore a backup, and provision the bus; returns the manifest of the backup.

    Raises `UserError` for a damaged backup, and for a cluster that holds data.
    """
    manifest = await check_target(bus, folder)
    # As the backup has them: one of an earlier version has other buckets, which `provision` moves.
    saved = {stream.name: stream for stream in manifest.streams}
    present = {name: await _state(bus, name) for name in saved}
    # The restored log has the id of the store that the backup was made of.
    id = saved_id(saved[EVENTS].config.get("metadata") or {})
    await check_restorable(blobs, id)
    await _put_blobs(blobs, folder, manifest)
    if id:
        await blobs.identify(id)
    report(f"{manifest.blobs} blobs are in the store")
    replicas = topology.streams[0].num_replicas or 1
    for name in reversed(saved):
        if present[name] == (saved[name].last_seq, saved[name].messages) and name != EVENTS:
            continue
        if present[name] is not None:
            await bus.js.delete_stream(name)
        # `deny_delete` of an earlier version ends here: the server changes it only when it makes a stream.
        await load_stream(bus, saved[name], folder.path / saved[name].file, replicas=replicas, deny_delete=False)
    await provision(bus.js, topology)
    begin = await _oldest_unfinished(bus) or saved[EVENTS].last_seq + 1
    for consumer in topology.consumers:
        if consumer.stream == EVENTS:
            await _reset(bus, consumer.name, begin)
    report(f"the log is restored up to event {saved[EVENTS].last_seq}; work goes on from event {begin}")
    return manifest


async def check_target(bus: Connection, folder: BackupFolder) -> BackupManifest:
    """Check that the backup is whole and the cluster empty; changes nothing. Returns the backup. Raises `UserError`."""
    manifest = folder.manifest()
    if manifest is None:
        raise UserError("there is no backup here", fix="name the folder of `synthctl backup`", where=str(folder.path))
    for stream in manifest.streams:
        folder.check(folder.path / stream.file, stream.sha256)
    saved = {stream.name: stream for stream in manifest.streams}
    present = {name: await _state(bus, name) for name in dict.fromkeys((*STREAMS, *saved, WORK))}
    _check_empty(present, saved)
    return manifest


async def _state(bus: Connection, stream: str) -> tuple[int, int] | None:
    """Return (last sequence, messages) of a stream; None if it does not exist."""
    try:
        state = (await bus.js.stream_info(stream)).state
    except NotFoundError:
        return None
    return state.last_seq, state.messages


def _check_empty(present: dict[str, tuple[int, int] | None], saved: dict[str, StreamFile]) -> None:
    full = [
        f"{name} holds {state[1]} messages"
        for name, state in present.items()
        if state is not None
        and state != (0, 0)
        # Restored by an earlier run before it was killed; the log comes last.
        and (name == EVENTS or name not in saved or state != (saved[name].last_seq, saved[name].messages))
    ]
    if full:
        raise UserError(
            f"the cluster is not empty: {', '.join(full)}",
            expected="a cluster that has never run",
            fix="restore into a new data folder, or a bus with an empty store",
            where="the bus",
        )


async def _put_blobs(blobs: BlobStore, folder: BackupFolder, manifest: BackupManifest) -> None:
    there = {key: size async for key, size, _ in blobs.entries()}
    for blob in folder.index(manifest):
        ref = BlobRef(uri=f"blob://{blob.key}", size=blob.size, sha256=blob.sha256)
        if blob.key in there:
            try:
                await blobs.verify(ref)
            except BlobCorrupt as error:
                raise UserError(
                    f"the blob store has another {blob.key}",
                    expected="an empty store, or the one that the backup was made of",
                    fix="restore into an empty blob store",
                    where=ref.uri,
                ) from error
            continue
        path = folder.blob(blob.sha256)
        await asyncio.to_thread(folder.check, path, blob.sha256)
        await blobs.put_file(blob.key, path, sha256=blob.sha256)


async def _oldest_unfinished(bus: Connection) -> int | None:
    """Return the first event of the oldest job that has not ended, or unchecked file; None if there is neither."""
    open_: dict[str, int] = {}
    for event in await replay(bus, ["job.>", "file.>"], timeout=_READ_S):
        if _begins(event):
            open_.setdefault(event.key, event.seq)
        elif _ends(event):
            open_.pop(event.key, None)
    return min(open_.values(), default=None)


def _begins(event: Recorded) -> bool:
    return event.type in ("job.created", "file.uploaded")


def _ends(event: Recorded) -> bool:
    return event.type in TERMINAL_FACTS or event.type in ("file.ready", "file.rejected", "file.deleted")


async def _reset(bus: Connection, consumer: str, seq: int) -> None:
    """Make a queue begin at a sequence."""
    subject = f"{bus.nc.api}.CONSUMER.RESET.{EVENTS}.{consumer}"
    reply = await bus.nc.request(subject, json.dumps({"seq": seq}).encode(), timeout=10)
    answer = json.loads(reply.data)
    if "error" in answer:
        raise Permanent(f"the bus cannot begin {consumer} at {seq}: {answer['error'].get('description')}")
