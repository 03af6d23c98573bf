"""The one place that talks to the recorders: it takes what the rollouts of closed credentials sampled.

A request costs ten times what closing one rollout does, and rollouts end in flocks. So one request at a time is under
way to a replica, and it carries every credential whose rollout ended while the one before it was.
"""

from __future__ import annotations

import asyncio

import httpx
import msgspec

from synth.errors import Transient
from synth.keys import internal_token
from synth.trajectories import ClosedRollout, CompletionRecord, closed_from_bytes, records_from_bytes

#: Bounds the size of an answer: a long rollout's records are a megabyte.
_MOST_AT_ONCE = 64

_Asked = tuple[str, asyncio.Future[ClosedRollout]]


class RecorderClient:
    """Takes what closed rollout credentials recorded, from the inference replicas that recorded it."""

    def __init__(self, cluster_secret: str, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        headers = {"Authorization": f"Bearer {internal_token(cluster_secret)}"}
        self._http = httpx.AsyncClient(headers=headers, timeout=30, trust_env=False, transport=transport)
        self._asked: dict[str, list[_Asked]] = {}
        self._senders: dict[str, asyncio.Task[None]] = {}

    async def take(self, replica_url: str, cid: str) -> list[CompletionRecord]:
        """Close a cid and take its records, in the order of the calls. Raises `Transient` when they are lost."""
        answer: asyncio.Future[ClosedRollout] = asyncio.get_running_loop().create_future()
        self._asked.setdefault(replica_url, []).append((cid, answer))
        if replica_url not in self._senders:
            self._senders[replica_url] = asyncio.create_task(self._send_all(replica_url))
        closed = await answer
        if closed.refused is not None:
            raise Transient(f"the recorder refused: {closed.refused}")
        return records_from_bytes(closed.records)

    async def close(self) -> None:
        """Let go of the connections."""
        for sender in self._senders.values():
            sender.cancel()
        await self._http.aclose()

    async def _send_all(self, replica_url: str) -> None:
        try:
            # Those that end in the same turn of the event loop go together.
            await asyncio.sleep(0)
            while asked := self._asked.pop(replica_url, []):
                for start in range(0, len(asked), _MOST_AT_ONCE):
                    await self._send(replica_url, asked[start : start + _MOST_AT_ONCE])
        finally:
            del self._senders[replica_url]

    async def _send(self, replica_url: str, asked: list[_Asked]) -> None:
        try:
            closed = await self._close(replica_url, [cid for cid, _ in asked])
        except Exception as error:  # noqa: BLE001 - those who asked get it, whatever it is
            for _, answer in asked:
                if not answer.done():
                    answer.set_exception(error)
            return
        for (_, answer), one in zip(asked, closed, strict=True):
            if not answer.done():  # its taker may have given up
                answer.set_result(one)

    async def _close(self, replica_url: str, cids: list[str]) -> list[ClosedRollout]:
        try:
            reply = await self._http.post(f"{replica_url}/internal/rollouts/close", json={"cids": cids})
        except httpx.HTTPError as error:
            raise Transient(f"the recorder is away: {type(error).__name__}: {error}") from error
        if reply.status_code != 200:
            raise Transient(f"the recorder answered HTTP {reply.status_code}: {reply.text[:200]}")
        try:
            closed = closed_from_bytes(reply.content)
        except msgspec.DecodeError as error:
            raise Transient(f"the recorder's answer cannot be read: {error}") from error
        if len(closed) != len(cids):
            raise Transient(f"the recorder answered for {len(closed)} of {len(cids)} rollouts")
        return closed
