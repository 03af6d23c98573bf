"""The OpenAI API over engines, and the internal call that closes rollouts and returns their records."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Protocol, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from synth.errors import InvalidKey, SynthError, UserError
from synth.fairness.memory import HeldBytes
from synth.http_server.body import BodyMemory, read_body
from synth.http_server.upgrade import refuse_socket
from synth.inference.api.completion import Completion, EventStream
from synth.inference.api.errors import Rename, error_response
from synth.inference.api.fields import refuse_unserved
from synth.inference.api.images import ChatImages
from synth.inference.api.limits import VALUES_SETTING, RequestLimits
from synth.inference.api.prompt import ModelBinding
from synth.inference.api.replies import ChatCall, ChatReply, ReplyContext, ReplyWriter
from synth.inference.api.requests import ChatRequest, decode_request, num_choices
from synth.inference.api.responses.call import decode_responses
from synth.inference.api.responses.reply import ResponsesReply
from synth.inference.api.teacher import score_tokens
from synth.inference.engines.protocol import Engine
from synth.inference.engines.sampling_time import SamplingTime
from synth.inference.recording.recorder import ChoiceRecording, Recorder
from synth.inference.recording.response_log import ResponseLog
from synth.keys import Cid
from synth.outbound.service_calls import CallVerifier
from synth.rollout_credential import find_credential, is_joined_responses
from synth.runtime.json_bodies import check_json_values
from synth.runtime.off_loop import INLINE_BYTES, OffLoop
from synth.service_secrets import Purpose
from synth.trajectories import ClosedRollout, closed_to_bytes


class Router(Protocol):
    """Finds the model binding of a call. Its errors become responses: `UserError` 400 or 404, `Transient` 503."""

    def for_rollout(self, cid: Cid) -> AbstractAsyncContextManager[ModelBinding]:
        """Return the training policy of a credential, at the version that it pins if any, with the job's sampling."""
        ...

    def org_of(self, cid: Cid) -> str:
        """The organisation of a credential's job."""
        ...

    def for_model(self, model: str, principal: str) -> AbstractAsyncContextManager[ModelBinding]:
        """Return a model by its id, for the principal from `authenticate`. An unknown id is a problem where="model"."""
        ...

    def for_teacher(self, job_id: str) -> AbstractAsyncContextManager[Engine]:
        """Return the teacher of a job whose policy is served here."""
        ...

    async def models(self, principal: str) -> list[str]:
        """Return the ids that this principal can ask for."""
        ...


Authenticate = Callable[[Request], Awaitable[str]]
"""Returns who makes a call without a cid; raises `InvalidKey`."""


class ModelCall(Protocol):
    """A decoded call, as the chat that it makes. rename: of the fields of the chat, in texts."""

    @property
    def chat(self) -> ChatRequest: ...
    def rename(self, text: str) -> str: ...


_Answer = Callable[[Request], Awaitable[Response]]
_Call = TypeVar("_Call", bound=ModelCall)
_Read = Callable[[bytes, ResponseLog | None], _Call]
_Write = Callable[[_Call, ReplyContext, ChoiceRecording | None], ReplyWriter]


class _Cids(msgspec.Struct):
    cids: list[str]


class _ToScore(msgspec.Struct):
    job_id: str
    token_ids: list[int]


def build_api(
    router: Router,
    recorder: Recorder,
    authenticate: Authenticate,
    *,
    calls: CallVerifier,
    images: ChatImages,
    off_loop: OffLoop,
    limits: RequestLimits | None = None,
    extra_routes: Sequence[BaseRoute] = (),
) -> ASGIApp:
    """Build the HTTP side of an inference process.

    calls: verifies the calls of collectors. images: reads the images of requests. off_loop: reads
    large requests. limits: of one request. extra_routes: health and metrics.
    """
    api = _Api(router, recorder, authenticate, calls, images, off_loop, limits or RequestLimits())
    prefixes = ("/api/inference/v1", "/v1", "/api/v1", "/api/inference", "")
    chats, responses = (_paths(prefixes, end) for end in ("chat/completions", "responses"))
    routes: list[BaseRoute] = [Route(path, api.chat, methods=["POST"]) for path in chats]
    routes += [Route(path, api.respond, methods=["POST"]) for path in responses]
    routes += [Route(path, refuse_socket, methods=["GET"]) for path in responses]
    routes += [Route(f"{prefix}/", api.chat, methods=["POST"]) for prefix in prefixes[:3]]
    routes += [Route(f"{prefix}/models", api.models, methods=["GET"]) for prefix in prefixes[:3]]
    routes.append(Route("/internal/rollouts/stood_still", api.stood_still, methods=["POST"]))
    routes.append(Route("/internal/rollouts/credential", api.credential, methods=["GET"]))
    routes.append(Route("/internal/teacher/score", api.score, methods=["POST"]))
    return _hot_routes(
        {"/v1/chat/completions": api.chat, "/internal/rollouts/close": api.close},
        Starlette(routes=[*routes, Route("/internal/rollouts/close", api.close, methods=["POST"]), *extra_routes]),
    )


