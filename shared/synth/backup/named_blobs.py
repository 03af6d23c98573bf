"""The blobs that the log names, and those among them that may be gone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from synth.bus.connection import Connection
from synth.bus.recorded import from_delivery
from synth.bus.replay import read_stream
from synth.events import BlobExpired, FileDeleted, JobDeleted, ModelDeleted
from synth.events.catalogue import Event

#: The fields whose blobs a gateway removes by its settings, without an event.
_TRACES = ("transcript", "review")


@dataclass
class NamedBlobs:
    """The blobs that a log names. digests: by key, every sha256 under which it is named."""

    digests: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _of_owner: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _may_be_gone: set[str] = field(default_factory=set[str])
    _folders_gone: set[str] = field(default_factory=set[str])

    def add(self, owner: str, event: Event) -> None:
        """Take in an event. owner: the job or the file of the event."""
        for name, ref in _references(msgspec.to_builtins(event)):
            key = str(ref["uri"]).removeprefix("blob://")
            part = cast("dict[str, Any] | None", ref.get("part"))
            self.digests[key].add(str(ref["sha256"] if part is None else part["pack_sha256"]))
            self._of_owner[owner].add(key)
            # A pack is removed with its job only.
            if name in _TRACES and part is None:
                self._may_be_gone.add(key)
        match event:
            case BlobExpired(uris=uris):
                self._may_be_gone.update(uri.removeprefix("blob://") for uri in uris)
            case FileDeleted():
                self._may_be_gone |= self._of_owner[owner]
            case ModelDeleted(tree=tree) if tree is not None:
                self._may_be_gone.add(tree.uri.removeprefix("blob://"))
            case JobDeleted():
                self._folders_gone.add(f"jobs/{owner}/")
                self._may_be_gone |= self._of_owner[owner]
            case _:
                pass

    def may_be_gone(self, key: str) -> bool:
        """Return whether an event, or a gateway's settings, let this blob be removed."""
        return key in self._may_be_gone or any(folder in key for folder in self._folders_gone)


async def read_named_blobs(bus: Connection, last_seq: int) -> NamedBlobs:
    """Return the blobs that the log names up to a sequence."""
    named = NamedBlobs()
    async with aclosing(read_stream(bus.nc, [">"])) as messages:
        async for message in messages:
            recorded = from_delivery(message)
            if recorded.seq > last_seq:
                break
            named.add(recorded.key, recorded.event)
    return named


def _references(value: Any, name: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every reference to a blob in an event, with the name of its field."""
    if isinstance(value, dict):
        fields = cast(dict[str, Any], value)
        if {"uri", "size", "sha256"} <= fields.keys() and str(fields["uri"]).startswith("blob://"):
            yield name, fields
        for key, inner in fields.items():
            yield from _references(inner, key)
    elif isinstance(value, list | tuple):
        for inner in cast(list[Any], value):
            yield from _references(inner, name)
