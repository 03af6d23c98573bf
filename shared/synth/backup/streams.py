"""A stream as one file: the server's own snapshot of it, which keeps every sequence, also where messages are gone."""

# nats-py annotates parts of itself not at all.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import msgspec
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from synth.bus.connection import Connection
from synth.errors import Permanent, Transient

#: The key in a restored stream's metadata of the id of the restore, by which a reader knows it is another stream.
RESTORED = "synth.restored"
#: Bytes of a piece of a snapshot: well below the largest message of the bus.
_CHUNK = 1 << 20
#: Longer than a server may need to read one piece, or to make a stream of the last one.
_REPLY_S = 60.0


class StreamFile(msgspec.Struct, frozen=True, kw_only=True):
    """A stream in a backup. file: its name there. last_seq, messages: as the snapshot has them."""

    name: str
    file: str
    size: int
    sha256: str
    first_seq: int
    last_seq: int
    messages: int
    config: dict[str, Any]
    state: dict[str, Any]


async def save_stream(bus: Connection, name: str, path: Path) -> StreamFile:
    """Write one moment of a stream into a file, without its consumers. Raises `Transient` when the bus breaks off."""
    pieces: asyncio.Queue[Msg] = asyncio.Queue()
    inbox = bus.nc.new_inbox()
    subscription = await bus.nc.subscribe(inbox, cb=pieces.put)
    digest, size = hashlib.sha256(), 0
    try:
        # jsck: the server checks each message against its checksum first.
        requested = {"deliver_subject": inbox, "no_consumers": True, "chunk_size": _CHUNK, "jsck": True}
        reply = await _request(bus, f"{bus.nc.api}.STREAM.SNAPSHOT.{name}", json.dumps(requested).encode())
        with path.open("wb") as out:
            while (piece := await _next(pieces, name)).data:
                await asyncio.to_thread(out.write, piece.data)
                digest.update(piece.data)
                size += len(piece.data)
                if piece.reply:
                    await piece.respond(b"")
        # The last piece is empty; its status, if it has one, gives the reason why the server broke off.
        status = (piece.headers or {}).get("Status")
        if status not in (None, "204"):
            raise Transient(f"the snapshot of {name} was broken off: {piece.headers}")
    finally:
        await subscription.unsubscribe()
    state = reply["state"]
    return StreamFile(
        name=name,
        file=path.name,
        size=size,
        sha256=digest.hexdigest(),
        first_seq=state["first_seq"],
        last_seq=state["last_seq"],
        messages=state["messages"],
        config=reply["config"],
        state=state,
    )


async def load_stream(bus: Connection, saved: StreamFile, path: Path, *, replicas: int, deny_delete: bool) -> None:
    """Make a stream from its file; no stream of its name may exist.

    replicas: on how many servers. deny_delete: whether nobody may delete a message of it.
    """
    metadata = cast(dict[str, str], saved.config.get("metadata") or {}) | {RESTORED: uuid4().hex}
    config = saved.config | {"num_replicas": replicas, "deny_delete": deny_delete, "metadata": metadata}
    requested = json.dumps({"config": config, "state": saved.state}).encode()
    reply = await _request(bus, f"{bus.nc.api}.STREAM.RESTORE.{saved.name}", requested)
    target = str(reply["deliver_subject"])
    with path.open("rb") as file:
        while piece := await asyncio.to_thread(file.read, _CHUNK):
            await _request(bus, target, piece)
    await _request(bus, target, b"")


async def _request(bus: Connection, subject: str, body: bytes) -> dict[str, Any]:
    try:
        reply = await bus.nc.request(subject, body, timeout=_REPLY_S)
    except (NatsError, TimeoutError) as error:
        raise Transient(f"the bus did not answer {subject}: {error!r}") from error
    answer = cast(dict[str, Any], json.loads(reply.data)) if reply.data else {}
    if "error" in answer:
        raise Permanent(f"the bus refuses {subject}: {answer['error'].get('description')}")
    return answer


async def _next(pieces: asyncio.Queue[Msg], name: str) -> Msg:
    try:
        async with asyncio.timeout(_REPLY_S):
            return await pieces.get()
    except TimeoutError as error:
        raise Transient(f"the snapshot of {name} stopped") from error
