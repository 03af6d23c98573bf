"""The id of the cluster's blob store on the bus: in the metadata of the log's stream, which no service may change.

`synthd bus init` gives a store its id once, and the store has it in each top folder (`synth.blobs.identity`). A store
without it is not mounted, or is a wrong one. A store with another id is another cluster's. The bus has the id as
`claiming:ID` until all folders have it, so an init that is killed in between can run again.
"""

# nats-py annotates parts of itself not at all.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

from nats.errors import Error as NatsError
from nats.js.api import StreamInfo
from obstore.exceptions import BaseError

from synth.blobs import BlobStore
from synth.blobs.identity import TOP_FOLDERS, identity_key
from synth.blobs.local import INCOMING
from synth.bus.connection import Connection
from synth.bus.reading import read_across_reconnects
from synth.bus.recorded import EVENTS
from synth.bus.replay import read_stream
from synth.errors import Transient, UserError
from synth.runtime import logs

log = logs.get("blob store")

#: The key in the metadata of the log's stream.
STORE_KEY = "synth.store"
_CLAIMING = "claiming:"
_NAMED = b'"blob://'
_SETTING = "SYNTH_BLOB_URL"


async def claim_store(bus: Connection, blobs: BlobStore) -> None:
    """Give the cluster's store its id if it has none.

    Raises `UserError` for a store without the cluster's id, for one of another cluster, and for an empty one if the
    log names blobs.
    """
    noted, known = await _noted(bus), await blobs.identities()
    if noted and not noted.startswith(_CLAIMING):
        _check(blobs, known, noted)
        if missing := [folder for folder, id in known.items() if not id]:
            raise _absent(blobs, missing, noted)
        return
    if not noted:
        _check(blobs, known, "")
        if not await _was_written(blobs) and await _names_blobs(bus):
            raise _absent(blobs, list(known), "")
        noted = f"{_CLAIMING}{uuid4().hex}"
        await _note(bus, noted)
    id = noted.removeprefix(_CLAIMING)
    _check(blobs, known, id)
    await blobs.identify(id)
    await _note(bus, id)


async def open_store(bus: Connection, url: str) -> BlobStore:
    """Open the cluster's blob store. Raises `UserError` for another cluster's, and for a remote one without its id.

    A local store without the id is absent: its readers and writers wait for it.
    """
    blobs, id = BlobStore.open(url), await _noted(bus)
    if not id or id.startswith(_CLAIMING):
        return blobs
    blobs = replace(blobs, id=id)
    known: dict[str, str] = {}
    for folder in TOP_FOLDERS:
        try:
            known[folder] = await blobs.identity(folder)
        except (OSError, BaseError) as error:
            # A service may be allowed to read some of the folders alone.
            log.warning("a folder of the blob store is not compared with the bus", folder=folder, error=str(error))
    _check(blobs, known, id)
    missing = [folder for folder, its in known.items() if not its]
    if blobs.root is None and missing:
        raise _absent(blobs, missing, id)
    # A container may have some of the folders alone.
    if len(missing) == len(TOP_FOLDERS) or (
        blobs.root is not None and any((blobs.root / name).is_dir() for name in missing)
    ):
        log.error("the blob store is absent: is its disk mounted?", store=url, id=id, without=missing)
    return blobs


def saved_id(metadata: dict[str, str]) -> str:
    """Return the id of the store of a saved log; "" without one."""
    id = metadata.get(STORE_KEY, "")
    return "" if id.startswith(_CLAIMING) else id


async def check_restorable(blobs: BlobStore, id: str) -> None:
    """Raise `UserError` unless the store is new, or the one with this id."""
    _check(blobs, await blobs.identities(), id)


def _check(blobs: BlobStore, known: dict[str, str], id: str) -> None:
    """Raise `UserError` if a top folder has another id."""
    others = {folder: its for folder, its in known.items() if its not in ("", id)}
    for folder, its in others.items():
        where = _place(blobs, folder)
        raise UserError(
            f"the blob store is another cluster's: {where} names the store {its}",
            expected=f"the store {id}" if id else "a store of this cluster alone",
            fix=f"set {_SETTING} to this cluster's store; if no other cluster has this one, remove that file from "
            "each folder (jobs, orgs, judging)",
            where=_SETTING,
        )


def _absent(blobs: BlobStore, missing: list[str], id: str) -> UserError:
    where = ", ".join(_place(blobs, folder) for folder in missing)
    what = f"the blob store lacks its id ({where})" if id else "the log names blobs, and the blob store is empty"
    fix = f"; if it is the right one, write {id} into that file" if id else ""
    return UserError(
        f"{what}: it is not mounted, or not this cluster's",
        expected=f"the store {id}" if id else "the store that the cluster has written",
        fix=f"mount it, or set {_SETTING} to it{fix}",
        where=_SETTING,
    )


def _place(blobs: BlobStore, folder: str) -> str:
    key = identity_key(folder)
    return key if blobs.root is None else str(blobs.root / key)


async def _was_written(blobs: BlobStore) -> bool:
    if blobs.root is not None:
        return any(blobs.root.glob(f"*/{INCOMING}"))
    async for _ in blobs.entries():
        return True
    return False


async def _names_blobs(bus: Connection) -> bool:
    async for message in read_stream(bus.nc, [">"]):
        if _NAMED in message.data:
            return True
    return False


async def _noted(bus: Connection) -> str:
    return ((await _info(bus)).config.metadata or {}).get(STORE_KEY, "")


async def _note(bus: Connection, id: str) -> None:
    config = (await _info(bus)).config
    await bus.js.update_stream(replace(config, metadata=(config.metadata or {}) | {STORE_KEY: id}))


async def _info(bus: Connection) -> StreamInfo:
    try:
        return await read_across_reconnects(bus, lambda: bus.js.stream_info(EVENTS))
    except (TimeoutError, NatsError) as error:
        raise Transient(f"the bus did not answer: {error!r}") from error
