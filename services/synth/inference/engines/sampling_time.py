"""The time that a rollout, or a chat beside any rollout, has for sampling.

It is no wall clock. It runs while one of the requests is sampled, or while none is open and the task app works. It
stands still while all open requests wait: in the engine's queue, for another's turn at the device, or for new weights.
So no policy is cut off because it had to wait. All of it happens on one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager

from synth.errors import Transient


def late_completion() -> Transient:
    """Return the error of a completion whose time was over before a token was sampled, with the name of its limit."""
    return Transient(
        "no token of the completion was sampled in its time; a rollout's may take the rest of the job's "
        "rollout_timeout_s, any other SYNTH_COMPLETION_S"
    )


class SamplingTime:
    """The time that a rollout or a chat has left.

    over_after_s: how long an engine may take to end a request whose time is over; then the engine counts as hung.
    """

    def __init__(self, seconds: float, *, over_after_s: float = 600.0) -> None:
        self._loop = asyncio.get_running_loop()
        self._ends = self._loop.time() + seconds
        self._over_after_s = over_after_s
        self._stood_still = 0.0
        self._still_since: float | None = None
        self._open: set[RequestTime] = set()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def seconds_left(self) -> float:
        """At most 0 when the time is over."""
        return self._ends - (self._loop.time() if self._still_since is None else self._still_since)

    @property
    def stood_still(self) -> float:
        """Seconds that did not count, until now."""
        still = 0.0 if self._still_since is None else self._loop.time() - self._still_since
        return self._stood_still + still

    @contextmanager
    def request(self, cut_off: Callable[[], None]) -> Iterator[RequestTime]:
        """Yield the `RequestTime` of one request, from its call until its end.

        cut_off: called when the time is over: the engine then ends the request with the tokens sampled so far.
        """
        request = RequestTime(self, cut_off)
        self._open.add(request)
        self.update()
        try:
            yield request
        finally:
            self._open.discard(request)
            self.update()

    def end(self) -> None:
        """Be over now."""
        self._ends = self._loop.time()
        self.update()

    def update(self) -> None:
        """Stand still or run, as the open requests say, and set the alarm."""
        now = self._loop.time()
        still = bool(self._open) and all(request.held for request in self._open)
        if still and self._still_since is None:
            self._still_since = now
        elif not still and self._still_since is not None:
            self._stood_still += now - self._still_since
            self._ends += now - self._still_since
            self._still_since = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._open and not still:
            self._timer = self._loop.call_at(self._ends, self._cut_off)

    def _cut_off(self) -> None:
        self._timer = None
        for request in list(self._open):
            request.end(self._loop.time() + self._over_after_s)


class RequestTime:
    """The part that one request has in a `SamplingTime`."""

    def __init__(self, time: SamplingTime, cut_off: Callable[[], None]) -> None:
        self._time = time
        self._cut_off = cut_off
        self._holds = 0
        self._gives_up: float | None = None
        self._waiting: asyncio.Timeout | None = None

    @property
    def held(self) -> bool:
        """Whether it waits for something other than the policy, so that its time stands still."""
        return self._holds > 0

    @property
    def is_over(self) -> bool:
        """Whether it was cut off."""
        return self._gives_up is not None

    def hold(self) -> None:
        """Add a reason to wait; each needs its own `release`."""
        self._holds += 1
        if self._holds == 1:
            self._time.update()

    def release(self) -> None:
        """Remove one reason to wait."""
        self._holds -= 1
        if self._holds == 0:
            self._time.update()

    def end(self, gives_up: float) -> None:
        """Have the engine end the request. gives_up: by the event loop's clock, when an engine counts as hung."""
        if self._gives_up is None:
            self._gives_up = gives_up
            if self._waiting is not None:
                self._waiting.reschedule(gives_up)
            self._cut_off()

    @asynccontextmanager
    async def limit(self) -> AsyncIterator[None]:
        """Limit each wait for the engine: raises `TimeoutError` if the engine does not end a cut-off request."""
        async with asyncio.timeout_at(self._gives_up) as self._waiting:
            try:
                yield
            finally:
                self._waiting = None


class OpenTimes:
    """The times of one engine's open requests, which it holds together: while it sleeps, or takes new weights."""

    def __init__(self) -> None:
        self._open: set[RequestTime] = set()
        self._holds = 0

    @contextmanager
    def request(self, time: SamplingTime, cut_off: Callable[[], None]) -> Iterator[RequestTime]:
        """As `SamplingTime.request`, held as often as the engine is. Raises `Transient` if no time is left."""
        if time.seconds_left <= 0:
            raise late_completion()
        with time.request(cut_off) as request:
            for _ in range(self._holds):
                request.hold()
            self._open.add(request)
            try:
                yield request
            finally:
                self._open.discard(request)

    def hold(self) -> None:
        """Hold every request, those to come too, until `release`."""
        self._holds += 1
        for request in self._open:
            request.hold()

    def release(self) -> None:
        """Undo one `hold`."""
        self._holds -= 1
        for request in self._open:
            request.release()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold every request within the context."""
        self.hold()
        try:
            yield
        finally:
            self.release()


class QueuedTimes:
    """The times of requests in a queue of which only the length is known: the latest ones wait.

    vLLM schedules in the order of arrival and reports at each step how many requests wait. A request that it has
    preempted counts as running.
    """

    def __init__(self) -> None:
        self._queued: dict[RequestTime, bool] = {}

    @contextmanager
    def request(self, request: RequestTime) -> Iterator[None]:
        """Hold a request from the moment at which it joins the queue; it is counted until its end."""
        self._queued[request] = True
        request.hold()
        try:
            yield
        finally:
            if self._queued.pop(request):
                request.release()

    def update(self, waiting: int) -> None:
        """Mark the last `waiting` requests of the queue as held, and all others as running."""
        running = len(self._queued) - waiting
        self._set(list(self._queued)[: max(0, running)], held=False)
        self._set(list(self._queued)[max(0, running) :], held=True)

    def _set(self, requests: Iterable[RequestTime], *, held: bool) -> None:
        for request in requests:
            if self._queued[request] is not held:
                self._queued[request] = held
                request.hold() if held else request.release()
