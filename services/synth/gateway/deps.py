"""The dependencies of the request handlers: the components of a running gateway."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

from fastapi import Depends, Request

from synth.blobs import BlobStore
from synth.bus.connection import Connection
from synth.bus.kv.replicas import ReplicaTable
from synth.bus.kv.secrets import SecretStore
from synth.bus.publish import Publisher
from synth.errors import Transient
from synth.events import FileUploaded, JobCreated
from synth.events.catalogue import Event
from synth.gateway.asked_transcripts import AskedTranscripts
from synth.gateway.audit.requests import RequestAudit
from synth.gateway.auth import ApiKeyCache
from synth.gateway.base_files import BaseFiles
from synth.gateway.capacity import Capacity
from synth.gateway.chat_proxy.proxy import InferenceProxy
from synth.gateway.errors import not_found
from synth.gateway.ledger.watch import LedgerWatch
from synth.gateway.limits.admission import Admission
from synth.gateway.read_model.event_log import read_last
from synth.gateway.read_model.hub import Hub
from synth.gateway.read_model.live_jobs import JobQueue
from synth.gateway.read_model.projection import FileRow, JobRow
from synth.gateway.read_model.store import JobTexts, ReadModel
from synth.gateway.settings import GatewaySettings
from synth.graders.python.pool import PythonPool
from synth.http_server.body import BodyMemory
from synth.http_server.open_routes import AddressLimit
from synth.models import Registry
from synth.service import Service

_Row = TypeVar("_Row")
#: The timeout for another gateway's event: it is projected at once, or this gateway is far behind the log.
_OTHERS_TIMEOUT_S = 1.0


@dataclass(frozen=True)
class Gateway:
    """The components of a running gateway."""

    settings: GatewaySettings
    service: Service
    bus: Connection
    blobs: BlobStore
    hub: Hub
    read_model: ReadModel
    queue: JobQueue
    ledger: LedgerWatch
    publisher: Publisher
    secrets: SecretStore
    keys: ApiKeyCache
    replicas: ReplicaTable
    registry: Registry
    proxy: InferenceProxy
    admission: Admission
    body_memory: BodyMemory
    capacity: Capacity
    asked: AskedTranscripts
    audit: RequestAudit
    python: PythonPool | None
    open_limit: AddressLimit
    base_files: BaseFiles = field(default_factory=BaseFiles)

    async def job(self, org: str, id: str) -> JobRow:
        """Return a job of this organisation, even if another gateway created it a moment ago.

        Raises a 404, and `Transient` if the log has the job and the read model is far behind.
        """
        return await self._find("job", self.read_model.job, JobCreated, org, id)

    async def job_at(self, org: str, id: str, seq: int) -> JobRow:
        """Return the job after the read model has our own event `seq`, for the response to a write."""
        await self.hub.wait_until_applied(seq)
        return await self.job(org, id)

    async def texts(self, id: str) -> JobTexts | None:
        """Return a job's long texts, with its configuration from the blob store if it is stored there.

        Raises `BlobMissing`, `BlobCorrupt`.
        """
        texts = self.read_model.texts(id)
        if texts is None or texts.config_blob is None:
            return texts
        return texts._replace(config=(await self.blobs.get_bytes(texts.config_blob)).decode())

    async def file(self, org: str, id: str) -> FileRow:
        """Return a file of this organisation, even if another gateway received it a moment ago.

        Raises a 404, and `Transient` if the log has the file and the read model is far behind.
        """
        return await self._find("file", self.read_model.file, FileUploaded, org, id)

    async def _find(
        self, what: str, read: Callable[[str, str], _Row | None], kind: type[Event], org: str, id: str
    ) -> _Row:
        """Read a row, also if its first event, of this kind, is in the log alone."""
        row = read(org, id)
        if row is None and re.fullmatch(f"{what}_[0-9a-z]{{1,64}}", id):
            first = await read_last(self.bus, kind, org, id)
            if first is not None:
                try:
                    await self.hub.wait_until_applied(first.seq, timeout=_OTHERS_TIMEOUT_S)
                except TimeoutError as error:
                    reason = f"this gateway is behind the event log, and has not read of {what} {id} yet"
                    raise Transient(reason) from error
                row = read(org, id)
        if row is None:
            raise not_found(what, id)
        return row


async def get_gateway(request: Request) -> Gateway:
    # A plain function would cost each request a thread.
    return request.app.state.gateway


GatewayDep = Annotated[Gateway, Depends(get_gateway)]
