"""The client of the backend's HTTP API: typed answers, typed errors, and retries within a budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from synth.access import Organisation
from synth.api.limits import MAX_PAGE
from synth.api.rollouts import RolloutDetail, RolloutPage, RolloutSummary
from synth.api.schemas import (
    Account,
    ApprovedDevice,
    Checkpoint,
    EventPage,
    File,
    JobCheck,
    JobWithConfig,
    Key,
    MadeKey,
    MadeOrganisation,
    Model,
    ModelFile,
    Point,
    Points,
    SubmittedJob,
)
from synth.cli.api.counted_file import CountedFile
from synth.cli.api.refusals import error_of, gave_no_score
from synth.cli.api.retries import backoff, is_refusal, retry_after
from synth.cli.config import Config
from synth.cli.connections.clients import open_http
from synth.console.errors import NotFound, Unreachable

T = TypeVar("T")
_Listed = TypeVar("_Listed", JobWithConfig, File)

_RETRY_BUDGET_S = 5.0  # without --retry-for
_REQUEST_TIMEOUT_S = 30.0  # without --request-timeout
_LONG_TIMEOUT_S = 300.0  # to find the worst of half a million rollouts, the backend reads all of them
_UPLOAD_TIMEOUT_S = 600.0  # after the last byte, the backend puts the file in its place
_CONNECT_TIMEOUT_S = 5.0
_LONGEST_PAUSE_S = 30.0
_RETRIED = frozenset({429, 502, 503, 504})


class _Page(msgspec.Struct):
    """One page of a list."""

    data: msgspec.Raw
    has_more: bool = False


class Client:
    """Talks to one backend with one key. Idempotent calls are retried when they fail."""

    def __init__(self, config: Config, *, retry_budget: float | None = None, timeout: float | None = None) -> None:
        """Open the client. `timeout` limits one try of a request, `retry_budget` all its tries, both in seconds.

        None uses the default.
        """
        self.root = config.backend.text
        self._backend, self._key = config.backend, config.require_api_key()
        self.retry_budget = _RETRY_BUDGET_S if retry_budget is None else retry_budget
        self._timeout = timeout
        self.http = open_http(self._backend, key=self._key, timeout=self._limit(_REQUEST_TIMEOUT_S))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.http.close()

    # -- jobs --

    def create_job(self, body: dict[str, Any], *, key: str) -> SubmittedJob:
        """Submit a job; the same key with the same body, any number of times, is one job."""
        return self.request("POST", "/jobs", SubmittedJob, json=body, headers={"Idempotency-Key": key})

    def check_job(self, body: dict[str, Any]) -> JobCheck:
        """Check a submission, and return the job that it would make. Creates no job."""
        return self.request("POST", "/jobs/check", JobCheck, json=body)

    def jobs(
        self,
        *,
        state: str | None = None,
        kind: str | None = None,
        prefix: str | None = None,
        name: str | None = None,
        tags: Sequence[str] = (),
        limit: int = 50,
    ) -> list[JobWithConfig]:
        """List jobs, newest first; any number of them.

        prefix: only those whose id begins so. name: the job's, or its label. tags: each as `owner=ada`; a job has all.
        """
        params = {"state": state, "kind": kind, "prefix": prefix, "name": name, "tag": list(tags) or None}
        return self._pages("/jobs", JobWithConfig, limit, params)

    def job(self, job_id: str) -> JobWithConfig:
        """Read one job."""
        return self.request("GET", f"/jobs/{quote(job_id, safe='')}", JobWithConfig)

    def cancel(self, job_id: str) -> JobWithConfig:
        """Ask a job to stop."""
        return self.request("POST", f"/jobs/{quote(job_id, safe='')}/cancel", JobWithConfig)

    def pause(self, job_id: str) -> JobWithConfig:
        """Ask a running job to release its workers."""
        return self.request("POST", f"/jobs/{quote(job_id, safe='')}/pause", JobWithConfig)

    def resume(self, job_id: str) -> JobWithConfig:
        """Resume a paused job."""
        return self.request("POST", f"/jobs/{quote(job_id, safe='')}/resume", JobWithConfig)

    def delete_job(self, job_id: str) -> None:
        """Delete a job that has ended, and its results. A second call changes nothing."""
        self._retried(lambda: self.http.delete(f"{self.root}/jobs/{quote(job_id, safe='')}"))

    def events(self, job_id: str, *, after: int = 0, limit: int = 500) -> EventPage:
        """Read one page of a job's events after the sequence `after`."""
        params = {"after": after, "limit": limit}
        return self.request("GET", f"/jobs/{quote(job_id, safe='')}/events", EventPage, params=params)

    def checkpoints(self, job_id: str) -> list[Checkpoint]:
        """List the checkpoints that a job still keeps, newest first."""
        return self.list_of(f"/jobs/{quote(job_id, safe='')}/checkpoints", Checkpoint)

    def metrics(self, job_id: str, *, name: str | None = None, after_step: int | None = None) -> list[Point]:
        """Read all metrics of a job, or all of one, ascending by step."""
        points: list[Point] = []
        while True:
            params = {"name": name, "after_step": after_step}
            page = self.request("GET", f"/jobs/{quote(job_id, safe='')}/metrics", Points, params=params)
            points += page.points
            if not page.more or not page.points:
                return points
            after_step = page.points[-1].step

    def rollouts(self, job_id: str, *, limit: int, **wanted: Any) -> Iterator[RolloutSummary]:
        """Return up to `limit` rollouts of a job, read page by page. wanted: parameters of the API, None for all."""
        path, after = f"/jobs/{quote(job_id, safe='')}/rollouts", ""
        while limit > 0 and after is not None:
            params = wanted | {"limit": min(limit, MAX_PAGE), "after": after or None}
            page = self.request("GET", path, RolloutPage, params=params, timeout=self._limit(_LONG_TIMEOUT_S))
            yield from page.data
            limit, after = limit - len(page.data), page.next

    def rollout(self, job_id: str, rollout_id: str) -> RolloutDetail:
        """Read one rollout with its transcript."""
        path = f"/jobs/{quote(job_id, safe='')}/rollouts/{quote(rollout_id, safe='')}"
        return self.request("GET", path, RolloutDetail, timeout=self._limit(_LONG_TIMEOUT_S))

    def image(self, sha256: str) -> bytes | None:
        """Read the image that a model was shown, by its sha256; None if it is no longer stored."""
        try:
            return self._retried(lambda: self.http.get(f"{self.root}/images/{sha256}")).content
        except NotFound:
            return None

    # -- files --

    def upload(
        self, path: Path, *, purpose: str, name: str | None = None, sent: Callable[[int], None] = lambda n: None
    ) -> File:
        """Upload a file as a stream. The same bytes again give the same file. `sent` is called with the bytes sent."""
        with CountedFile(path, sent) as body:

            def send() -> httpx.Response:
                body.seek(0)
                files = {"file": (name or path.name, body, "application/jsonl")}
                timeout = self._limit(_UPLOAD_TIMEOUT_S)
                return self.http.post(f"{self.root}/files", data={"purpose": purpose}, files=files, timeout=timeout)

            return self.decode(self._retried(send).content, File)

    def files(self, *, limit: int = 100) -> list[File]:
        """List files, newest first; any number of them."""
        return self._pages("/files", File, limit, {})

    def file(self, file_id: str) -> File:
        """Read one file's record."""
        return self.request("GET", f"/files/{quote(file_id, safe='')}", File)

    def delete_file(self, file_id: str) -> None:
        """Delete a file; one that is gone already is a `NotFound`."""
        self._retried(lambda: self.http.delete(f"{self.root}/files/{quote(file_id, safe='')}"))

    # -- models and the rest --

    def models(self) -> list[Model]:
        """List every model that can be served or trained from."""
        return self.list_of("/models", Model)

    def model(self, model: str) -> Model:
        """Read one model: a base of the cluster, or one of the organisation's own; raises `NotFound`."""
        return self.request("GET", f"/models/{quote(model, safe='/')}", Model)

    def delete_model(self, model: str) -> None:
        """Delete a model that a job made; again changes nothing."""
        self._retried(lambda: self.http.delete(f"{self.root}/models/{quote(model, safe='/')}"))

    def model_files(self, model: str) -> list[ModelFile]:
        """List the files of a model."""
        return self.list_of("/model-files", ModelFile, params={"model": model}, timeout=self._limit(_LONG_TIMEOUT_S))

    @contextmanager
    def model_file(self, model: str, name: str) -> Iterator[httpx.Response]:
        """Open one of a model's files; its body is read as a stream."""
        params = {"model": model, "name": name}
        with self.stream("GET", "/model-files/content", params=params) as reply:
            yield reply

    def account(self) -> Account:
        """Read who this key belongs to."""
        return self.request("GET", "/me", Account)

    def add_environment_key(self, key: str, url: str | None) -> None:
        """Store the key of the task app at `url`, which alone it is sent to; None: of the first app that it opens."""
        self._retried(lambda: self.http.post(f"{self.root}/environment-keys", json={"key": key, "url": url}))

    # -- keys and organisations --

    def keys(self) -> list[Key]:
        """List the organisation's API keys, oldest first."""
        return self.list_of("/keys", Key)

    def add_key(self, *, org: str | None = None, **body: Any) -> MadeKey:
        """Make a key of this organisation, or, as an operator, of another one. body: as `POST /api/keys` takes it."""
        path = f"/organisations/{quote(org, safe='')}/keys" if org else "/keys"
        return self._post_once(path, MadeKey, body)

    def rotate_key(self, key_id: str, *, grace_s: int) -> MadeKey:
        """Replace a key."""
        return self._post_once(f"/keys/{quote(key_id, safe='')}/rotate", MadeKey, {"grace_s": grace_s})

    def revoke_key(self, key_id: str) -> Key:
        """Revoke a key."""
        return self.request("DELETE", f"/keys/{quote(key_id, safe='')}", Key)

    def approve_device(self, code: str) -> ApprovedDevice:
        """Approve a machine that requests keys."""
        return self._post_once("/keys/approve", ApprovedDevice, {"code": code})

    def organisations(self) -> list[Organisation]:
        """List every organisation of the cluster."""
        return self.list_of("/organisations", Organisation)

    def add_organisation(self, name: str) -> MadeOrganisation:
        """Make an organisation."""
        return self._post_once("/organisations", MadeOrganisation, {"name": name})

    def chat(self, body: dict[str, Any], *, patience: float = 120.0) -> dict[str, Any]:
        """Request one chat completion. patience: seconds for which it is tried again while the model is loaded.

        However long the reply is, the backend decides when it takes too long.
        """
        return self._post_patiently("/v1/chat/completions", body, patience, usual=None)

    def grade(self, body: dict[str, Any], *, patience: float) -> dict[str, Any]:
        """Grade one sample by a grader; patience: as in `chat`."""
        return self._post_patiently("/v1/fine_tuning/alpha/graders/run", body, patience)

    def judge(self, body: dict[str, Any], *, patience: float) -> dict[str, Any]:
        """Have a judge score one trace by a rubric; patience: as in `chat`, also while the judge is at work."""
        return self._post_patiently("/judge/v1/score", body, patience)

    def _post_patiently(
        self, path: str, body: dict[str, Any], patience: float, *, usual: float | None = _LONG_TIMEOUT_S
    ) -> dict[str, Any]:
        timeout = self._limit(usual)
        reply = self._retried(lambda: self.http.post(self.root + path, json=body, timeout=timeout), budget=patience)
        return self.decode(reply.content, dict[str, Any])

    @contextmanager
    def stream_chat(self, body: dict[str, Any], *, patience: float) -> Iterator[httpx.Response]:
        """Send a chat as `chat` does, with `stream` in the body; the reply arrives as server-sent events."""

        def send() -> httpx.Response:
            reply = self._open("POST", "/v1/chat/completions", {"json": body, "timeout": self._limit(None)})
            if is_refusal(reply):
                reply.read()
            return reply

        reply = self._retried(send, budget=patience)
        try:
            yield reply
        finally:
            reply.close()

    @contextmanager
    def stream(self, method: str, path: str, **options: Any) -> Iterator[httpx.Response]:
        """Open an answer whose body is read as a stream. Raises a `CliError` for an error status."""
        reply = self._open(method, path, options)
        try:
            if is_refusal(reply):
                reply.read()
                raise error_of(reply, key=self._key)
            yield reply
        finally:
            reply.close()

    def _limit(self, usual: float | None) -> httpx.Timeout:
        """Return the timeout of one request: the client's own if set, else `usual`; None for no limit."""
        seconds = usual if self._timeout is None else self._timeout
        connect = _CONNECT_TIMEOUT_S if seconds is None else min(seconds, _CONNECT_TIMEOUT_S)
        return httpx.Timeout(seconds, connect=connect)

    def _open(self, method: str, path: str, options: dict[str, Any]) -> httpx.Response:
        try:
            return self.http.send(self.http.build_request(method, self.root + path, **options), stream=True)
        except httpx.ConnectError as error:
            raise self._unreachable(error) from error

    # -- the mechanics --

    def get(self, path: str, type: type[T], **params: Any) -> T:
        """Read what may take long to find. params: of the query, None for none."""
        return self.request("GET", path, type, params=params, timeout=self._limit(_LONG_TIMEOUT_S))

    def request(self, method: str, path: str, type: type[T], **options: Any) -> T:
        """Return the answer to a request, retried as it may be."""
        if "params" in options:
            options["params"] = {k: v for k, v in options["params"].items() if v is not None}
        reply = self._retried(lambda: self.http.request(method, self.root + path, **options))
        return self.decode(reply.content, type)

    def _post_once(self, path: str, type: type[T], body: dict[str, Any]) -> T:
        """Post without a retry: the answer holds a secret that is shown once."""
        reply = self._retried(lambda: self.http.post(self.root + path, json=body), budget=0)
        return self.decode(reply.content, type)

    def _pages(self, path: str, type: type[_Listed], limit: int, params: dict[str, Any]) -> list[_Listed]:
        """Return the first `limit` items of a list, in as many pages as that takes."""
        items: list[_Listed] = []
        while True:
            query = {**params, "limit": min(limit - len(items), MAX_PAGE), "after": items[-1].id if items else None}
            page = self.request("GET", path, _Page, params=query)
            items += self.decode(bytes(page.data), list[type])
            if not page.has_more or len(items) >= limit:
                return items

    def list_of(
        self, path: str, type: type[T], *, field: str = "data", params: dict[str, Any] | None = None, **options: Any
    ) -> list[T]:
        body = self.request("GET", path, dict[str, msgspec.Raw], params=params or {}, **options)
        if field not in body:
            raise self._not_a_backend(f"an answer without {field!r}")
        return self.decode(bytes(body[field]), list[type])

    def _retried(self, send: Callable[[], httpx.Response], *, budget: float | None = None) -> httpx.Response:
        """Send, and retry passing errors until the budget is spent. Raises the `CliError` of the last answer."""
        deadline = time.monotonic() + (self.retry_budget if budget is None else budget)
        attempt = 0
        while True:
            delay = backoff(attempt)
            try:
                reply = send()
            except httpx.TransportError as error:
                if time.monotonic() + delay > deadline:
                    raise self._unreachable(error) from error
            else:
                if not is_refusal(reply):
                    return reply
                delay = min(_LONGEST_PAUSE_S, retry_after(reply) or delay)
                if reply.status_code not in _RETRIED or gave_no_score(reply) or time.monotonic() + delay > deadline:
                    raise error_of(reply, key=self._key)
            time.sleep(delay)
            attempt += 1

    def decode(self, text: bytes | str, type: type[T]) -> T:
        """Decode the backend's JSON. Raises `Unreachable` if it is not JSON, or has another shape."""
        try:
            return msgspec.json.decode(text, type=type)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise self._not_a_backend(str(error)) from error

    def _unreachable(self, error: httpx.TransportError) -> Unreachable:
        fix = self.http.fix("is the cluster running? `synthctl status` shows it, `synthctl up` starts it", error)
        return Unreachable(f"cannot reach the backend ({self.http.reason(error)})", fix=fix, where=self._where)

    def _not_a_backend(self, what: str) -> Unreachable:
        return Unreachable(
            f"what answers is not a Synth backend that this client understands ({what})",
            fix="check BACKEND_BASE_URL, and that client and cluster are of one version",
            where=self._where,
        )

    @property
    def _where(self) -> str:
        return f"{self.root} ({self._backend.origin})"
