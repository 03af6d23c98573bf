"""The circuit breaker of one API: after failures in a row it is left alone for a while, then tried with one call."""

from __future__ import annotations

import time
from collections.abc import Callable


class CircuitOpen(Exception):
    """The API has failed too often in a row. seconds: until it is tried again."""

    def __init__(self, seconds: float, reason: str) -> None:
        super().__init__(reason)
        self.seconds = seconds


class CircuitBreaker:
    """Opens after `failures` in a row, for `open_s` seconds, doubled at each probe that fails, up to `max_open_s`."""

    def __init__(
        self, *, failures: int, open_s: float, max_open_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._failures = failures
        self._open_s = open_s
        self._max_open_s = max_open_s
        self._clock = clock
        self._in_a_row = 0
        self._open_for = 0.0
        self._opened_at = 0.0
        self._probing = False
        self._reason = ""

    @property
    def open(self) -> bool:
        """Whether it has been left alone since its last failure."""
        return self._open_for > 0

    @property
    def quiet(self) -> bool:
        """Whether a new one would be the same."""
        return not (self.open or self._in_a_row or self._probing)

    def check(self) -> None:
        """Raise `CircuitOpen` if a call is not allowed now."""
        if not self.open:
            return
        left = self._opened_at + self._open_for - self._clock()
        if left > 0 or self._probing:
            raise CircuitOpen(left if left > 0 else self._open_s, self._reason)

    def enter(self) -> None:
        """Record that a call is about to be made; the first one after the pause is the probe. Raises `CircuitOpen`."""
        self.check()
        self._probing = self.open

    def succeeded(self) -> None:
        """Record that a call was answered, with any status."""
        self._in_a_row, self._open_for, self._probing = 0, 0.0, False

    def failed(self, reason: str) -> None:
        """Record that a call got no answer."""
        self._in_a_row += 1
        self._reason = reason
        if self._probing or (not self.open and self._in_a_row >= self._failures):
            self._open_for = min(self._max_open_s, 2 * self._open_for if self.open else self._open_s)
            self._opened_at = self._clock()
        self._probing = False

    def abandoned(self) -> None:
        """Record that a call was given up before it had an answer, so that the state of the API is not known."""
        self._probing = False
