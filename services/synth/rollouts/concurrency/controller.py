"""The limit on a job's concurrent rollouts, by additive increase and multiplicative decrease (AIMD, as in TCP).

The limit is halved on overload: the task app answers 429 or 503 or times out, the engine's queue is longer than its
batch, batches wait for the trainer, or a rollout returns tokens that are too old. Below the slow-start threshold the
limit doubles with each round of rollouts; above it, a round adds a sixteenth of the bound. A halving sets the threshold
to the new limit. A halving for a backlog does not, because a backlog is no limit of the task app: after it, the limit
may at most double with each step of the trainer.

Invariants. 1 ≤ limit ≤ bound. A try that began before the last halving cannot halve again: one cause counts once.
Nothing here decides which rollouts run, only when. There is no clock inside: the caller passes the time, in seconds.
"""

from __future__ import annotations

import math
from collections import Counter
from enum import StrEnum

#: The limit at which a job begins: what one HTTP client carries well. Three rounds later it is 64.
INITIAL_LIMIT = 8

#: Rounds without overload that bring the limit from 0 to its bound, beyond the threshold.
_ROUNDS = 16

#: How long until a shorter queue shows: replicas announce their queues every 3 s.
_QUEUE_SETTLE_S = 6.0

#: A collector that works less than this share of the time would be fast enough with half the concurrency.
_IDLE_SHARE = 0.4


class Overload(StrEnum):
    """The reason why a limit is halved."""

    REJECTED = "overload"
    """the task app answered 429 or 503"""
    TIMEOUT = "timeout"
    """the task app did not answer in time"""
    QUEUE = "queue"
    """the engine's queue is longer than its batch"""
    BACKLOG = "backlog"
    """batches wait for the trainer"""
    STALE = "stale"
    """a rollout came back with tokens that are too old to be trained"""


class ConcurrencyController:
    """The limit on one job's rollouts at once.

    rising: the direction of the last change. halved: the number of halvings, by cause. cause: the last one's cause.
    """

    def __init__(self, bound: int) -> None:
        """bound: the user's limit, at least 1."""
        self._bound = bound
        self._limit = float(min(INITIAL_LIMIT, bound))
        self._increment = max(1.0, bound / _ROUNDS)
        self._slow_start_threshold = self._ceiling = float(bound)
        self._halved_at = -math.inf
        self._backlog = 0
        self._batch_ready = False
        self._backlog_halved = False
        self._queued = False
        self.rising = True
        self.halved: Counter[Overload] = Counter()
        self.cause: Overload | None = None

    @property
    def limit(self) -> int:
        return int(self._limit)

    def record_try(self, now: float, *, started: float, full: bool, overload: Overload | None = None) -> None:
        """Record the end of a try.

        started: when it began. full: whether the limit was reached, so that a higher limit would have run more.
        """
        if overload is not None:
            # A try that began before the last halving met the load for which the limit was halved.
            if started >= self._halved_at:
                self._halve(now, overload)
        elif full and not self._batch_ready and not self._queued and self._limit < self._ceiling:
            more = 1.0 if self._limit < self._slow_start_threshold else self._increment / self._limit
            self._limit = min(self._ceiling, self._limit + more)
            self.rising = True

    def record_queue(self, now: float, *, running: int, waiting: int) -> None:
        """Record the requests in the batches and in the queues of the engines that serve this job."""
        self._queued = 4 * waiting > running
        if waiting > max(1, running) and now - self._halved_at >= _QUEUE_SETTLE_S:
            self._halve(now, Overload.QUEUE)

    def record_step(self, now: float, *, waiting: int, busy: float) -> None:
        """Record that the trainer has made a step.

        waiting: finished batches beyond the one that it trains next; -1 if it has to wait for that one.
        busy: the share of the time since the last step in which a rollout ran.
        """
        before, self._backlog = self._backlog, waiting
        self._batch_ready = waiting >= 0
        # A backlog that shrinks needs no further halving, and the effect of a halving shows one step later.
        self._backlog_halved = 1 < waiting >= before and not self._backlog_halved
        if self._backlog_halved or (waiting >= 0 and busy < _IDLE_SHARE):
            self._halve(now, Overload.BACKLOG)
        # A trainer that has to wait again needs a higher limit, but not the whole bound at once: the next step shows.
        if self.halved[Overload.BACKLOG]:
            self._ceiling = min(float(self._bound), 2 * self._limit)

    def _halve(self, now: float, overload: Overload) -> None:
        self._limit = max(1.0, self._limit / 2)
        self._halved_at = now
        self.rising = False
        if overload is not Overload.BACKLOG:
            self._slow_start_threshold = self._limit
        self.cause = overload
        self.halved[overload] += 1
