"""Which events a newer version can have written: those whose schema some version declared on the bus.

`synthd bus init` of each version declares the schemas that it writes, in the metadata of the log's stream, which no
service may change. A version writes nothing before its schemas are declared: a service does not start until they are.
So an event of a schema that nobody had declared when it was written is of no newer version, whatever it says of itself.
Whoever has a service's credential may say so, and a queue that waited for that version would wait for ever.
"""

# nats-py annotates parts of itself not at all.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import asyncio
from dataclasses import replace

import msgspec
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import StreamInfo
from nats.js.errors import APIError, NotFoundError

from synth.bus.recorded import EVENTS, Recorded, UnknownEvent
from synth.errors import Permanent, Transient
from synth.events.catalogue import CATALOGUE

_PREFIX = "synth.schema."


def metadata_of_schemas(schemas: dict[str, int]) -> dict[str, str]:
    """The entries of the stream's metadata that declare these schemas, by the type of their event."""
    return {f"{_PREFIX}{type_}": str(schema) for type_, schema in schemas.items()}


def written_schemas() -> dict[str, int]:
    """The schema of each type of event that this version writes."""
    return {type_: spec.version for type_, spec in CATALOGUE.items()}


def join_metadata(wanted: dict[str, str], actual: dict[str, str]) -> dict[str, str]:
    """The metadata that a stream should have: of each schema the highest that was ever declared, and what else it has.

    An event of a schema that is no longer declared would be taken for a forged one.
    """
    highest = read_schemas(wanted)
    for type_, schema in read_schemas(actual).items():
        highest[type_] = max(schema, highest.get(type_, 0))
    return actual | wanted | metadata_of_schemas(highest)


def read_schemas(metadata: dict[str, str]) -> dict[str, int]:
    """The schemas that a stream's metadata declares."""
    return {
        name.removeprefix(_PREFIX): int(schema)
        for name, schema in metadata.items()
        if name.startswith(_PREFIX) and schema.isascii() and schema.isdigit()
    }


class DeclaredSchemas:
    """The schemas that are declared on the bus, as this process last read them."""

    def __init__(self, js: JetStreamContext) -> None:
        self._js = js
        self._schemas: dict[str, int] = {}
        # The sequence up to which the log had been written when they were read.
        self._written = 0
        self._reading = asyncio.Lock()

    async def judge(self, recorded: Recorded) -> Recorded:
        """The event, which counts as a damaged one where it says that it is newer and its schema is not declared.

        Raises `Transient` where the bus does not say what is declared.
        """
        event = recorded.event
        if not (isinstance(event, UnknownEvent) and event.newer) or await self._declares(recorded):
            return recorded
        return replace(recorded, event=msgspec.structs.replace(event, newer=False))

    async def check_written(self) -> None:
        """Raise `Permanent` where this version writes schemas that are not declared; `Transient` as `judge` does.

        A bus that has no log yet is left to whoever needs it.
        """
        try:
            await self._read()
        except NotFoundError:
            return
        missing = {t: schema for t, schema in written_schemas().items() if self._schemas.get(t, 0) < schema}
        if missing:
            shown = ", ".join(f"{type_} {schema}" for type_, schema in sorted(missing.items())[:3])
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            raise Permanent(
                f"this version writes events that the bus was not told of (schemas of {shown}{more}): "
                "run `synthd bus init` of this version before its services"
            )

    async def _declares(self, recorded: Recorded) -> bool:
        async with self._reading:
            # What was declared after the event was written says nothing of it.
            if not self._covers(recorded) and recorded.seq > self._written:
                try:
                    await self._read()
                except NotFoundError as error:
                    raise Transient(f"the log is gone: {error!r}") from error
                if recorded.seq > self._written:
                    # A server that was the leader, and has not heard that another is.
                    raise Transient(f"the bus does not know of the event at {recorded.seq} yet")
        return self._covers(recorded)

    def _covers(self, recorded: Recorded) -> bool:
        return recorded.schema <= self._schemas.get(recorded.type, 0)

    async def _read(self) -> None:
        """Raises `NotFoundError` where there is no log, and `Transient` where the bus does not answer."""
        try:
            info: StreamInfo = await self._js.stream_info(EVENTS)
        except NotFoundError:
            raise
        except (NatsError, APIError, TimeoutError) as error:
            raise Transient(f"the bus does not say which schemas are declared: {error!r}") from error
        self._schemas = read_schemas(info.config.metadata or {})
        self._written = info.state.last_seq
