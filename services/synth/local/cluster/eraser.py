"""Erases the events of what is deleted from the log of the embedded cluster, in the supervisor's process."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

from synth.blobs import BlobStore
from synth.erasure.sweep import Sweeper
from synth.local.cluster.backup import connect_as_bus
from synth.local.cluster.state import ClusterState
from synth.runtime import logs


async def erase_deleted(state: ClusterState, blobs: Path) -> NoReturn:
    """Erase deleted jobs and files, for ever. blobs: the folder of the blob store of the cluster, which runs."""
    # The supervisor shows the user what happens. Only errors are logged here.
    logs.configure("sweep", level="error")
    bus = await connect_as_bus(state, next(p.port for p in state.processes if p.name == "nats"))
    try:
        await Sweeper(bus, BlobStore.open(f"file:{blobs}")).run()
    finally:
        await bus.close()
