"""The configurations of jobs that are too long for the log."""

from __future__ import annotations

import msgspec

from synth.blobs.store import BlobStore
from synth.events import JobCreated


async def put_config(blobs: BlobStore, job: str, created: JobCreated, *, inline_bytes: int) -> JobCreated:
    """Store a configuration of more than `inline_bytes` as a blob of the job; returns the event that names it."""
    if len(msgspec.json.encode(created.config)) <= inline_bytes:
        return created
    # A repeated submission of this id may have another configuration: it is refused, and must not replace this one.
    blob = await blobs.put_bytes(f"jobs/{job}/configs/{created.body_sha256}", created.config.encode())
    return msgspec.structs.replace(created, config="", config_blob=blob)


async def with_config(blobs: BlobStore, created: JobCreated) -> JobCreated:
    """Return the event with the whole configuration in it. Raises `BlobMissing`, `BlobCorrupt`."""
    if created.config_blob is None:
        return created
    text = (await blobs.get_bytes(created.config_blob)).decode()
    return msgspec.structs.replace(created, config=text, config_blob=None)
