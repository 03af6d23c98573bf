"""The schemas that versions declare on the bus: a newer version can have written only events of declared schemas.

`synthd bus init` of each version declares the schemas that it writes, in the metadata of the log's stream, which no
service may change, each with the end of the log at that time. A version writes nothing before its schemas are declared:
its services wait for that. So an event of a schema that nobody had declared when it was written is of no newer version,
even if it claims to be. A thief with a service's credential can make such a claim, and a queue that waited for that
version would wait for ever.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import msgspec
from nats.errors import Error as NatsError

from synth.bus.access.client import BusClient
from synth.bus.recorded import EVENTS, Recorded, UnknownEvent
from synth.errors import Transient
from synth.events.catalogue import CATALOGUE
from synth.runtime import logs

log = logs.get("schemas")

#: By the type of an event: each declared schema, and the last sequence of the log before its declaration.
Declared = dict[str, dict[int, int]]

_PREFIX = "synth.schema."
_REQUEST_S = 5.0
_AGAIN_S = 1.0
#: The server's code of "stream not found".
_NO_STREAM = 10059


def written_schemas() -> dict[str, int]:
    """Return the schema of each type of event that this version writes."""
    return {type_: spec.version for type_, spec in CATALOGUE.items()}


def declare(schemas: dict[str, int], *, metadata: dict[str, str], last_seq: int) -> dict[str, str]:
    """Return the metadata of a log that ends at `last_seq`, with these schemas added to the declared ones."""
    declared = read_declared(metadata)
    for type_, schema in schemas.items():
        declared.setdefault(type_, {}).setdefault(schema, last_seq)
    return metadata | {
        f"{_PREFIX}{type_}": ",".join(f"{schema}@{seq}" for schema, seq in sorted(its.items()))
        for type_, its in declared.items()
    }


def read_declared(metadata: dict[str, str]) -> Declared:
    """Return the schemas that a log's metadata declares."""
    result: Declared = {}
    for name, entries in metadata.items():
        if name.startswith(_PREFIX):
            pairs = [entry.partition("@") for entry in entries.split(",")]
            result[name.removeprefix(_PREFIX)] = {int(schema): int(seq) for schema, _, seq in pairs}
    return result


class _LogConfig(msgspec.Struct, frozen=True):
    metadata: dict[str, str] = {}


class _LogState(msgspec.Struct, frozen=True):
    last_seq: int = 0
    last_ts: str = "0001-01-01T00:00:00Z"


class _LogError(msgspec.Struct):
    err_code: int = 0
    description: str = ""


class _LogInfo(msgspec.Struct):
    """JetStream's information about a stream; nats-py leaves the time of its last message out."""

    config: _LogConfig = _LogConfig()
    state: _LogState = _LogState()
    error: _LogError | None = None


class DeclaredSchemas:
    """The schemas that are declared on the bus, as this process last read them."""

    def __init__(self, nc: BusClient) -> None:
        self._nc = nc
        self._declared: Declared = {}
        # The end of the log when they were read. Its time too, as another log may have come into its place.
        self._last_seq = 0
        self._last_time = datetime.min.replace(tzinfo=UTC)
        self._reading = asyncio.Lock()

    async def judge(self, recorded: Recorded) -> Recorded:
        """Return the event, marked as damaged if it claims to be newer and its schema was not declared.

        Raises `Transient` if the bus does not report the declared schemas.
        """
        event = recorded.event
        if not (isinstance(event, UnknownEvent) and event.newer) or await self.had_declared(recorded):
            return recorded
        log.warning("an event of a schema that was not declared", type=recorded.type, schema=recorded.schema)
        return replace(recorded, event=msgspec.structs.replace(event, newer=False))

    async def had_declared(self, recorded: Recorded) -> bool:
        """Return whether an event's schema was declared before it was written. Raises `Transient` as `judge` does."""
        if not self._knows(recorded):
            async with self._reading:
                if not self._knows(recorded):
                    await self._read()
                    if recorded.seq > self._last_seq:
                        # A server that was the leader, and does not know yet that another is.
                        raise Transient(f"the bus does not know of the event at {recorded.seq} yet", delay=_AGAIN_S)
        return self._covers(recorded)

    async def wait_until_written_ones_are_declared(self, stop: asyncio.Event) -> None:
        """Return once the schemas that this version writes are declared, or at the stop; logs the missing ones."""
        while not stop.is_set():
            try:
                problem = await self._find_undeclared()
            except Transient as error:
                problem = str(error)
            if not problem:
                return
            log.warning("the start waits", reason=problem)
            try:
                async with asyncio.timeout(_AGAIN_S):
                    await stop.wait()
            except TimeoutError:
                continue

    async def _find_undeclared(self) -> str:
        """Describe the undeclared schemas of this version; "" without any. Raises `Transient` as `judge` does."""
        await self._read()
        missing = [
            f"{t} {schema}" for t, schema in written_schemas().items() if schema not in self._declared.get(t, {})
        ]
        if not missing:
            return ""
        shown = ", ".join(sorted(missing)[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        return f"the bus was not told of the events of this version (schemas of {shown}): run its `synthd bus init`"

    def _knows(self, recorded: Recorded) -> bool:
        """Return whether the last read suffices: declarations after the event was written do not cover it."""
        was_written = recorded.seq <= self._last_seq and recorded.time <= self._last_time
        return was_written or self._covers(recorded)

    def _covers(self, recorded: Recorded) -> bool:
        before = self._declared.get(recorded.type, {}).get(recorded.schema)
        return before is not None and recorded.seq > before

    async def _read(self) -> None:
        try:
            reply = await self._nc.request(f"{self._nc.api}.STREAM.INFO.{EVENTS}", b"", timeout=_REQUEST_S)
            info = msgspec.json.decode(reply.data, type=_LogInfo)
        except (NatsError, TimeoutError, msgspec.DecodeError) as error:
            raise Transient(f"the bus does not say which schemas are declared: {error!r}", delay=_AGAIN_S) from error
        if info.error is not None:
            why = (
                "there is no log yet: run `synthd bus init`" if info.error.err_code == _NO_STREAM else "the log is away"
            )
            raise Transient(f"{why} ({info.error.description})", delay=_AGAIN_S)
        self._declared = read_declared(info.config.metadata)
        self._last_seq, self._last_time = info.state.last_seq, datetime.fromisoformat(info.state.last_ts)
