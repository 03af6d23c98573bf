"""The limits on an organisation's request rate, and on its open streams and uploads at this gateway.

The counts are per process, because a limit that all gateways share would cost each request a round trip.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from synth.errors import Problem
from synth.gateway.errors import ApiError
from synth.gateway.limits.headers import Left, limit_headers, note_limit
from synth.gateway.limits.settings import LimitSettings, OrgLimits

_SLOT_RETRY_S = 5
#: Organisations whose requests are counted; beyond them, organisations with their whole burst left are forgotten.
_MAX_BUCKETS = 10_000


def limit_reached(
    what: str, *, quota: int, policy: str, retry_after: int, setting: str = "", fix: str = "", wait: bool = True
) -> ApiError:
    """Return the 429 of a limit. wait: whether waiting alone helps; else the published clients do not retry it.

    setting: the variable that sets the limit; `SYNTH_ORG_…` with the name of the policy by default.
    """
    limit = f"at most {quota:,} ({setting or f'SYNTH_ORG_{policy.upper()}'})"
    problem = Problem(what=what, expected=limit, fix=fix or "wait, or have the operator raise the limit")
    headers = limit_headers({policy: Left(quota, 0, reset_s=retry_after)})
    if not wait:
        headers["X-Should-Retry"] = "false"
    return ApiError(
        429, problem.text(), code=f"{policy}_limit", problems=[problem], retry_after=retry_after, headers=headers
    )


@dataclass
class _Bucket:
    limits: OrgLimits
    tokens: float
    filled_at: float

    def refill(self, now: float) -> None:
        gained = (now - self.filled_at) * self.limits.requests_per_s
        self.tokens = min(self.limits.request_burst, self.tokens + gained)
        self.filled_at = now

    @property
    def left(self) -> Left:
        window = max(1, math.ceil(self.limits.request_burst / self.limits.requests_per_s))
        full_in = math.ceil((self.limits.request_burst - self.tokens) / self.limits.requests_per_s)
        return Left(self.limits.request_burst, math.floor(self.tokens), reset_s=full_in, window_s=window)


@dataclass
class Admission:
    """The requests, streams and uploads of organisations at this gateway."""

    settings: LimitSettings
    now: Callable[[], float] = time.monotonic
    _buckets: dict[str, _Bucket] = field(default_factory=dict[str, _Bucket])
    _streams: Counter[str] = field(default_factory=Counter[str])
    _uploads: Counter[str] = field(default_factory=Counter[str])

    def admit(self, org: str) -> None:
        """Count one request. Raises a 429."""
        bucket, now = self._bucket(org), self.now()
        bucket.refill(now)
        if bucket.tokens < 1:
            seconds = (1 - bucket.tokens) / bucket.limits.requests_per_s
            note_limit("requests", bucket.left)
            raise limit_reached(
                "your organisation's requests come too fast",
                setting="SYNTH_ORG_REQUESTS_PER_S, SYNTH_ORG_REQUEST_BURST",
                quota=bucket.limits.request_burst,
                policy="requests",
                retry_after=max(1, math.ceil(seconds)),
            )
        bucket.tokens -= 1
        note_limit("requests", bucket.left)

    def stream(self, org: str) -> AbstractContextManager[None]:
        """Hold the place of one event stream. Raises a 429."""
        quota = self.settings.limits_of(org).streams
        return self._slot(self._streams, org, quota, what="event streams", setting="SYNTH_ORG_STREAMS")

    def upload(self, org: str) -> AbstractContextManager[None]:
        """Hold the place of one upload. Raises a 429."""
        quota = self.settings.limits_of(org).uploads
        return self._slot(self._uploads, org, quota, what="uploads", setting="SYNTH_ORG_UPLOADS")

    def used(self, org: str) -> dict[str, float]:
        """Return the organisation's open streams and uploads, and the used part of its burst, by the limits' names."""
        bucket = self._bucket(org)
        bucket.refill(self.now())
        burst = math.ceil(bucket.limits.request_burst - bucket.tokens)
        return {"request_burst": burst, "streams": self._streams[org], "uploads": self._uploads[org]}

    @contextmanager
    def _slot(self, taken: Counter[str], org: str, quota: int, *, what: str, setting: str) -> Generator[None]:
        if taken[org] >= quota:
            raise limit_reached(
                f"your organisation has {taken[org]:,} {what} open at this gateway",
                setting=setting,
                quota=quota,
                policy=what.replace(" ", "_"),
                retry_after=_SLOT_RETRY_S,
                fix="close some of them, or have the operator raise the limit",
            )
        taken[org] += 1
        note_limit(what.replace(" ", "_"), Left(quota, quota - taken[org]))
        try:
            yield
        finally:
            taken[org] -= 1
            if not taken[org]:
                del taken[org]

    def _bucket(self, org: str) -> _Bucket:
        bucket = self._buckets.get(org)
        if bucket is None:
            now = self.now()
            if len(self._buckets) >= _MAX_BUCKETS:
                self._forget_full(now)
            limits = self.settings.limits_of(org)
            bucket = self._buckets[org] = _Bucket(limits, limits.request_burst, now)
        return bucket

    def _forget_full(self, now: float) -> None:
        for org, bucket in list(self._buckets.items()):
            bucket.refill(now)
            if bucket.tokens >= bucket.limits.request_burst:
                del self._buckets[org]
