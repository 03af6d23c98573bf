"""`Client` and `AsyncClient`: the API of one backend, with one key."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar, cast

import httpx
import msgspec

from synth.api.schemas import Account, Limit, LimitList
from synth.api.sse import SseReader
from synth.client.api import LONG_TIMEOUT_S, Api
from synth.client.connections.config import Config, load
from synth.client.files import AsyncFiles, Files
from synth.client.jobs import AsyncJobs, Jobs
from synth.client.models import AsyncModels, Models
from synth.client.organisation import AsyncKeys, AsyncOperator, AsyncTraces, Keys, Operator, Traces
from synth.client.transports import AsyncioTransport, Blocking, BlockingTransport, blocking, blocking_iterator
from synth.console.errors import CliError, NotFound, Unreachable

Message = Mapping[str, Any]
T = TypeVar("T")

#: Seconds for which a chat is sent again while its model is loaded.
_PATIENCE_S = 120.0


@dataclass(frozen=True)
class ModelReply:
    """A reply of a model. completion: the whole answer, as `POST /v1/chat/completions` returns it."""

    completion: dict[str, Any]

    @property
    def message(self) -> dict[str, Any]:
        """The message of the first choice, which continues the conversation."""
        return self.completion["choices"][0]["message"]

    @property
    def text(self) -> str:
        """The text of the first choice; "" if it only calls tools."""
        return self.message.get("content") or ""


class _Calls:
    """What both clients do. jobs, files, models, traces, keys, operator: the parts of the API."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.files, self.models, self.traces = AsyncFiles(api), AsyncModels(api), AsyncTraces(api)
        self.keys, self.operator = AsyncKeys(api), AsyncOperator(api)
        self.jobs = AsyncJobs(api, self.files, self.keys)

    async def close(self) -> None:
        """Close the connections."""
        await self._api.transport.close()

    async def chat(
        self, model: str, messages: str | Sequence[Message], *, patience: float = _PATIENCE_S, **options: Any
    ) -> ModelReply:
        """Request one chat completion.

        model: the id of a model, or of a running job for its present policy. messages: the conversation as in OpenAI's
        API; a `str` is one message of the user. patience: seconds for which the request is sent again while the model
        is loaded or busy. options: fields of `POST /v1/chat/completions`, such as `max_tokens` or `tools`. However long
        the reply is, the backend decides when it takes too long.
        """
        body = _chat_body(model, messages, options)
        return ModelReply(await self._post_patiently("/v1/chat/completions", body, patience, usual=None))

    async def chat_stream(
        self, model: str, messages: str | Sequence[Message], *, patience: float = _PATIENCE_S, **options: Any
    ) -> AsyncGenerator[str]:
        """Yield the text of a chat completion in pieces, as the model samples them. Arguments: as in `chat`."""
        body = _chat_body(model, messages, {**options, "stream": True})
        request: dict[str, Any] = {"json": body, "budget": patience, "usual": None}
        reader = SseReader()
        try:
            async with self._api.stream("POST", "/v1/chat/completions", **request) as reply:
                async for piece in self._api.transport.pieces(reply):
                    for sse in reader.feed(piece):
                        if sse is not None and sse.data != "[DONE]":
                            for text in _texts(sse.data, model):
                                yield text
        except httpx.TransportError as error:
            fix = "is the cluster running? `synthctl status` shows it"
            raise Unreachable(f"the connection to the backend broke ({error})", fix=fix) from error

    async def grade(self, body: Mapping[str, Any], *, patience: float = _PATIENCE_S) -> dict[str, Any]:
        """Grade one sample by a grader. body: as `POST /v1/fine_tuning/alpha/graders/run` takes it."""
        return await self._post_patiently("/v1/fine_tuning/alpha/graders/run", body, patience)

    async def judge(self, body: Mapping[str, Any], *, patience: float = _PATIENCE_S) -> dict[str, Any]:
        """Score one trace by a rubric, with a judge. body: as `POST /api/judge/v1/score` takes it.

        patience: as in `chat`, also while the judge is at work. Raises `NoScore`.
        """
        return await self._post_patiently("/judge/v1/score", body, patience)

    async def _post_patiently(
        self, path: str, body: Mapping[str, Any], patience: float, *, usual: float | None = LONG_TIMEOUT_S
    ) -> dict[str, Any]:
        return await self._api.request("POST", path, dict[str, Any], json=dict(body), budget=patience, usual=usual)

    async def account(self) -> Account:
        """Read which organisation and which key this client uses."""
        return await self._api.request("GET", "/me", Account)

    async def limits(self) -> list[Limit]:
        """List the limits of the organisation, with their use."""
        return (await self._api.request("GET", "/limits", LimitList)).data

    async def image(self, sha256: str) -> bytes | None:
        """Read the image that a model was shown, by its sha256; None if it is no longer stored."""
        try:
            return (await self._api.send("GET", f"/images/{sha256}")).content
        except NotFound:
            return None

    async def request(self, method: str, path: str, type: type[T], **options: Any) -> T:
        """Call a route that has no method here, and return its answer as an object of `type`.

        path: below the API's root, such as `/rl/verify_task_app`. options: `json`, `params` and `headers`.
        """
        return await self._api.request(method, path, type, **options)


