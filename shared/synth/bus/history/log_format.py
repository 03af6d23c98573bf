"""The check whether this version can continue a log: it must read every job there that has not ended.

`synthd bus init` checks that before a service starts, once for each format: the log's stream keeps the one that was
checked last in its metadata. Raise `FORMAT` with a change of the stored data that an earlier version cannot read, and
with a change that reads stored data in another way.
"""

# nats-py annotates parts of itself not at all.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from dataclasses import replace

import msgspec
from nats.js.errors import NotFoundError

from synth.bus.connection import Connection
from synth.bus.recorded import EVENTS, Recorded, UnknownEvent, from_delivery
from synth.bus.replay import read_stream
from synth.errors import NewerVersion, UserError
from synth.events import JobValidated
from synth.jobs.lifecycle import TERMINAL_FACTS
from synth.methods.job import job_from_data

#: The format of the data that this version stores.
FORMAT = 1
#: The key in the metadata of the log's stream.
FORMAT_KEY = "synth.format"
_SHOWN = 3


async def admit_log(bus: Connection) -> None:
    """Check that this version can continue the log, and note it there.

    Raises `UserError` for a log of a newer format, and for one with a job that has not ended and cannot be read.
    """
    try:
        info = await bus.js.stream_info(EVENTS)
    except NotFoundError:
        return
    metadata = info.config.metadata or {}
    noted = metadata.get(FORMAT_KEY, "0")
    if noted == str(FORMAT):
        return
    if not noted.isdecimal() or int(noted) > FORMAT:
        raise _refused(
            f"the log has format {noted[:20]}, of a newer version",
            fix="run the version that wrote it, or restore a backup from before the upgrade into a new data folder",
        )
    if unreadable := await _find_unreadable(bus):
        some = "; ".join(f"{job}: {why}" for job, why in list(unreadable.items())[:_SHOWN])
        raise _refused(
            f"the log is of an earlier version, and {len(unreadable)} jobs that have not ended cannot be read: {some}",
            fix="start the version that wrote it, let these jobs end or cancel them, then upgrade; or begin with a new "
            "data folder",
        )
    await bus.js.update_stream(replace(info.config, metadata=metadata | {FORMAT_KEY: str(FORMAT)}))


async def _find_unreadable(bus: Connection) -> dict[str, str]:
    """Return the jobs that have not ended and that this version cannot read, each with the reason."""
    unreadable: dict[str, str] = {}
    async for message in read_stream(bus.nc, ["job.>"]):
        event = from_delivery(message)
        if event.type in TERMINAL_FACTS or event.type == "job.deleted":
            unreadable.pop(event.key, None)
        elif why := _why_unreadable(event):
            unreadable.setdefault(event.key, why)
    return unreadable


def _why_unreadable(event: Recorded) -> str | None:
    fact = event.event
    if isinstance(fact, UnknownEvent):
        # Events of a newer version are left to it, one by one.
        return None if fact.newer else f"its {event.type} has another shape"
    if not isinstance(fact, JobValidated):
        return None
    try:
        job_from_data(fact.job)
    except (msgspec.ValidationError, NewerVersion) as error:
        return str(error)
    return None


def _refused(what: str, *, fix: str) -> UserError:
    return UserError(what, expected=f"a log of format {FORMAT}, or an earlier one", fix=fix, where=EVENTS)
