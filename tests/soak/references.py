"""Every blob that the log names and that has not expired is there, whole."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import msgspec

from synth.blobs import BlobStore
from synth.bus.recorded import Recorded
from synth.errors import SynthError
from synth.events import BlobExpired, BlobRef
from tests.soak.history import Violation


async def check_blobs(facts: Sequence[Recorded], blobs: BlobStore) -> list[Violation]:
    """What the log names and the store has not, or has otherwise."""
    expired = {uri for fact in facts if isinstance(fact.event, BlobExpired) for uri in fact.event.uris}
    named = {
        (ref.uri, ref.part): (ref, fact.key)
        for fact in facts
        for ref in references(fact.event)
        if ref.uri not in expired
    }
    found: list[Violation] = []
    for ref, job in named.values():
        async for what in _missing(ref, blobs):
            found.append(Violation("no event names what is not there", job, what))
    return found


async def _missing(ref: BlobRef, blobs: BlobStore) -> AsyncIterator[str]:
    digest = hashlib.sha256()
    size = 0
    try:
        async for piece in blobs.stream(ref):
            digest.update(piece)
            size += len(piece)
    except (SynthError, OSError) as error:
        yield f"{ref.uri}: {error}"
        return
    if (size, digest.hexdigest()) != (ref.size, ref.sha256):
        yield f"{ref.uri} has {size} bytes and another sha256, the log says {ref.size}"
    elif ref.uri.endswith(".manifest.json"):
        for member in (await blobs.manifest(ref)).files.values():
            async for what in _missing(member, blobs):
                yield what


def references(value: Any) -> Iterator[BlobRef]:
    """Every blob that an event refers to."""
    if isinstance(value, BlobRef):
        yield value
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from references(getattr(value, name))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from references(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from references(part)
