"""Chat completions on their way to an inference replica: which one, and the bytes there and back.

The answer is passed on as it comes, so that a stream stays a stream; a client that hangs up ends the call at the
replica, which frees its place in the batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from synth import logs
from synth.bus.replicas import Replica, ReplicaTable
from synth.gateway.failures import ApiError, unavailable
from synth.keys import Cid, InvalidKey, internal_token, read_cid

log = logs.get("inference proxy")

_PASSED_ON = ("content-type", "accept", "traceparent")
_PASSED_BACK = ("content-type", "retry-after", "cache-control", "x-accel-buffering", "x-should-retry")
# One httpx client with 32 requests in flight costs four times the CPU of one with 8.
_PER_CLIENT = 8


@dataclass
class _Client:
    http: httpx.AsyncClient
    in_flight: int = 0


class InferenceProxy:
    """Forwards to replicas."""

    def __init__(self, replicas: ReplicaTable, *, cluster_secret: str, timeout_s: float) -> None:
        self._replicas = replicas
        self._secret = cluster_secret
        self._bearer = f"Bearer {internal_token(cluster_secret)}"
        self._timeout = httpx.Timeout(timeout_s, connect=3.0, pool=3.0)
        self._clients: list[_Client] = []

    async def close(self) -> None:
        """Drop the connections."""
        for client in self._clients:
            await client.http.aclose()

    async def forward(self, request: Request, body: bytes, *, org: str, model: str) -> Response:
        """Answer with what the best replica for this model says. Raises a 503 when there is none."""
        headers = {"authorization": self._bearer, "x-synth-org": org}
        alive = sorted(self._replicas.alive(), key=lambda r: r.running + r.waiting)
        serving = self._replicas.serving(model)
        candidates = [*serving, *(r for r in alive if r not in serving)]
        for replica in candidates:
            try:
                return await self._send(request, replica, body, headers, query="")
            except httpx.ConnectError as error:
                # Nothing was sent, so the next one may have it.
                log.warning("replica cannot be reached", replica=replica.id, error=str(error))
        raise unavailable(
            f"no inference replica can serve {model!r} now: {len(candidates)} announced, none reachable; "
            "start one with `synthd inference`, or try again"
        )

    def mints(self, text: str) -> bool:
        """Whether this is a rollout credential of this cluster, expired or not."""
        try:
            read_cid(text.split("/", 1)[0], self._secret, now=0)
        except InvalidKey:
            return False
        return True

    async def forward_rollout(self, request: Request, body: bytes, *, cid: str) -> Response:
        """Answer a rollout's call: its credential names the replica that records it. Raises a 401 for a bad one."""
        # Some task apps append a path to the whole URL, query included.
        text = cid.split("/", 1)[0]
        try:
            pinned: Cid = read_cid(text, self._secret)
        except InvalidKey as error:
            raise ApiError(401, str(error)) from error
        replica = next((r for r in self._replicas.alive() if r.recorder == pinned.replica), None)
        if replica is None:
            raise unavailable(f"the replica {pinned.replica!r} that records this rollout is gone")
        try:
            return await self._send(request, replica, body, {}, query=f"?cid={text}")
        except httpx.ConnectError as error:
            raise unavailable(f"the replica {replica.id!r} that records this rollout cannot be reached") from error

    async def _send(
        self, request: Request, replica: Replica, body: bytes, headers: dict[str, str], *, query: str
    ) -> Response:
        client = self._client()
        client.in_flight += 1
        passed = {name: value for name in _PASSED_ON if (value := request.headers.get(name))}
        outgoing = client.http.build_request(
            "POST", f"{replica.url}/v1/chat/completions{query}", content=body, headers=passed | headers
        )
        sending = asyncio.create_task(client.http.send(outgoing, stream=True))
        leaving = asyncio.create_task(_hung_up(request))
        answering = False
        try:
            await asyncio.wait([sending, leaving], return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                return Response(status_code=499)
            upstream = sending.result()
            answering = True
        except httpx.ConnectError:
            raise
        except httpx.TimeoutException as error:
            message = f"the replica {replica.id!r} did not answer in time"
            raise ApiError(504, message, type="timeout") from error
        except httpx.HTTPError as error:
            raise unavailable(f"the replica {replica.id!r} broke off the call ({error!r}); try again") from error
        finally:
            leaving.cancel()
            if not answering:
                sending.cancel()
                client.in_flight -= 1
        kept = {name: value for name in _PASSED_BACK if (value := upstream.headers.get(name))}
        return StreamingResponse(_relayed(upstream, client), upstream.status_code, headers=kept)

    def _client(self) -> _Client:
        free = next((c for c in self._clients if c.in_flight < _PER_CLIENT), None)
        if free is None:
            free = _Client(httpx.AsyncClient(timeout=self._timeout, trust_env=False))
            self._clients.append(free)
        return free


async def _hung_up(request: Request) -> None:
    """Return when the client is gone; its body has been read already."""
    while (await request.receive())["type"] != "http.disconnect":
        continue


async def _relayed(upstream: httpx.Response, client: _Client) -> AsyncIterator[bytes]:
    try:
        async for chunk in upstream.aiter_raw():
            yield chunk
    except httpx.HTTPError as error:
        # The status is sent: all that is left is to break off, which the client sees as an incomplete answer.
        log.warning("replica broke off an answer", url=str(upstream.url), error=repr(error))
        raise
    finally:
        client.in_flight -= 1
        await upstream.aclose()
