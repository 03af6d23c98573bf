"""Check that the user's task app runs and follows the contract, and which environment key opens it.

The contract: docs/task-apps.md. Each key is tried by itself, in all three headers, because a task app may look at any
of them; 400, 401 and 403 all mean that it was refused. Messages of an app are passed on without the key that was sent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any, cast

import httpx
import msgspec

from synth.base_url import under
from synth.bus.kv.environment_keys import EnvironmentKey
from synth.bus.rpc import KEY_REFUSED_STATUSES, KeyResult, TaskAppReport
from synth.errors import Problem, UserError
from synth.events.catalogue import MAX_EVENT_BODY_BYTES
from synth.judging.rubric import rubric_from_task_info
from synth.judging.settings import Rubric
from synth.keys import without_secrets
from synth.outbound.answer_memory import AnswerMemory, AnswerRoom
from synth.outbound.failures import reason_of
from synth.outbound.http_guard import AddressRefused, Fetched, fetch, origin_of
from synth.outbound.reply_body import ReplyTooLarge, ReplyUndecodable
from synth.runtime.off_loop import OffLoop, TooMuchWork
from synth.taskapp.env_names import env_names

_FIRST_PAUSE_S = 0.25
#: It travels in `job.verified`, beside little else.
_MAX_RUBRIC_BYTES = MAX_EVENT_BODY_BYTES // 2


@dataclass(frozen=True)
class VerifiedTaskApp:
    """A task app that works. key_id: of the environment key that opens it, None when it needs none.

    env_names: the environments that it lists; empty if it lists none. rubric: None if it was not requested.
    """

    name: str | None
    key_id: str | None
    env_names: tuple[str, ...] = ()
    rubric: Rubric | None = None


@dataclass(frozen=True)
class AppAnswer:
    """The fields that are read from a task app's answer, on any of its paths.

    without_task: the beginning of an answer that describes no task. rubric: of the task, or the error in it, or None if
    it is too large.
    """

    healthy: bool
    without_task: str
    name: str | None
    env_names: tuple[str, ...]
    rubric: Rubric | Problem | None


#: Whether a key may be sent to the task app, decided when its turn has come.
MaySend = Callable[[EnvironmentKey], Awaitable[bool]]


class KeyRefused(Exception):
    """This key does not open the task app. status: of the app's answer, None if no request was sent."""

    def __init__(self, reason: str, *, path: str, status: int | None) -> None:
        super().__init__(reason)
        self.path = path
        self.status = status


class TaskAppUnusable(UserError):
    """The task app cannot be used with any key. status: of the answer that shows it, if there was one."""

    def __init__(self, problem: Problem, *, path: str, status: int | None = None) -> None:
        super().__init__(problem)
        self.path = path
        self.status = status