class AsyncClient(_Calls):
    """The API of one backend, for asyncio. It has the methods of `Client`, as coroutines and asynchronous iterators.

    `async with AsyncClient() as client:` closes its connections at the end.
    """

    def __init__(
        self,
        config: Config | None = None,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        retry_budget: float | None = None,
        timeout: float | None = None,
    ) -> None:
        config = config or load(api_key=api_key, base_url=base_url)
        super().__init__(Api(config, AsyncioTransport.of, retry_budget=retry_budget, timeout=timeout))
        self.root = config.backend.text

    def __repr__(self) -> str:
        return f"<AsyncClient of {self.root}>"

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()


class Client(Blocking):
    """The API of one backend. `with Client() as client:` closes its connections at the end.

    Without arguments it reads the settings of `synthctl`: the environment, then the nearest `.env`. It may be used from
    several threads. config: settings that were read already. api_key: instead of SYNTH_API_KEY. base_url: instead of
    BACKEND_BASE_URL. retry_budget: seconds for which a request is sent again while the backend is away or busy; 5 by
    default. timeout: seconds for one try of a request; 30 by default, and longer for requests that read much.

    Raises `NotAuthorised` without a key, and `UnconfirmedOrigin` for a key that may not be sent to the address.
    """

    def __init__(
        self,
        config: Config | None = None,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        retry_budget: float | None = None,
        timeout: float | None = None,
    ) -> None:
        config = config or load(api_key=api_key, base_url=base_url)
        self._api = Api(config, BlockingTransport.of, retry_budget=retry_budget, timeout=timeout)
        calls = _Calls(self._api)
        super().__init__(calls)
        self.root = config.backend.text
        self.jobs, self.files, self.models = Jobs(calls.jobs), Files(calls.files), Models(calls.models)
        self.traces, self.keys, self.operator = Traces(calls.traces), Keys(calls.keys), Operator(calls.operator)

    def __repr__(self) -> str:
        return f"<Client of {self.root}>"

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    close = blocking(_Calls.close)
    chat = blocking(_Calls.chat)
    chat_stream = blocking_iterator(_Calls.chat_stream)
    grade = blocking(_Calls.grade)
    judge = blocking(_Calls.judge)
    account = blocking(_Calls.account)
    limits = blocking(_Calls.limits)
    image = blocking(_Calls.image)
    request = blocking(_Calls.request)


def _chat_body(model: str, messages: str | Sequence[Message], options: dict[str, Any]) -> dict[str, Any]:
    conversation = [{"role": "user", "content": messages}] if isinstance(messages, str) else [*messages]
    return {"model": model, "messages": conversation, **options}


def _texts(data: str, model: str) -> list[str]:
    """Return the pieces of text in one event of a streamed chat."""
    chunk: dict[str, Any] = msgspec.json.decode(data)
    if error := chunk.get("error"):
        raise CliError(str(error.get("message") or error), where=model)
    deltas = [cast(dict[str, Any], choice.get("delta") or {}) for choice in chunk.get("choices") or []]
    return [text for delta in deltas if (text := delta.get("content"))]
