"""The only client of the recorders: it closes the credentials of rollouts and takes the recorded samples.

A request costs ten times as much as closing one rollout, and many rollouts end together. So one request at a time is
sent to a replica, and it carries every credential whose rollout ended while the previous request was under way.
"""

from __future__ import annotations

import asyncio

import httpx
import msgspec

from synth.bus.kv.replicas import Replica
from synth.errors import Transient
from synth.outbound.aiohttp_transport import AiohttpTransport, post
from synth.outbound.service_calls import CallSigner
from synth.trajectories import ClosedRollout, CompletionRecord, closed_from_bytes, records_from_bytes

#: Bounds the size of an answer: the records of a long rollout are a megabyte.
_MAX_CIDS_PER_REQUEST = 64

#: The address of an inference process, and the name that its credentials have.
_Process = tuple[str, str]
_PendingClose = tuple[str, asyncio.Future[ClosedRollout]]


class RecorderClient:
    """A client that takes the records of closed rollout credentials from the inference replicas that made them."""

    def __init__(
        self, calls: CallSigner, job_id: str, *, timeout_s: float, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        """job_id: the job of all credentials. timeout_s: the limit of one request to a replica."""
        self._calls = calls
        self._job_id = job_id
        self._timeout_s = timeout_s
        self._transport = transport or AiohttpTransport()
        self._pending: dict[_Process, list[_PendingClose]] = {}
        self._senders: dict[_Process, asyncio.Task[None]] = {}

    async def close_rollout(self, replica: Replica, cid: str) -> list[CompletionRecord]:
        """Close a cid and take its records, in the order of the calls. Raises `Transient` when they are lost."""
        future: asyncio.Future[ClosedRollout] = asyncio.get_running_loop().create_future()
        process = (replica.url, replica.recorder)
        self._pending.setdefault(process, []).append((cid, future))
        if process not in self._senders:
            self._senders[process] = asyncio.create_task(self._send_all(process))
        closed = await future
        if closed.refused is not None:
            raise Transient(f"the recorder refused: {closed.refused}")
        return records_from_bytes(closed.records)

    async def stood_still(self, replica: Replica, cid: str) -> float:
        """Return the seconds for which an open rollout waited for its policy, in a queue or for new weights.

        Raises `Transient` when the recorder does not answer.
        """
        reply = await self._post((replica.url, replica.recorder), "stood_still", [cid])
        try:
            (seconds,) = msgspec.json.decode(reply.content, type=list[float])
        except (msgspec.DecodeError, ValueError) as error:
            raise Transient(f"the recorder's answer cannot be read: {error}") from error
        return seconds

    async def aclose(self) -> None:
        """Close the connections."""
        for sender in self._senders.values():
            sender.cancel()
        await self._transport.aclose()

    async def _send_all(self, process: _Process) -> None:
        try:
            # Rollouts that end in the same iteration of the event loop are sent together.
            await asyncio.sleep(0)
            while pending := self._pending.pop(process, []):
                for start in range(0, len(pending), _MAX_CIDS_PER_REQUEST):
                    await self._send(process, pending[start : start + _MAX_CIDS_PER_REQUEST])
        finally:
            del self._senders[process]

    async def _send(self, process: _Process, pending: list[_PendingClose]) -> None:
        try:
            closed = await self._close(process, [cid for cid, _ in pending])
        except Exception as error:  # noqa: BLE001 - each waiting caller gets the error, of any type
            for _, future in pending:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), rollout in zip(pending, closed, strict=True):
            if not future.done():  # its caller may have been cancelled
                future.set_result(rollout)

    async def _close(self, process: _Process, cids: list[str]) -> list[ClosedRollout]:
        reply = await self._post(process, "close", cids)
        try:
            closed = closed_from_bytes(reply.content)
        except msgspec.DecodeError as error:
            raise Transient(f"the recorder's answer cannot be read: {error}") from error
        if len(closed) != len(cids):
            raise Transient(f"the recorder answered for {len(closed)} of {len(cids)} rollouts")
        return closed

    async def _post(self, process: _Process, what: str, cids: list[str]) -> httpx.Response:
        try:
            url, receiver = process
            headers = {
                "authorization": self._calls.authorization(receiver, self._job_id),
                "x-synth-job": self._job_id,
            }
            content, called = msgspec.json.encode({"cids": cids}), f"{url}/internal/rollouts/{what}"
            reply = await post(self._transport, called, content, headers=headers, timeout=self._timeout_s)
        except httpx.HTTPError as error:
            raise Transient(f"the recorder is away: {type(error).__name__}: {error}") from error
        if reply.status_code != 200:
            raise Transient(f"the recorder answered HTTP {reply.status_code}: {reply.text[:200]}")
        return reply