def _hot_routes(hot: Mapping[str, _Answer], app: ASGIApp) -> ASGIApp:
    """Return the app with the calls of each rollout before it: Starlette's layers cost as much as such a call's own."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        route = hot.get(scope.get("path", "")) if scope.get("method") == "POST" else None
        if route is None:
            await app(scope, receive, send)
            return
        response = await route(Request(scope, receive, send))
        await response(scope, receive, send)

    return answer


def _paths(prefixes: Sequence[str], end: str) -> list[str]:
    paths = [f"{prefix}/{end}" for prefix in prefixes]
    paths += [f"/rollouts/{{credential}}{prefix}/{end}" for prefix in ("/v1", "")]
    # An openai client whose base_url has a query sends the path with a slash at its end.
    return [*paths, *(f"{path}/" for path in paths)]


class _Api:
    def __init__(
        self,
        router: Router,
        recorder: Recorder,
        authenticate: Authenticate,
        calls: CallVerifier,
        images: ChatImages,
        off_loop: OffLoop,
        limits: RequestLimits,
    ) -> None:
        self._router = router
        self._recorder = recorder
        self._authenticate = authenticate
        self._calls = calls
        self._images = images
        self._off_loop = off_loop
        self._limits = limits
        self._memory = BodyMemory(limits.buffered)

    async def chat(self, request: Request) -> Response:
        """POST …/chat/completions[?cid=…], or any other place of the credential (`synth.rollout_credential`)."""
        if is_joined_responses(request.scope["query_string"].decode("latin-1")):
            return await self.respond(request)
        return await self._answer(request, self._read_chat, ChatReply)

    async def respond(self, request: Request) -> Response:
        """POST …/responses, with the credential in the same places."""
        return await self._answer(request, decode_responses, ResponsesReply)

    async def _answer(self, request: Request, read: _Read[_Call], write: _Write[_Call]) -> Response:
        recordings: list[ChoiceRecording] = []
        rename: Rename = str
        async with AsyncExitStack() as exit_stack:
            try:
                # The credential is checked before the body is read.
                text = cid_of(request)
                if text:
                    principal = self._router.org_of(self._recorder.check(text))
                else:
                    principal = await self._authenticate(request)
                held = exit_stack.enter_context(self._memory.hold(principal))
                kept = None if text is None else self._recorder.responses(text)
                call = await self._decode(await self._body(request, held), principal, read, kept)
                body, rename = call.chat, call.rename
                if text is not None:
                    recordings = self._recorder.begin_choices(text, num_choices(body))
                    route = self._router.for_rollout(recordings[0].cid)
                else:
                    refuse_unserved(body)
                    route = self._router.for_model(body.model, principal)
                binding = await exit_stack.enter_async_context(route)
                recording = recordings[0] if recordings else None
                completion = await Completion.prepare(
                    body,
                    binding,
                    recordings,
                    make_writer=lambda context: write(call, context, recording),
                    time=self._time(recordings),
                    images=self._images,
                    limits=self._limits,
                    off_loop=self._off_loop,
                    size=held.size,
                )
                if body.stream:
                    recordings = []  # the stream settles them
                    return EventStream(completion, exit_stack.pop_all())
                return await completion.answer(request.receive)
            except ClientDisconnect:
                return Response(status_code=400)
            except SynthError as error:
                return error_response(error, rename)
            finally:
                for recording in recordings:
                    recording.fail()

    def _read_chat(self, body: bytes, kept: ResponseLog | None) -> ChatCall:
        return ChatCall(decode_request(body, max_choices=self._limits.choices))

    async def models(self, request: Request) -> Response:
        """Answer GET …/models."""
        try:
            names = await self._router.models(await self._authenticate(request))
        except SynthError as error:
            return error_response(error)
        data = [{"id": name, "object": "model", "created": 0, "owned_by": "synth"} for name in names]
        body = msgspec.json.encode({"object": "list", "data": data})
        return Response(body, media_type="application/json")

    async def close(self, request: Request) -> Response:
        """POST /internal/rollouts/close {"cids": […]}: what `closed_from_bytes` reads, one entry a credential.

        Many in one request, because a request costs ten times as much as closing one rollout.
        """
        try:
            job_id, cids = await self._cids(request)
        except SynthError as error:
            return error_response(error)
        body = closed_to_bytes([self._closed(cid, job_id) for cid in cids])
        return Response(body, media_type="application/msgpack")

    async def stood_still(self, request: Request) -> Response:
        """POST /internal/rollouts/stood_still {"cids": […]}: the seconds of each that its policy was not given."""
        try:
            job_id, cids = await self._cids(request)
            for cid in cids:
                self._recorder.require_job(cid, job_id)
        except SynthError as error:
            return error_response(error)
        body = msgspec.json.encode([self._recorder.stood_still(cid) for cid in cids])
        return Response(body, media_type="application/json")

    async def credential(self, request: Request) -> Response:
        """GET /internal/rollouts/credential?cid=…: 204 if it may make a call now, otherwise what a call would get."""
        try:
            self._recorder.check(request.query_params.get("cid", ""))
        except SynthError as error:
            return error_response(error)
        return Response(status_code=204)

    async def score(self, request: Request) -> Response:
        """POST /internal/teacher/score {"job_id": …, "token_ids": […]}: `score_tokens` of the job's teacher."""
        try:
            job_id = self._verify_job(request)
            try:
                requested = msgspec.json.decode(await self._internal_body(request), type=_ToScore)
            except msgspec.DecodeError as error:
                expected = '{"job_id": "job_…", "token_ids": [1, …]}'
                raise UserError(str(error), expected=expected, where="body") from error
            if requested.job_id != job_id:
                raise InvalidKey(f"the call's token is for {job_id}, not for {requested.job_id}")
            async with self._router.for_teacher(job_id) as teacher:
                logprobs = await score_tokens(teacher, requested.token_ids)
        except ClientDisconnect:
            return Response(status_code=400)
        except SynthError as error:
            return error_response(error)
        return Response(msgspec.json.encode(logprobs), media_type="application/json")

    def _verify_job(self, request: Request) -> str:
        """Return the job of a collector's call, whose token it has."""
        job_id = request.headers.get("x-synth-job", "")
        self._calls.verify(request.headers.get("authorization", ""), job_id, of=(Purpose.ROLLOUTS_CALLS,))
        return job_id

    async def _cids(self, request: Request) -> tuple[str, list[str]]:
        """Return the job of a collector's call, and the credentials in it."""
        job_id = self._verify_job(request)
        try:
            return job_id, msgspec.json.decode(await self._internal_body(request), type=_Cids).cids
        except msgspec.DecodeError as error:
            raise UserError(str(error), expected='{"cids": ["trace_…"]}', where="body") from error

    def _time(self, recordings: Sequence[ChoiceRecording]) -> SamplingTime:
        """Return the time that a completion may take: in a rollout the rest of the rollout's, as the job sets it."""
        if recordings:
            return recordings[0].time
        return SamplingTime(self._limits.seconds, over_after_s=self._limits.end_seconds)

    async def _body(self, request: Request, held: HeldBytes) -> bytes:
        fix = "shorten the messages, or have the operator raise it"
        body = await read_body(
            request, self._memory, held, limit=self._limits.body, setting="SYNTH_MAX_REQUEST_BYTES", fix=fix
        )
        if not body:
            raise UserError("the body is empty", expected="a JSON object", where="body")
        return body

    async def _decode(self, body: bytes, principal: str, read: _Read[_Call], kept: ResponseLog | None) -> _Call:
        """Decode a call; a large one in a thread, so that other requests continue between the decoder's calls."""
        if len(body) <= INLINE_BYTES:
            return read(body, kept)
        await check_json_values(body, self._off_loop, limit=self._limits.values, setting=VALUES_SETTING, org=principal)
        return await self._off_loop.thread(read, body, kept, org=principal, size=len(body))

    async def _internal_body(self, request: Request) -> bytes:
        with self._memory.hold("") as held:
            return await self._body(request, held)

    def _closed(self, cid: str, job_id: str) -> ClosedRollout:
        try:
            self._recorder.require_job(cid, job_id)
            return ClosedRollout(self._recorder.close(cid))
        except SynthError as error:
            return ClosedRollout(refused=str(error))


def cid_of(request: Request) -> str | None:
    """Return the credential of a request, unchecked, or None."""
    return find_credential(
        path=request.scope["path"],
        query=request.scope["query_string"].decode("latin-1"),
        authorization=request.headers.get("authorization", ""),
    )
