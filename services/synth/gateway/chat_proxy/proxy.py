"""The proxy for calls of models to inference replicas.

The response is forwarded as it arrives, so that a stream stays a stream. A client that disconnects ends the call at the
replica, which frees its place in the batch. A call without a response is tried at the next replica.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable

import httpx
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from synth.api.sse import data_event
from synth.bus.kv.replicas import Replica, ReplicaTable
from synth.errors import InvalidKey
from synth.gateway.chat_proxy.affinity import ChatRoute, rank_replicas
from synth.gateway.chat_proxy.paths import RESPONSES, called_api
from synth.gateway.errors import ApiError, unavailable
from synth.keys import Cid, read_cid
from synth.outbound.aiohttp_transport import AiohttpTransport
from synth.outbound.service_calls import CallSigner
from synth.runtime import logs
from synth.service_secrets import Purpose, ServiceSecrets

log = logs.get("inference proxy")

_REQUEST_HEADERS = ("content-type", "accept", "traceparent")
_RESPONSE_HEADERS = ("content-type", "retry-after", "cache-control", "x-accel-buffering", "x-should-retry")
#: The timeout of the check of a credential at its recorder.
_ASK_S = 5.0


class _NoAnswer(Exception):
    """The error for a replica that is gone or has no room, so that another may answer.

    gone: the replica is not only busy. sent: the replica had received the call.
    """

    def __init__(self, reason: str, *, gone: bool, sent: bool = False) -> None:
        super().__init__(reason)
        self.gone = gone
        self.sent = sent


class InferenceProxy:
    """The proxy that forwards calls of models to inference replicas."""

    def __init__(self, replicas: ReplicaTable, *, secrets: ServiceSecrets, calls: CallSigner, timeout_s: float) -> None:
        self._replicas = replicas
        self._credentials = secrets[Purpose.CREDENTIALS]
        self._calls = calls
        self._silent_s = timeout_s
        self._http = httpx.AsyncClient(transport=AiohttpTransport(), trust_env=False)
        self._in_flight: Counter[str] = Counter()

    async def close(self) -> None:
        """Drop the connections."""
        await self._http.aclose()

    async def forward(self, request: Request, body: bytes, *, org: str, route: ChatRoute) -> Response:
        """Forward a chat to the conversation's replica for this model. Raises a 503 when no replica answers."""
        model, named = route.model, request.headers.get("x-session-id")
        session = org.encode() + b"\0" + (b"session\0" + named.encode() if named else route.conversation)
        candidates = rank_replicas(self._replicas.alive(), model=model, session=session, load=self._load)
        sent = 0
        for nth, replica in enumerate(candidates, start=1):
            headers = {"authorization": self._calls.authorization(replica.recorder, org), "x-synth-org": org}
            try:
                last = nth == len(candidates)
                return await self._send(
                    request, replica, body, headers, query="", retry_when_busy=not last, silent_s=self._silent_s
                )
            except _NoAnswer as error:
                log.warning("replica passed over", replica=replica.id, reason=str(error))
                if error.gone and len(candidates) > 1:
                    self._replicas.forget(replica)
                sent += error.sent
                if sent > 1:
                    # A call that has crashed two replicas is not sent to a third.
                    raise unavailable(f"the replica {replica.id!r} broke off the call ({error}); try again") from error
        raise unavailable(
            f"no inference replica can serve {model!r} now: {len(candidates)} announced, none reachable; "
            "start one with `synthd inference`, or try again"
        )

    def _load(self, replica: Replica) -> int:
        # The announced numbers are up to three seconds old, and only they include other gateways' calls.
        return max(replica.running + replica.waiting, self._in_flight[replica.id])

    def recorder_of(self, cid: str) -> tuple[Replica, Cid]:
        """Return the replica that records a rollout's calls, and the data of its credential. Raises a 401 or a 503."""
        try:
            # Accept an expired credential, which `refusal_of` checks.
            pinned = read_cid(cid, self._credentials, now=0)
        except InvalidKey as error:
            raise ApiError(401, str(error), code="invalid_api_key") from error
        replica = next((r for r in self._replicas.alive() if r.recorder == pinned.replica), None)
        if replica is None:
            raise unavailable(f"the replica {pinned.replica!r} that records this rollout is gone")
        return replica, pinned

    async def refusal_of(self, cid: str, pinned: Cid, replica: Replica) -> Response | None:
        """Return the recorder's refusal of a credential that is expired by our clock; None if it may make a call.

        Time in which its policy was not available does not count, and only the recorder knows that time.
        """
        if pinned.expires > time.time():
            return None
        try:
            answer = await self._http.get(
                f"{replica.url}/internal/rollouts/credential", params={"cid": cid}, timeout=_ASK_S
            )
        except httpx.HTTPError as error:
            what = f"the replica {replica.id!r} that records this rollout cannot be reached ({error!r})"
            raise unavailable(what) from error
        if answer.status_code == 204:
            return None
        headers = {name: value for name in _RESPONSE_HEADERS if (value := answer.headers.get(name))}
        return Response(answer.content, answer.status_code, headers=headers)

    async def forward_rollout(self, request: Request, body: bytes, *, cid: str, replica: Replica) -> Response:
        """Forward a rollout's call to the replica that `recorder_of` found for its credential."""
        try:
            return await self._send(
                request, replica, body, {}, query=f"?cid={cid}", retry_when_busy=False, silent_s=None
            )
        except _NoAnswer as error:
            how = "broke off the call" if error.sent else "cannot be reached"
            raise unavailable(f"the replica {replica.id!r} that records this rollout {how} ({error})") from error

    async def _send(
        self,
        request: Request,
        replica: Replica,
        body: bytes,
        headers: dict[str, str],
        *,
        query: str,
        retry_when_busy: bool,
        silent_s: float | None,
    ) -> Response:
        """Forward to one replica.

        silent_s: how long it may send nothing; None for a rollout, whose job has its own limit. Raises `_NoAnswer` if
        it does not answer; with retry_when_busy, for a 503 too.
        """
        api = called_api(request.scope["path"], request.url.query)
        passed = {name: value for name in _REQUEST_HEADERS if (value := request.headers.get(name))}
        outgoing = self._http.build_request(
            "POST",
            f"{replica.url}/v1/{api}{query}",
            content=body,
            headers=passed | headers,
            timeout=httpx.Timeout(silent_s, connect=3.0, pool=3.0),
        )

        def done() -> None:
            self._in_flight[replica.id] -= 1

        self._in_flight[replica.id] += 1
        sending = asyncio.create_task(self._http.send(outgoing, stream=True))
        leaving = asyncio.create_task(_wait_for_disconnect(request))
        answering = False
        try:
            await asyncio.wait([sending, leaving], return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                return Response(status_code=499)
            upstream = sending.result()
            if retry_when_busy and upstream.status_code == 503:
                await upstream.aclose()
                raise _NoAnswer("it has no room", gone=False)
            answering = True
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise _NoAnswer(repr(error), gone=True) from error
        except httpx.PoolTimeout as error:
            raise _NoAnswer(repr(error), gone=False) from error
        except httpx.TimeoutException as error:
            message = f"the replica {replica.id!r} said nothing for {silent_s:g} s (SYNTH_INFERENCE_TIMEOUT_S)"
            raise ApiError(504, message, type="timeout") from error
        except httpx.HTTPError as error:
            raise _NoAnswer(repr(error), gone=True, sent=True) from error
        finally:
            leaving.cancel()
            if not answering:
                sending.cancel()
                done()
        kept = {name: value for name in _RESPONSE_HEADERS if (value := upstream.headers.get(name))}
        return _RelayedResponse(upstream, headers=kept, done=done, cut=_cut_event(api))


async def _wait_for_disconnect(request: Request) -> None:
    """Wait until the client disconnects; its body has been read already."""
    while (await request.receive())["type"] != "http.disconnect":
        continue


class _RelayedResponse(StreamingResponse):
    """A response that streams a replica's answer to the client.

    done: called at its end, also if it never began. cut: the last event of a stream that breaks off.
    """

    def __init__(
        self, upstream: httpx.Response, *, headers: dict[str, str], done: Callable[[], None], cut: bytes
    ) -> None:
        super().__init__(_relay_chunks(upstream, cut), upstream.status_code, headers=headers)
        self._upstream = upstream
        self._done = done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._done()
            await self._upstream.aclose()


async def _relay_chunks(upstream: httpx.Response, cut: bytes) -> AsyncIterator[bytes]:
    is_stream = upstream.headers.get("content-type", "").startswith("text/event-stream")
    half: list[bytes] = []
    try:
        async for chunk in upstream.aiter_raw():
            if not is_stream:
                yield chunk
                continue
            # A partial event must not precede `cut`, because clients would read both as one event.
            end = chunk.rfind(b"\n\n") + 2
            if end < 2:
                end = int(chunk.startswith(b"\n") and bool(half) and half[-1].endswith(b"\n"))
            if end:
                yield b"".join((*half, chunk[:end]))
                half.clear()
            if end < len(chunk):
                half.append(chunk[end:])
        if half:
            yield b"".join(half)
    except httpx.HTTPError as error:
        # Leave out the query, which may be a rollout's credential.
        log.warning("replica broke off an answer", url=str(upstream.url.copy_with(query=None)), error=repr(error))
        if not is_stream:
            # The status was sent already, so break off: the client detects an incomplete response.
            raise
        # Most clients would read a stream that breaks off as a complete reply.
        yield cut


def _cut_event(api: str) -> bytes:
    """Return the error event of a stream that its replica broke off."""
    error = {"message": "the inference replica broke off this reply; try again", "type": "server_error"}
    error |= {"param": None, "code": "replica_gone"}
    if api != RESPONSES:
        return data_event({"error": error})
    fields = {"type": "error", "sequence_number": 0, **{name: error[name] for name in ("code", "message", "param")}}
    return b"event: error\n" + data_event({**fields, "error": error})
