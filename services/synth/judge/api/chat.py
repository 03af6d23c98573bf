"""Make one chat call of a judge, and read its API's reply: an answer, a wait, or an error."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar, cast

import httpx
import msgspec

from synth.errors import Transient
from synth.judge.api.breaker import CircuitOpen
from synth.judge.api.endpoints import Endpoints, JudgeEndpoint, ModelQuirks
from synth.judge.api.limiter import ApiPaused
from synth.judge.api.limits import Wish
from synth.judge.failures import JudgeTrouble, away, refused, unreadable
from synth.judge.metrics import CALL_SECONDS, CALLS
from synth.judge.prompts.answers import UnusableAnswer
from synth.judge.usage import UsageCount
from synth.outbound.failures import reason_of
from synth.outbound.http_guard import AddressRefused
from synth.outbound.reply_body import ReplyTooLarge, ReplyUndecodable, read_body
from synth.runtime import logs
from synth.runtime.off_loop import INLINE_BYTES, OffLoop, TooMuchWork

log = logs.get("judge calls")
_T = TypeVar("_T")
_Content = TypeVar("_Content", bytes, str)

#: Pauses of its API that one question waits for, before the judge is reported as away.
_MAX_PAUSES = 3
_AWAY_S = 2.0
_MAX_SHOWN = 300
#: Characters of an error that are read.
_MAX_READ = 64 << 10
_TOKEN_COUNTS = ("prompt_tokens", "completion_tokens")
#: Words of APIs about a prompt that is too long, about `response_format`, and about text that their filter blocks.
_TOO_LONG = (
    "context_length",
    "context length",
    "maximum context",
    "context window",
    "too many tokens",
    "prompt is too",
)
_NO_SCHEMA = ("response_format", "json_schema", "structured output", "guided", "grammar", "schema")
_FILTERED = ("content_filter", "content_policy", "content management policy")


@dataclass(frozen=True)
class ChatAnswer:
    """The text of the model's answer. cut: whether it was cut off at its limit of tokens."""

    text: str
    cut: bool


@dataclass(frozen=True)
class _Reply:
    """The read fields of a reply. answer: None if it holds no message; its tokens are paid all the same."""

    answer: ChatAnswer | None
    prompt_tokens: int
    completion_tokens: int


class ReplyNotJson(Exception):
    """The body of a 200 is not JSON."""


class _Again(Exception):
    """The same call again: the API sent a pause, or refused a field that is now left out."""

    def __init__(self, *, pause: bool = False, quirks: ModelQuirks | None = None) -> None:
        super().__init__()
        self.pause = pause
        self.quirks = quirks


