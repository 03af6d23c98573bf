"""Waits for a call's turn at its API, over all replicas: the record of its limits is changed by compare-and-set.

Invariants. A call is made at its moment, or a quarter of `margin_s` later at most: one that wakes too late gives its
turn back and waits for another. What one replica has running is renewed while it runs, and forgotten when the replica
is silent.
"""

# nats-py annotates parts of itself not at all.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec
from nats.errors import Error as NatsError
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError
from nats.js.kv import KeyValue

from synth.bus.connection import Connection
from synth.bus.server.topology import JUDGING
from synth.judge.api.limits import ApiLimits, LimitState, Wish, give_back, grant, next_look
from synth.runtime import logs

log = logs.get("judge limits")

_POLL_S = 0.05
_RENEW_S = 5.0
_HOLD_S = 20.0
#: The share of the margin that a call may leave late; the rest is for its way through the network.
_LATE_SHARE = 0.25


class ApiPaused(Exception):
    """The API sent a pause that is longer than a call waits. seconds: until its end."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"paused for {seconds:.1f} s")
        self.seconds = seconds


@dataclass(eq=False)
class _Waiting:
    wish: Wish
    moment: asyncio.Future[float]


@dataclass(eq=False)
class ApiLimiter:
    """The turns of one API. key: the record's; replica: this process, never the same again after a restart."""

    bus: Connection
    key: str
    limits: ApiLimits
    replica: str
    margin_s: float
    patience_s: float
    clock: Callable[[], float] = time.time
    late: int = 0
    _waiting: deque[_Waiting] = field(default_factory=deque[_Waiting])
    _ended: Counter[str] = field(default_factory=Counter[str])
    _running: int = 0
    _pause: float = 0.0
    _work: asyncio.Event = field(default_factory=asyncio.Event)
    _task: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        """Whether nothing of this replica waits or runs at the API."""
        return not (self._waiting or self._running or self._ended or self._task)

    @asynccontextmanager
    async def turn(self, wish: Wish) -> AsyncIterator[None]:
        """Hold a turn: entered when the call may be made, left when it is over. Raises `ApiPaused`."""
        await self._take(wish)
        try:
            yield
        finally:
            self._release(wish)

    def pause(self, seconds: float) -> None:
        """Let no replica make a call for so long, because the API sent this pause."""
        self._pause = max(self._pause, self.clock() + seconds)
        self._wake()

    async def _take(self, wish: Wish) -> None:
        while True:
            waiting = _Waiting(wish, asyncio.get_running_loop().create_future())
            self._waiting.append(waiting)
            self._wake()
            try:
                moment = await waiting.moment
            except asyncio.CancelledError:
                self._withdraw(waiting)
                raise
            try:
                await asyncio.sleep(max(0.0, moment - self.clock()))
            except asyncio.CancelledError:
                self._release(wish)
                raise
            limited = wish.rate is not None or self.limits.rate is not None
            if not limited or self.clock() - moment <= _LATE_SHARE * self.margin_s:
                return
            self.late += 1
            self._release(wish)

    def _withdraw(self, waiting: _Waiting) -> None:
        if waiting in self._waiting:
            self._waiting.remove(waiting)
        elif waiting.moment.done() and not waiting.moment.cancelled() and waiting.moment.exception() is None:
            # It was given its turn in the moment in which it went away.
            self._release(waiting.wish)

    def _release(self, wish: Wish) -> None:
        self._running -= 1
        self._ended[wish.job] += 1
        self._wake()

    def _wake(self) -> None:
        self._work.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        """Serve the waiting calls, for as long as any call waits or runs."""
        renew_at = self.clock() + _RENEW_S
        try:
            while self._waiting or self._running or self._ended or self._pause:
                # Events after this line are handled in the next turn.
                self._work.clear()
                wait_s = max(0.0, renew_at - self.clock())
                if self._waiting or self._ended or self._pause or not wait_s:
                    wait_s = await self._step()
                    renew_at = self.clock() + _RENEW_S
                await self._sleep(min(wait_s, _RENEW_S))
        finally:
            self._task = None
            for waiting in self._waiting:
                # The loop ends with waiting calls only after an error in this code.
                waiting.moment.cancel()

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._work.wait()
        except TimeoutError:
            pass

    async def _step(self) -> float:
        """Change the record once; returns the seconds until the next change, if nothing happens before."""
        try:
            return await self._change()
        except (NatsError, TimeoutError) as error:
            # The record holds the running calls of all replicas: until it can be read, no call is made.
            log.warning("the limits of a judge cannot be read", key=self.key, error=repr(error))
            return 1.0

    async def _change(self) -> float:
        bucket = await self.bus.js.key_value(JUDGING)
        state, revision = await self._read(bucket)
        now = self.clock()
        ended, pause = Counter(self._ended), self._pause
        waiting = [w for w in self._waiting if not w.moment.done()]
        give_back(state, ended, replica=self.replica)
        state.paused_until = max(state.paused_until, pause)
        left = state.paused_until - now
        if left > self.patience_s:
            for one in waiting:
                one.moment.set_exception(ApiPaused(left))
            self._waiting.clear()
            waiting = []
        moments = grant(
            state,
            [w.wish for w in waiting],
            self.limits,
            replica=self.replica,
            now=now,
            margin_s=self.margin_s,
            hold_s=_HOLD_S,
        )
        if not any(held.jobs for name, held in state.held.items() if name == self.replica):
            state.held.pop(self.replica, None)
        try:
            await self._write(bucket, state, revision)
        except KeyWrongLastSequenceError:
            return random.uniform(0.0, 0.005)
        self._ended -= ended
        if self._pause == pause:
            self._pause = 0.0
        for one, moment in zip(waiting, moments, strict=True):
            if moment is not None:
                self._give(one, moment)
        still = [w.wish for w in self._waiting]
        return next_look(state, still, now=self.clock(), poll_s=_POLL_S) if still else _RENEW_S

    def _give(self, waiting: _Waiting, moment: float) -> None:
        if waiting in self._waiting:
            self._waiting.remove(waiting)
            if not waiting.moment.done():
                self._running += 1
                waiting.moment.set_result(moment)
                return
        # It went away while the record was written.
        self._ended[waiting.wish.job] += 1
        self._work.set()

    async def _read(self, bucket: KeyValue) -> tuple[LimitState, int]:
        try:
            entry = await bucket.get(self.key)
        except KeyNotFoundError:
            return LimitState(), 0
        return msgspec.json.decode(entry.value or b"{}", type=LimitState), entry.revision or 0

    async def _write(self, bucket: KeyValue, state: LimitState, revision: int) -> None:
        body = msgspec.json.encode(state)
        if revision:
            await bucket.update(self.key, body, last=revision)
        else:
            await bucket.create(self.key, body)
