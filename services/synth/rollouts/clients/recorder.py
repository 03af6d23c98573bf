"""The one place that talks to the recorders: it closes the credentials of rollouts and takes what they sampled.

A request costs ten times as much as closing one rollout, and many rollouts end together. So one request at a time is
sent to a replica, and it carries every credential whose rollout ended while the previous request was under way.
"""

from __future__ import annotations

import asyncio

import httpx
import msgspec

from synth.errors import Transient
from synth.keys import internal_token
from synth.service_secrets import Keyring
from synth.trajectories import ClosedRollout, CompletionRecord, closed_from_bytes, records_from_bytes

#: Bounds the size of an answer: the records of a long rollout are a megabyte.
_MAX_CIDS_PER_REQUEST = 64

_PendingClose = tuple[str, asyncio.Future[ClosedRollout]]


class RecorderClient:
    """Takes what closed rollout credentials recorded, from the inference replicas that recorded it."""

    def __init__(
        self, internal: Keyring, *, timeout_s: float, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        """timeout_s: of one request to a replica."""
        headers = {"Authorization": f"Bearer {internal_token(internal)}"}
        self._http = httpx.AsyncClient(headers=headers, timeout=timeout_s, trust_env=False, transport=transport)
        self._pending: dict[str, list[_PendingClose]] = {}
        self._senders: dict[str, asyncio.Task[None]] = {}

    async def close_rollout(self, replica_url: str, cid: str) -> list[CompletionRecord]:
        """Close a cid and take its records, in the order of the calls. Raises `Transient` when they are lost."""
        future: asyncio.Future[ClosedRollout] = asyncio.get_running_loop().create_future()
        self._pending.setdefault(replica_url, []).append((cid, future))
        if replica_url not in self._senders:
            self._senders[replica_url] = asyncio.create_task(self._send_all(replica_url))
        closed = await future
        if closed.refused is not None:
            raise Transient(f"the recorder refused: {closed.refused}")
        return records_from_bytes(closed.records)

    async def stood_still(self, replica_url: str, cid: str) -> float:
        """Seconds that the policy of an open rollout was not given: it waited in a queue, or for new weights.

        Raises `Transient` when the recorder does not answer.
        """
        reply = await self._post(replica_url, "stood_still", [cid])
        try:
            (seconds,) = msgspec.json.decode(reply.content, type=list[float])
        except (msgspec.DecodeError, ValueError) as error:
            raise Transient(f"the recorder's answer cannot be read: {error}") from error
        return seconds

    async def aclose(self) -> None:
        """Close the connections."""
        for sender in self._senders.values():
            sender.cancel()
        await self._http.aclose()

    async def _send_all(self, replica_url: str) -> None:
        try:
            # Rollouts that end in the same iteration of the event loop are sent together.
            await asyncio.sleep(0)
            while pending := self._pending.pop(replica_url, []):
                for start in range(0, len(pending), _MAX_CIDS_PER_REQUEST):
                    await self._send(replica_url, pending[start : start + _MAX_CIDS_PER_REQUEST])
        finally:
            del self._senders[replica_url]

    async def _send(self, replica_url: str, pending: list[_PendingClose]) -> None:
        try:
            closed = await self._close(replica_url, [cid for cid, _ in pending])
        except Exception as error:  # noqa: BLE001 - each waiting caller gets it, whatever it is
            for _, future in pending:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), rollout in zip(pending, closed, strict=True):
            if not future.done():  # its caller may have been cancelled
                future.set_result(rollout)

    async def _close(self, replica_url: str, cids: list[str]) -> list[ClosedRollout]:
        reply = await self._post(replica_url, "close", cids)
        try:
            closed = closed_from_bytes(reply.content)
        except msgspec.DecodeError as error:
            raise Transient(f"the recorder's answer cannot be read: {error}") from error
        if len(closed) != len(cids):
            raise Transient(f"the recorder answered for {len(closed)} of {len(cids)} rollouts")
        return closed

    async def _post(self, replica_url: str, what: str, cids: list[str]) -> httpx.Response:
        try:
            reply = await self._http.post(f"{replica_url}/internal/rollouts/{what}", json={"cids": cids})
        except httpx.HTTPError as error:
            raise Transient(f"the recorder is away: {type(error).__name__}: {error}") from error
        if reply.status_code != 200:
            raise Transient(f"the recorder answered HTTP {reply.status_code}: {reply.text[:200]}")
        return reply