@dataclass(frozen=True)
class TaskAppCheck:
    """Asks one task app.

    call_deadline_s: of a call. retry_for_s: for how long a call is made again, from when it first failed.
    max_answer_bytes: of one answer. answers: the memory that it shares, if any. off_loop: where large answers are read,
    on behalf of `org`. may_send: applied to a key without an origin before it is sent, once the task app has answered a
    call without a key.
    """

    client: httpx.AsyncClient
    url: str
    call_deadline_s: float
    retry_for_s: float
    off_loop: OffLoop
    org: str
    max_answer_bytes: int = 64 << 20
    answers: AnswerMemory | None = None
    may_send: MaySend | None = None

    async def run(self, keys: list[EnvironmentKey], *, rubric_of: int | None = None) -> VerifiedTaskApp:
        """Try the keys, newest (last) first. Raises `UserError`, one problem, when the app cannot be used.

        rubric_of: a seed whose task's rubric is fetched, too.
        """
        refused: list[str] = []
        for key in [*reversed(keys)] or [None]:
            try:
                app = await self._try_key(key)
                return app if rubric_of is None else replace(app, rubric=await self._rubric(key, rubric_of))
            except KeyRefused as refusal:
                refused.append(f"{key.id if key else 'no key'}: {refusal}")
        raise UserError(self._no_key_opens(refused, stored=bool(keys)))

    async def report(self, keys: list[EnvironmentKey], *, budget_s: float) -> TaskAppReport:
        """Try the keys, newest (last) first, until one opens it, and report the result of each.

        If an app is unusable with one key, the others are not tried. budget_s: seconds after which the remaining keys
        are not tried.
        """
        begun = time.monotonic()
        newest_first = list(reversed(keys))
        name: str | None = None
        attempts: list[KeyResult] = []
        for key in newest_first or [None]:
            id = key.id if key else None
            left = begun + budget_s - time.monotonic()
            try:
                async with asyncio.timeout(max(0.0, left)):
                    app = await self._try_key(key)
            except KeyRefused as refused:
                reason = f"refused: {refused}"
                result = KeyResult(key_id=id, ok=False, path=refused.path, status=refused.status, reason=reason)
            except TaskAppUnusable as error:
                reason = str(error)
                result = KeyResult(key_id=id, ok=False, path=error.path, status=error.status, reason=reason)
                attempts.append(result)
                break
            except TimeoutError:
                reason = f"not known: all keys together may take {budget_s:g} s"
                result = KeyResult(key_id=id, ok=False, path="", status=None, reason=reason)
            else:
                name = app.name or name
                result = KeyResult(key_id=id, ok=True, path="/task_info", status=200, reason="opens it")
            attempts.append(result)
            if result.ok:
                break
        return TaskAppReport(key_ids=[key.id for key in newest_first], attempts=attempts, task_name=name)

    async def _try_key(self, key: EnvironmentKey | None) -> VerifiedTaskApp:
        if key is not None and key.is_offered_once and self.may_send is not None:
            # A mistyped address without a server does not use the key's one offer.
            await self._reach()
            if not await self.may_send(key):
                raise KeyRefused("it was offered to another address", path="", status=None)
        health = await self._request("/health", key)
        if not health.healthy:
            raise self._unusable("/health", "reports that it is not healthy", status=200)
        info = await self._request("/task_info", key)
        if info.without_task:
            raise self._unusable("/task_info", f"answers without a task: {info.without_task}", status=200)
        return VerifiedTaskApp(name=info.name, key_id=key.id if key else None, env_names=info.env_names)

    async def _reach(self) -> None:
        """Call the task app without a key. Raises `TaskAppUnusable` if it does not answer, or only with HTTP 5xx."""
        with suppress(KeyRefused):
            try:
                await self._request("/health", None)
            except TaskAppUnusable as error:
                if error.status is None or error.status >= 500:
                    raise

    async def _rubric(self, key: EnvironmentKey | None, seed: int) -> Rubric:
        info = await self._request("/task_info", key, seed=seed)
        if isinstance(info.rubric, Problem):
            raise UserError(info.rubric)
        if info.rubric is None:
            raise self._unusable("/task_info", f"has a rubric of more than {_MAX_RUBRIC_BYTES:,} bytes", status=200)
        return info.rubric

    async def _request(self, path: str, key: EnvironmentKey | None, *, seed: int | None = None) -> AppAnswer:
        give_up: float | None = None
        pause = _FIRST_PAUSE_S
        while True:
            status: int | None = None
            try:
                with nullcontext() if self.answers is None else self.answers.hold(self.org) as room:
                    reply = await self._call(path, key, seed, room)
                    if reply.status < 500:
                        return await self._read(path, reply)
                status, trouble = reply.status, f"answers HTTP {reply.status}: {_text(reply.body)}"
            except AddressRefused as error:
                raise TaskAppUnusable(self._address_refused(error), path=path) from error
            except (TimeoutError, httpx.TimeoutException):
                # One silence may be the verifier's own: a process that stood still finds all its deadlines past.
                trouble = f"does not answer within {self.call_deadline_s:g} s (SYNTH_CALL_DEADLINE_S)"
            except ReplyTooLarge as error:
                raise self._unusable(path, f"does not end: {error} (SYNTH_MAX_ANSWER_BYTES)") from error
            except ReplyUndecodable as error:
                raise self._unusable(path, f"cannot be read: {error}") from error
            except httpx.TransportError as error:
                trouble = f"cannot be reached: {reason_of(error)}"
            except (httpx.InvalidURL, httpx.HTTPError, UnicodeError) as error:
                raise self._unusable(path, f"cannot be requested ({error})") from error
            if give_up is None:
                give_up = time.monotonic() + self.retry_for_s
            if time.monotonic() + pause > give_up:
                raise self._unusable(path, trouble, status=status)
            await asyncio.sleep(pause)
            pause *= 2

    async def _call(self, path: str, key: EnvironmentKey | None, seed: int | None, room: AnswerRoom | None) -> Fetched:
        url = httpx.URL(under(self.url, path))
        if seed is not None:
            url = url.copy_add_param("seed", seed)
        headers: dict[str, str] = {}
        if key is not None:
            if not (key.key.isascii() and key.key.isprintable()):
                reason = "it has characters that no HTTP header can carry"
                raise KeyRefused(reason, path=path, status=None)
            headers = {"X-API-Key": key.key, "X-API-Keys": key.key, "Authorization": f"Bearer {key.key}"}
        limit, deadline = self.max_answer_bytes, self.call_deadline_s
        reply = await fetch(self.client, url, headers=headers, limit=limit, deadline=deadline, room=room)
        if key is None:
            return reply
        # Each of its searches is fast, and a thread gives the loop its turn between them.
        return replace(reply, body=await asyncio.to_thread(without_secrets, reply.body, [key.key]))

    async def _read(self, path: str, reply: Fetched) -> AppAnswer:
        if reply.status in KEY_REFUSED_STATUSES:
            raise KeyRefused(f"HTTP {reply.status}", path=path, status=reply.status)
        if reply.status != 200:
            what = f"answers HTTP {reply.status}: {_text(reply.body)}"
            raise self._unusable(path, what, status=reply.status)
        try:
            answer = await self.off_loop.process(
                read_answer, reply.body, self.url, org=self.org, size=len(reply.body), task="read the answer"
            )
        except TooMuchWork as error:
            raise self._unusable(path, f"costs too much: {error.problems[0].what}", status=reply.status) from error
        if isinstance(answer, str):
            raise self._unusable(path, answer, status=reply.status)
        return answer

    def _unusable(self, path: str, what: str, *, status: int | None = None) -> TaskAppUnusable:
        problem = Problem(
            what=f"the task app's {path} {what}",
            expected="HTTP 200 with a JSON object, as the task-app contract requires",
            fix=f"check that it runs: curl {self.url.rstrip('/')}{path}; then submit the job again",
            where=self.url,
        )
        return TaskAppUnusable(problem, path=path, status=status)

    def _address_refused(self, error: AddressRefused) -> Problem:
        return Problem(
            what=f"the task app's host {error.host} is at {error.address}, which is not a public address",
            expected="a public address, or one that the cluster's operator allows",
            fix="allow its network with SYNTH_ALLOWED_CIDRS, or this machine with SYNTH_ALLOW_LOOPBACK=1",
            where=self.url,
        )

    def _no_key_opens(self, refused: list[str], *, stored: bool) -> Problem:
        origin = origin_of(self.url)
        if not stored:
            return Problem(
                what=f"the task app requires a key ({refused[0]}), and your organisation has none for {origin}",
                expected="the key that the task app was started with (its ENVIRONMENT_API_KEY)",
                fix="store it with POST /api/environment-keys and this url, then submit the job again; one that was "
                "stored without a url is tried for SYNTH_ENVIRONMENT_KEY_OFFER_S seconds alone, at the first address "
                "that the API key names which stored it",
                where=self.url,
            )
        return Problem(
            what=f"the task app refuses every environment key of your organisation for {origin} ({', '.join(refused)})",
            expected="one of them to be the task app's ENVIRONMENT_API_KEY, or among its aliases",
            fix="start the task app with the same key, or store its key with POST /api/environment-keys and this url",
            where=self.url,
        )