@dataclass(frozen=True, kw_only=True)
class JudgeChat:
    """Calls the APIs of judges. min_failing_timeout_s: of a call whose silence is a failure of its API."""

    endpoints: Endpoints
    off_loop: OffLoop
    max_reply_bytes: int
    min_failing_timeout_s: float

    async def ask(
        self,
        endpoint: JudgeEndpoint,
        messages: list[dict[str, str]],
        *,
        schema: tuple[str, dict[str, Any]],
        temperature: float,
        max_tokens: int,
        beside: Mapping[str, Any],
        timeout_s: float,
        wish: Wish,
        usage: UsageCount,
    ) -> ChatAnswer:
        """Return one answer of the judge, unchecked. schema: name and schema of the JSON that the call requests.

        beside: other fields of the call, by the API's names.

        Raises `JudgeTrouble`, and `UnusableAnswer` for an answer without a message.
        """
        pauses, quirks = 0, endpoint.quirks
        while True:
            body: dict[str, Any] = {
                **beside,
                "model": endpoint.model,
                "messages": messages,
                "temperature": temperature,
                quirks.tokens_field: max_tokens,
            }
            if quirks.schema:
                named = {"name": schema[0], "schema": schema[1], "strict": True}
                body["response_format"] = {"type": "json_schema", "json_schema": named}
            content = await asyncio.to_thread(msgspec.json.encode, body)
            try:
                answer = await self._call(endpoint, content, quirks, timeout_s, wish, usage, last=pauses >= _MAX_PAUSES)
            except _Again as again:
                pauses += again.pause
                quirks = again.quirks or quirks
            else:
                endpoint.remember(quirks)
                return answer

    async def _call(
        self,
        endpoint: JudgeEndpoint,
        body: bytes,
        quirks: ModelQuirks,
        timeout_s: float,
        wish: Wish,
        usage: UsageCount,
        *,
        last: bool,
    ) -> ChatAnswer:
        limiter = endpoint.api.limiter
        try:
            endpoint.breaker.check()
            async with endpoint.connection() as client, limiter.turn(wish):
                endpoint.breaker.enter()
                usage.calls += 1
                reply, content = await self._send(endpoint, client, body, timeout_s)
        except CircuitOpen as error:
            what = f"it has failed too often in a row and is left alone for {error.seconds:.0f} s; last: {error}"
            raise away(what, where=endpoint.where, retry_after_s=error.seconds) from error
        except ApiPaused as error:
            what = f"its API sent a Retry-After, and {error.seconds:.0f} s of that pause are left"
            raise away(what, where=endpoint.where, retry_after_s=error.seconds, limited=True) from error
        CALLS.labels(outcome=str(reply.status_code)).inc()
        if reply.status_code == 200:
            try:
                read = await self._off_process(read_reply, content, endpoint)
            except ReplyNotJson as error:
                # The model answers inside the JSON. This is from something in between, such as a proxy's error page.
                raise self._no_answer(endpoint, str(error)) from error
            finally:
                # After a failure that was counted it changes nothing.
                endpoint.breaker.abandoned()
            endpoint.breaker.succeeded()
            usage.add_tokens(read.prompt_tokens, read.completion_tokens, endpoint.prices)
            if read.answer is None:
                raise UnusableAnswer("the API's answer holds no message")
            return read.answer
        reason = await self._off_process(read_refusal, content, endpoint)
        raise self._refusal(endpoint, quirks, reply, reason, last=last)

    async def read_text(self, read: Callable[[str], _T], text: str, endpoint: JudgeEndpoint) -> _T:
        """Read the text of an answer. Raises `UnusableAnswer`."""
        if len(text) <= INLINE_BYTES:
            return await asyncio.to_thread(read, text)
        return await self._off_process(read, text, endpoint)

    async def _off_process(self, read: Callable[[_Content], _T], content: _Content, endpoint: JudgeEndpoint) -> _T:
        """Read an answer; in a worker process if it is large.

        Raises `UnusableAnswer` if that costs too much, and `JudgeTrouble` (away) if the process ends before it is done.
        """
        try:
            return await self.off_loop.process(
                read, content, org=endpoint.org, size=len(content), task="read the API's answer"
            )
        except TooMuchWork as error:
            raise UnusableAnswer(error.problems[0].what) from error
        except Transient as error:
            raise away(str(error), where=endpoint.where, retry_after_s=error.delay or _AWAY_S) from error

    async def _send(
        self, endpoint: JudgeEndpoint, client: httpx.AsyncClient, body: bytes, timeout_s: float
    ) -> tuple[httpx.Response, bytes]:
        """POST, within `timeout_s` in all. No answer is `JudgeTrouble`: away."""
        breaker = endpoint.breaker
        answered, started = False, time.monotonic()
        try:
            url, headers = self.endpoints.next_call(endpoint)
            request = client.build_request(
                "POST",
                url,
                content=body,
                headers={**headers, "content-type": "application/json", "accept-encoding": "identity"},
                timeout=timeout_s,
            )
            async with asyncio.timeout(timeout_s):
                reply = await client.send(request, stream=True)
                try:
                    content = await read_body(reply, self.max_reply_bytes)
                finally:
                    await reply.aclose()
            answered = True
            return reply, content
        except (AddressRefused, httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise refused(f"its address cannot be used: {error}", where=endpoint.where) from error
        except ReplyTooLarge as error:
            raise refused(
                f"it answered more than {self.max_reply_bytes:,} bytes (SYNTH_JUDGE_MAX_REPLY_BYTES)",
                where=endpoint.where,
            ) from error
        except ReplyUndecodable as error:
            raise refused(str(error), where=endpoint.where) from error
        except (TimeoutError, httpx.TimeoutException) as error:
            CALLS.labels(outcome="none").inc()
            # If a job set a short time, the API has not failed, and other jobs may still use it.
            counts = timeout_s >= self.min_failing_timeout_s
            raise self._no_answer(endpoint, f"it did not answer within {timeout_s:g} s", counts=counts) from error
        except httpx.HTTPError as error:
            CALLS.labels(outcome="none").inc()
            raise self._no_answer(endpoint, f"it cannot be reached: {reason_of(error)}") from error
        finally:
            CALL_SECONDS.observe(time.monotonic() - started)
            if not answered:
                # After a failure that was counted it changes nothing.
                breaker.abandoned()

    def _no_answer(self, endpoint: JudgeEndpoint, what: str, *, counts: bool = True) -> JudgeTrouble:
        if counts:
            endpoint.breaker.failed(what)
        log.warning("a judge gave no answer", judge=endpoint.where, reason=what)
        return away(what, where=endpoint.where, retry_after_s=_AWAY_S)

    def _refusal(
        self, endpoint: JudgeEndpoint, quirks: ModelQuirks, reply: httpx.Response, reason: str, *, last: bool
    ) -> Exception:
        """Return the error for an answer with a status other than 200."""
        status, text = reply.status_code, _shown(reason, endpoint.key)
        breaker, message = endpoint.breaker, f"it answered HTTP {reply.status_code}"
        message = f"{message}: {text}" if text else message
        pause = _retry_after(reply.headers.get("retry-after"))
        if status == 429 or (status in (503, 529) and pause is not None):
            breaker.succeeded()
            pause = 1.0 if pause is None else pause
            endpoint.api.limiter.pause(pause)
            # A longer pause is checked by the limiter, when the call waits for its turn.
            return (
                _Again(pause=True)
                if not last
                else away(message, where=endpoint.where, retry_after_s=pause, limited=status == 429)
            )
        if status >= 500 or status in (408, 425):
            return self._no_answer(endpoint, message)
        breaker.succeeded()
        if status in (401, 403):
            fix = (
                "`synthctl keys judge add NAME --url …` stores another" if endpoint.identity.startswith("url ") else ""
            )
            return refused(f"its key is refused: {message}", where=endpoint.where, fix=fix)
        if status in (400, 413, 422):
            return self._about_request(endpoint, quirks, text, message)
        if status == 404:
            fix = "check the judge's model, and its url up to /v1"
            return refused(f"this model or address does not exist: {message}", where=endpoint.where, fix=fix)
        return refused(message, where=endpoint.where)

    def _about_request(self, endpoint: JudgeEndpoint, quirks: ModelQuirks, text: str, message: str) -> Exception:
        words = text.lower()
        if any(word in words for word in _TOO_LONG):
            return refused(
                f"the rollout is longer than the judge's context: {message}",
                where=endpoint.where,
                fix="use a judge with a longer context, or shorten rollouts (max_turns, max_tokens)",
            )
        if any(word in words for word in _FILTERED):
            return unreadable(f"it does not judge this rollout: {message}", where=endpoint.where)
        if "max_completion_tokens" in words and quirks.tokens_field == "max_tokens":
            return _Again(quirks=replace(quirks, tokens_field="max_completion_tokens"))
        if quirks.schema and any(word in words for word in _NO_SCHEMA):
            log.info("a judge accepts no schema; its answers are read without one", judge=endpoint.where, reason=text)
            return _Again(quirks=replace(quirks, schema=False))
        return refused(message, where=endpoint.where)


def read_reply(content: bytes) -> _Reply:
    """Read the body of a 200. Raises `ReplyNotJson`."""
    try:
        body: Any = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ReplyNotJson(f"its answer is not JSON ({error})") from error
    usage = _get(body, "usage")
    tokens = [value if isinstance(value := _get(usage, name), int) and value > 0 else 0 for name in _TOKEN_COUNTS]
    try:
        choice = body["choices"][0]
        reply = choice["message"].get("content")
        cut = choice.get("finish_reason") == "length"
    except (KeyError, IndexError, TypeError, AttributeError):
        return _Reply(None, tokens[0], tokens[1])
    if isinstance(reply, list):
        reply = "".join(str(part.get("text", "")) for part in reply if isinstance(part, dict))
    return _Reply(ChatAnswer(text=reply if isinstance(reply, str) else "", cut=cut), tokens[0], tokens[1])


def _get(fields: Any, name: str) -> Any:
    return cast(dict[str, Any], fields).get(name) if isinstance(fields, dict) else None


def _retry_after(value: str | None) -> float | None:
    """Return the seconds of a Retry-After: the number, or the time until the date."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, TypeError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def read_refusal(content: bytes) -> str:
    """Read the beginning of an error's text."""
    text = content[:_MAX_READ].decode(errors="replace")
    try:
        body: Any = msgspec.json.decode(content)
        error = body.get("error", body)
        message = error.get("message") if isinstance(error, dict) else error
        code = error.get("code") if isinstance(error, dict) else None
        if isinstance(message, str):
            text = f"{message} ({code})" if isinstance(code, str) and code not in message else message
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, AttributeError):
        pass
    return text[:_MAX_READ]


def _shown(text: str, key: str) -> str:
    """Return the words of an error, shortened, without the key."""
    text = " ".join(text.split())
    if key:
        text = text.replace(key, "…")
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
