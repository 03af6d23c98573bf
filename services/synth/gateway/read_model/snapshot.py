"""A copy of the read model's file, from which, with the log's later events, a damaged file is rebuilt.

Invariants. A copy is whole and as it was written, or it does not exist: it is checked before it is renamed into its
place, so that no damaged copy replaces a sound one. It contains nothing that was deleted later, because a deletion
removes it. It becomes the file only if it is still sound, of this version and of this log.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable

from synth.bus.connection import Connection
from synth.gateway.read_model import database_file
from synth.gateway.read_model.event_log import has_event
from synth.gateway.read_model.projected_file import ProjectedFile
from synth.runtime import logs

log = logs.get("read model")

_LOOK_S = 1.0
#: The largest part of the time for making copies: each of many deletions would otherwise cause a new copy.
_COPYING_SHARE = 0.05


async def keep_snapshot(model: ProjectedFile, complete: Callable[[], bool], *, every: int) -> None:
    """Copy the file after every `every` events since the last copy, for ever; never if `every` is 0.

    complete: whether the model has the whole log; a model that is still being projected is not copied.
    """
    not_before = 0.0
    while True:
        await asyncio.sleep(_LOOK_S)
        behind = model.applied - (model.snapshot_applied or 0)
        if not every or behind < every or time.monotonic() < not_before or not complete():
            continue
        begun = time.monotonic()
        try:
            await take_snapshot(model)
        except (sqlite3.Error, OSError) as error:
            log.warning("the read model cannot be copied now", error=str(error))
        took = time.monotonic() - begun
        not_before = time.monotonic() + took / _COPYING_SHARE


async def take_snapshot(model: ProjectedFile) -> None:
    """Copy the file's state at one moment. The copy is dropped if it is damaged, or after a deletion during the copy.

    Raises `sqlite3.Error` and `OSError` if the copy cannot be written.
    """
    begun, path = model.deletions, model.unfinished_snapshot
    try:
        applied = await asyncio.to_thread(database_file.copy, model.path, path)
        damage = await asyncio.to_thread(model.find_damage, path)
        if damage is not None:
            log.error("a copy of the read model is not kept", damage=damage)
        elif model.deletions == begun:
            path.replace(model.snapshot_path)
            model.snapshot_applied = applied
    finally:
        database_file.delete(path)


async def begin_anew(bus: Connection, model: ProjectedFile) -> None:
    """Replace a damaged file by its snapshot if that is usable, else by an empty file.

    Raises `Transient` if the bus does not answer.
    """
    usable = await holds_snapshot_of(bus, model)
    if usable:
        usable = await asyncio.to_thread(model.find_damage, model.snapshot_path) is None
    model.empty(from_snapshot=usable)


async def holds_snapshot_of(bus: Connection, model: ProjectedFile) -> bool:
    """Return whether there is a snapshot, and the log has its last event. Raises `Transient` without an answer."""
    mark = model.snapshot_mark()
    return mark is not None and await has_event(bus, mark)