def read_answer(body: bytes, url: str) -> AppAnswer | str:
    """Read an answer with status 200; returns the error if it is not a JSON object."""
    try:
        answer = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return f"answers something that is not JSON: {_text(body)}"
    if not isinstance(answer, dict):
        return f"answers something that is not a JSON object: {_text(body)}"
    info = cast(dict[str, Any], answer)
    rubric = rubric_from_task_info(info, where=url)
    too_large = isinstance(rubric, Rubric) and len(msgspec.json.encode(rubric)) > _MAX_RUBRIC_BYTES
    return AppAnswer(
        healthy=info.get("healthy") is not False,
        without_task="" if "taskset" in info or "task" in info else _excerpt(info),
        name=task_name(info),
        env_names=env_names(info),
        rubric=None if too_large else rubric,
    )


def task_name(info: dict[str, Any]) -> str | None:
    """Return the task's own name; the published apps have it in different places."""
    for holder in (info.get("task"), info.get("taskset"), info):
        if isinstance(holder, dict):
            names = cast(dict[str, Any], holder)
            for field in ("name", "id", "title"):
                if isinstance(name := names.get(field), str) and name:
                    return name[:200]
    return None


def _text(body: bytes) -> str:
    text = " ".join(body[:400].decode(errors="replace").split())
    return repr(text if len(text) <= 120 else text[:117] + "...") if text else "nothing"


def _excerpt(value: Any) -> str:
    return _text(msgspec.json.encode(value))
