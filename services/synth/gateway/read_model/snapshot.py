"""A copy of the read model's file, so that a damaged one is made anew from it and from what the log has got since.

Invariants. A copy is whole, and holds what was written into the model, or it is not there: it is compared before it is
renamed into its place, so that no damaged one takes the place of a sound one. It holds nothing that was deleted since
it was made: a deletion removes it. It becomes the file only when it is still sound, of this version and of this log.
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
#: Of the time, at most, in which copies are made: with many deletions each of them would ask for one.
_COPYING_SHARE = 0.05


async def keep_snapshot(model: ProjectedFile, complete: Callable[[], bool], *, every: int) -> None:
    """Copy the file whenever `every` events have come since the last copy, for ever; never when `every` is 0.

    complete: whether the model has the whole log; one that is only under way is not copied.
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
    """Copy the file as it is at one moment. Nothing is kept where something was deleted meanwhile, or is damaged.

    Raises `sqlite3.Error` and `OSError` when it cannot be written.
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
    """Replace a damaged file by its snapshot where that can be gone on with, else by an empty one.

    Raises `Transient` when the bus does not answer.
    """
    usable = await holds_snapshot_of(bus, model)
    if usable:
        usable = await asyncio.to_thread(model.find_damage, model.snapshot_path) is None
    model.empty(from_snapshot=usable)


async def holds_snapshot_of(bus: Connection, model: ProjectedFile) -> bool:
    """Whether there is a snapshot, and the log has its last event. Raises `Transient` when the bus does not answer."""
    mark = model.snapshot_mark()
    return mark is not None and await has_event(bus, mark)
