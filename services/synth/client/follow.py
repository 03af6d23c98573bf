"""Read the events of a job in order, each exactly once, across lost connections.

The cursor is the sequence of the last event that was returned; a new connection continues after it. If a proxy
buffers streams, so that no event arrives, the follower polls pages instead.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field

import httpx

from synth.api.schemas import EventPage, EventView, JobWithConfig
from synth.api.sse import SseEvent, SseReader
from synth.client.api import Api
from synth.client.retries import backoff
from synth.console.errors import CliError, TimedOut, Unreachable
from synth.jobs.lifecycle import TERMINAL, TERMINAL_FACTS

# A backend pings every 15 s at most (its `ping_s`), so three missing pings are a dead connection.
_SILENCE_S = 45.0
# Streams that end without an event before the follower polls pages: it then assumes a proxy that buffers streams.
_MAX_EMPTY_STREAMS = 3
#: Events of one request; the next page follows, so that nothing is left out.
PAGE = 500


@dataclass
class EventFollower:
    """Follows the events of one job that come after the sequence `after`.

    path: the job's, below the API's root. patience: seconds that an outage may last after the first answer; before it,
    the client's own retry budget applies. deadline: a value of `time.monotonic()`; None for no end. interval: seconds
    between pages while polling. on_away, on_back: called once per outage, with its reason and its length in seconds.
    """

    api: Api
    job_id: str
    path: str
    after: int
    patience: float
    deadline: float | None
    interval: float
    on_away: Callable[[str], None]
    on_back: Callable[[float], None]
    _polling: bool = field(default=False, init=False)
    _ended: bool = field(default=False, init=False)
    _last_answer: float = field(default_factory=time.monotonic, init=False)
    _away: bool = field(default=False, init=False)
    _answered: bool = field(default=False, init=False)
    _tries: int = field(default=0, init=False)
    _empty_streams: int = field(default=0, init=False)

    async def events(self) -> AsyncGenerator[EventView]:
        """Yield the job's events until it has ended. Raises `Unreachable`, `NotFound`, `NotAuthorised`, `TimedOut`."""
        while not self._ended:
            self._check_deadline()
            try:
                async with aclosing(self._pages() if self._polling else self._stream()) as events:
                    async for event in events:
                        yield event
            except Unreachable as error:
                await self._wait_or_give_up(error)
            except httpx.TransportError as error:
                await self._wait_or_give_up(Unreachable(f"the connection broke ({error})", where=self.api.root))

    async def _stream(self) -> AsyncGenerator[EventView]:
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(self.after)}
        reader, answered = SseReader(), False
        try:
            async with self.api.stream(
                "GET", f"{self.path}/events", headers=headers, limit=self._timeout(), budget=0
            ) as reply:
                if reply.status_code == 204:
                    self._ended = True
                    return
                if not reply.headers.get("content-type", "").startswith("text/event-stream"):
                    self._polling = True
                    return
                self._reset_patience()
                async for piece in self.api.transport.pieces(reply):
                    for sse in reader.feed(piece):
                        self._reset_patience()
                        self._check_deadline()
                        answered = True
                        if sse is None:
                            continue
                        if sse.event == "end":
                            self._ended = True
                            return
                        for event in self._take(sse):
                            yield event
        except httpx.ReadTimeout:
            self._check_deadline()
            raise
        except CliError as error:
            await self._retry_if_passing(error)
            return
        # It closed without `end`: a restart of the backend, or of something between.
        self._empty_streams = 0 if answered else self._empty_streams + 1
        self._polling = self._empty_streams >= _MAX_EMPTY_STREAMS
        await self.api.transport.sleep(backoff(0 if answered else self._empty_streams))

    def _take(self, sse: SseEvent) -> Iterator[EventView]:
        if not sse.id.isdigit():
            return
        event = self.api.decode(sse.data, EventView)
        if event.seq > self.after:
            self.after = event.seq
            yield event

    async def _pages(self) -> AsyncGenerator[EventView]:
        params = {"after": self.after, "limit": PAGE}
        try:
            page = await self.api.request("GET", f"{self.path}/events", EventPage, params=params)
        except CliError as error:
            await self._retry_if_passing(error)
            return
        self._reset_patience()
        for event in page.events:
            if event.seq > self.after:
                self.after = event.seq
                yield event
                self._ended = self._ended or event.type in TERMINAL_FACTS
        if not page.events and (await self.api.request("GET", self.path, JobWithConfig)).state in TERMINAL:
            self._ended = True
        elif not page.more and not self._ended:
            await self.api.transport.sleep(self.interval)

    def _timeout(self) -> httpx.Timeout:
        left = _SILENCE_S if self.deadline is None else max(0.05, self.deadline - time.monotonic())
        return httpx.Timeout(min(_SILENCE_S, left), connect=5.0)

    def _reset_patience(self) -> None:
        if self._away:
            self._away = False
            self.on_back(time.monotonic() - self._last_answer)
        self._last_answer, self._tries, self._answered = time.monotonic(), 0, True

    async def _retry_if_passing(self, error: CliError) -> None:
        """Wait before the next try, or raise an error that no retry can cure."""
        if type(error) is not CliError and not isinstance(error, Unreachable):
            raise error
        await self._wait_or_give_up(error)

    async def _wait_or_give_up(self, error: CliError) -> None:
        self._check_deadline()
        delay = backoff(self._tries)
        patience = self.patience if self._answered else min(self.patience, self.api.retry_budget)
        if time.monotonic() + delay > self._last_answer + patience:
            raise error
        if self._answered and not self._away:
            self._away = True
            self.on_away(error.problems[0].what)
        self._tries += 1
        await self.api.transport.sleep(delay)

    def _check_deadline(self) -> None:
        if self.deadline is not None and time.monotonic() >= self.deadline:
            fix = f"the job itself goes on; watch it with: synthctl jobs watch {self.job_id}"
            raise TimedOut(f"{self.job_id} has not ended in the time allowed", fix=fix)
