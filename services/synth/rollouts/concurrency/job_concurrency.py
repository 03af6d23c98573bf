"""The concurrency of one job: its limiter, kept at the limit that its controller sets."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from synth.rollouts.concurrency.controller import ConcurrencyController, Overload
from synth.rollouts.concurrency.limiter import Occupancy, Priority, PriorityLimiter
from synth.runtime import logs

log = logs.get("concurrency")


class JobConcurrency:
    """The slots at one job's task app, and the controller that learns how many there should be."""

    def __init__(self, bound: int, *, engine_queue: Callable[[], tuple[int, int]] = lambda: (0, 0)) -> None:
        """bound: the most rollouts at the task app at once.

        engine_queue: how many requests run in the engines that serve the job, and how many wait there.
        """
        self._controller = ConcurrencyController(bound)
        self._limiter = PriorityLimiter(self._controller.limit)
        self._engine_queue = engine_queue
        self._rising = True

    @property
    def limit(self) -> int:
        return self._controller.limit

    @property
    def in_use(self) -> int:
        """Slots that are taken now."""
        return self._limiter.in_use

    @property
    def halved(self) -> Counter[Overload]:
        """The number of halvings of the limit so far, by cause."""
        return self._controller.halved

    def occupancy(self) -> Occupancy:
        """Return the use of the slots up to now; the difference of two readings is the use between them."""
        return self._limiter.occupancy()

    def acquire(self, priority: Priority) -> AbstractAsyncContextManager[None]:
        """Hold a slot while the block runs."""
        return self._limiter.acquire(priority)

    def record_try(self, *, started: float, overload: Overload | None) -> None:
        """Record that a try of a rollout has ended, which still holds its slot. started: by `time.monotonic`."""
        now = time.monotonic()
        self._controller.record_try(now, started=started, full=self._limiter.full, overload=overload)
        running, waiting = self._engine_queue()
        self._controller.record_queue(now, running=running, waiting=waiting)
        self._apply_limit()

    def record_step(self, *, waiting: int, busy: float) -> None:
        """Record that the trainer has made a step, with the arguments of `ConcurrencyController.record_step`."""
        self._controller.record_step(time.monotonic(), waiting=waiting, busy=busy)
        self._apply_limit()

    def _apply_limit(self) -> None:
        controller = self._controller
        self._limiter.resize(controller.limit)
        if controller.rising != self._rising:
            self._rising = controller.rising
            cause = None if controller.rising or controller.cause is None else controller.cause.value
            log.info("concurrency turns", rising=controller.rising, limit=controller.limit, cause=cause)
