"""The endpoints of models: the cluster, or any OpenAI-compatible address."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec

from synth.cli.api.hosted import HostedApi, Json, NoAnswer, RequestRefused, model_endpoint
from synth.cli.sampling.answers import Answer
from synth.cli.sampling.rows import PromptRow
from synth.client import Client
from synth.client.connections.config import Config, ConfigValue
from synth.console.errors import CliError, NotFound, UsageProblem

_NEWER_NAME = "max_completion_tokens"


@dataclass(frozen=True)
class SamplingOptions:
    """The sampling settings. None for the API's default. logprobs: alternatives of each token."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    logprobs: int | None = None

    def body(self, row: PromptRow, model: str) -> Json:
        """Return the request of a row."""
        body: Json = {"model": model, "messages": row.messages}
        for name in ("temperature", "top_p", "max_tokens"):
            if (value := getattr(self, name)) is not None:
                body[name] = value
        if row.tools:
            body["tools"] = row.tools
        if row.response_format is not None:
            body["response_format"] = row.response_format
        if self.logprobs is not None:
            body |= {"logprobs": True, "top_logprobs": self.logprobs}
        return body


class ChatEndpoint:
    """One model behind an API. where: the API, for people."""

    def __init__(self, model: str, api: HostedApi) -> None:
        self.model = model
        self._api = api
        self._renamed = False

    @property
    def where(self) -> str:
        return self._api.root

    def stop(self) -> None:
        """Send no request again."""
        self._api.stop()

    def answer(self, row: int, sample: int, request: str, body: Json) -> Answer:
        """Sample one reply. A request that the API refuses, or does not answer, is an answer with a failure.

        Raises a `CliError` for what no other row would change: the key, the model's id, an API that stays away.
        """
        try:
            completion, seconds = self._complete(body)
            return _read(completion, row, sample, request, seconds)
        except RequestRefused as refused:
            return Answer(row=row, sample=sample, request=request, failure=refused.problems[0].what)
        except NoAnswer as missing:
            failure = missing.problems[0].what
            return Answer(row=row, sample=sample, request=request, failure=failure, cost_known=False)
        except NotFound as missing:
            fix = f"check the model's id, {self.model}, and the address"
            raise NotFound(missing.problems[0].what, fix=fix, where=missing.problems[0].where) from missing

    def _complete(self, body: Json) -> tuple[Json, float]:
        sent = self._as_accepted(body)
        try:
            return self._api.post("/chat/completions", sent)
        except RequestRefused as refused:
            # Newer models of OpenAI refuse the older name of the same limit; most other servers know it alone.
            if "max_tokens" not in sent or _NEWER_NAME not in refused.problems[0].what:
                raise
            self._renamed = True
            return self._api.post("/chat/completions", self._as_accepted(body))

    def _as_accepted(self, body: Json) -> Json:
        if not self._renamed:
            return body
        return {_NEWER_NAME if name == "max_tokens" else name: value for name, value in body.items()}


@dataclass(frozen=True)
class HostedModels:
    """The API of the models that the cluster does not serve.

    base_url: None without one. trusted: OPENAI_API_KEY may be sent there. patience_s: how long a busy API is called
    again. timeout_s: of one reply.
    """

    base_url: str | None
    trusted: bool = False
    patience_s: float = 300.0
    timeout_s: float = 600.0

    def open(self, model: str) -> ChatEndpoint:
        """Raises `UsageProblem` for an address that is none, and `UnconfirmedOrigin`."""
        assert self.base_url is not None
        address = ConfigValue(self.base_url, "flag", "--base-url")
        key = model_endpoint(address, trusted=self.trusted)
        name = urlsplit(self.base_url).hostname or "the endpoint"
        fix = "try again later; the replies so far are kept"
        api = HostedApi(address, key, name=name, patience_s=self.patience_s, timeout_s=self.timeout_s, fix=fix)
        return ChatEndpoint(model, api)


def open_endpoints(
    models: Sequence[str], cluster: Client | CliError, config: Config, hosted: HostedModels
) -> list[ChatEndpoint]:
    """Find where each model is served: by the cluster if it lists the model, else behind `--base-url`.

    cluster: why there is none, without one. Raises `UsageProblem` for a model that is nowhere.
    """
    if repeated := next((model for model in models if models.count(model) > 1), None):
        raise UsageProblem(f"{repeated} is given twice", expected="different models")
    endpoints: list[ChatEndpoint] = []
    for model in models:
        if not isinstance(cluster, CliError) and _is_served(cluster, model):
            endpoints.append(_served_by_cluster(model, config, patience_s=hosted.patience_s))
        elif hosted.base_url is not None:
            endpoints.append(hosted.open(model))
        else:
            raise UsageProblem(
                f"no cluster serves it: {cluster.problems[0].what}"
                if isinstance(cluster, CliError)
                else "the cluster does not list it",
                expected="a model of `synthctl models ls`, or --base-url with the API that serves it",
                where=model,
            )
    return endpoints


def _is_served(client: Client, model: str) -> bool:
    try:
        # A running job's policy is served by the job's id.
        client.jobs.get(model) if model.startswith("job_") else client.models.get(model)
    except NotFound:
        return False
    return True


def _served_by_cluster(model: str, config: Config, *, patience_s: float) -> ChatEndpoint:
    """Return a model of the cluster, which decides how long a reply may take."""
    key = config.require_api_key()
    address = ConfigValue(f"{config.backend.text}/v1", config.backend.origin, config.backend.name)
    return ChatEndpoint(model, HostedApi(address, key, name="the cluster", patience_s=patience_s, timeout_s=None))


def _read(completion: Json, row: int, sample: int, request: str, seconds: float) -> Answer:
    """Read a chat completion. Raises `NoAnswer`."""
    try:
        choice = cast(list[Json], completion["choices"])[0]
        message = cast(Json, choice["message"])
        usage = cast(Json, completion.get("usage") or {})
        logprobs: Any = (choice.get("logprobs") or {}).get("content")
        return Answer(
            row=row,
            sample=sample,
            request=request,
            message={name: value for name, value in message.items() if value is not None},
            finish_reason=str(choice.get("finish_reason") or ""),
            model=str(completion.get("model") or ""),
            prompt_tokens=int(usage.get("prompt_tokens") or 0),
            completion_tokens=int(usage.get("completion_tokens") or 0),
            seconds=seconds,
            logprobs=logprobs,
            cost_known=bool(usage.get("prompt_tokens")),
        )
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        shown = msgspec.json.encode(completion)[:200].decode(errors="replace")
        raise NoAnswer(f"the answer is no chat completion: {shown}") from error
