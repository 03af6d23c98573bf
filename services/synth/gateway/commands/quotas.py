"""The limits on an organisation's stored items: jobs, bytes of files, keys. They are counted where they are stored."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager

from synth.api.schemas import Limit
from synth.events.catalogue import MAX_EVENT_BODY_BYTES
from synth.gateway.deps import Gateway
from synth.gateway.limits.admission import limit_reached
from synth.gateway.limits.headers import Left, note_limit
from synth.gateway.read_model.tables.device_time import DAY_S, device_seconds
from synth.gateway.read_model.tables.org_totals import event_bytes, pending_files, stored_bytes
from synth.gateway.read_model.usage import count_jobs, count_unvalidated

_JOB_RETRY_S = 30
_KEPT_RETRY_S = 60
#: The divisor of a log limit that gives the most bytes of one job's validation.
_VALIDATION_SHARE = 8
#: The items that each limit counts.
_WHAT = {
    "request_burst": "requests at once",
    "streams": "event streams",
    "uploads": "uploads",
    "jobs_live": "jobs that have not ended",
    "jobs_queued": "jobs that nobody has started yet",
    "file_bytes": "bytes of files and logs",
    "log_bytes": "bytes of the event log",
    "files_pending": "files that are not checked yet",
    "keys": "live API keys",
    "bus_keys": "live bus keys",
    "gpu_seconds": "GPU-seconds",
}
_AT_GATEWAY = frozenset({"request_burst", "streams", "uploads"})


async def list_limits(gateway: Gateway, org: str) -> list[Limit]:
    """Return the limits of an organisation, and its usage."""
    limits, model = gateway.settings.limits_of(org), gateway.read_model
    jobs, live = count_jobs(model, org), [key for key in await gateway.secrets.api_keys(org) if key.active]
    used = gateway.admission.used(org) | {
        "jobs_live": jobs.live,
        "jobs_queued": jobs.queued,
        "file_bytes": stored_bytes(model.db, org),
        "log_bytes": event_bytes(model.db, org),
        "files_pending": pending_files(model.db, org),
        "keys": len(live),
        "bus_keys": sum(key.bus for key in live),
        "gpu_seconds": device_seconds(model.db, org, now=time.time(), days=limits.gpu_days),
    }
    return [
        Limit(
            name=name,
            what=what if name != "gpu_seconds" else f"{what} in {limits.gpu_days} days",
            used=used[name],
            limit=getattr(limits, name) if name != "log_bytes" else _log_quota(gateway, org),
            setting=f"SYNTH_ORG_{name.upper()}",
            at="gateway" if name in _AT_GATEWAY else "cluster",
        )
        for name, what in _WHAT.items()
    ]


def check_jobs(gateway: Gateway, org: str) -> None:
    """Raise a 429 if the organisation may have no further job."""
    jobs = count_jobs(gateway.read_model, org)
    fix = "wait until some have ended, cancel some, or have the operator raise the limit"
    _check_count(gateway, org, jobs.queued, "jobs_queued", fix=fix, retry_after=_JOB_RETRY_S)
    _check_count(gateway, org, jobs.live, "jobs_live", fix=fix, retry_after=_JOB_RETRY_S)


def check_gpu_seconds(gateway: Gateway, org: str) -> None:
    """Raise a 429 if the organisation's jobs have taken all of their GPU-seconds."""
    limits, now = gateway.settings.limits_of(org), time.time()
    if limits.gpu_seconds is None:
        return
    used = device_seconds(gateway.read_model.db, org, now=now, days=limits.gpu_days)
    window = round(limits.gpu_days * DAY_S)
    note_limit("gpu_seconds", Left(int(limits.gpu_seconds), int(limits.gpu_seconds - used), window_s=window))
    if used >= limits.gpu_seconds:
        raise limit_reached(
            f"your organisation's jobs have taken {used:,.0f} GPU-seconds in {limits.gpu_days} days",
            quota=int(limits.gpu_seconds),
            policy="gpu_seconds",
            # After that time the first of these days does not count any more.
            retry_after=int(DAY_S - now % DAY_S) + 1,
            fix="wait until days with less count, or have the operator raise the limit",
            wait=False,
        )


def check_file_bytes(gateway: Gateway, org: str, more: int) -> None:
    """Raise a 429 if the organisation's files have no room for `more` bytes. 0: if they have no room at all."""
    quota = gateway.settings.limits_of(org).file_bytes
    stored = stored_bytes(gateway.read_model.db, org)
    note_limit("file_bytes", Left(quota, quota - stored - more))
    if stored + max(more, 1) > quota:
        raise limit_reached(
            f"your organisation's files have {stored:,} bytes, and this one {more:,} at least",
            quota=quota,
            policy="file_bytes",
            retry_after=_KEPT_RETRY_S,
            fix="delete files that are done with, or have the operator raise the limit",
            wait=False,
        )


@contextmanager
def log_room(gateway: Gateway, org: str, size: int, *, job: bool = False) -> Generator[None]:
    """Reserve room in the log for the events of a running command. Raises a 429 if the organisation has no room.

    size: bytes of the events. job: whether they create a job, which will be validated.
    """
    quota, coming = _log_quota(gateway, org), gateway.capacity.coming
    if quota is not None:
        each = min(MAX_EVENT_BODY_BYTES, quota // _VALIDATION_SHARE)
        size += each if job else 0
        unvalidated = count_unvalidated(gateway.read_model, org)
        used, expected = event_bytes(gateway.read_model.db, org), unvalidated * each + coming[org]
        if used + expected + size > quota:
            raise limit_reached(
                f"your organisation's events take {used:,} bytes of the log, {unvalidated:,} jobs that are not "
                f"validated yet and requests under way up to {expected:,} more, and this request up to {size:,}",
                quota=quota,
                policy="log_bytes",
                retry_after=_JOB_RETRY_S if expected else _KEPT_RETRY_S,
                fix="delete jobs that have ended and files that are done with (synthctl jobs rm JOB, synthctl files rm "
                "FILE), which gives their bytes back within a minute, or have the operator raise the limit",
                wait=used + size <= quota,
            )
    coming[org] += size
    try:
        yield
    finally:
        coming[org] -= size
        if not coming[org]:
            del coming[org]


def _log_quota(gateway: Gateway, org: str) -> int | None:
    quota = gateway.settings.limits_of(org).log_bytes
    return gateway.capacity.log_share if quota is None else quota


def check_files_pending(gateway: Gateway, org: str) -> None:
    """Raise a 429 if the organisation may have no further file that waits for its check."""
    count = pending_files(gateway.read_model.db, org)
    fix = "wait until some have been checked, or have the operator raise the limit"
    _check_count(gateway, org, count, "files_pending", fix=fix, retry_after=_JOB_RETRY_S)


def check_bus_keys(gateway: Gateway, org: str, count: int) -> None:
    """Raise a 429 if the organisation, which has `count` live bus keys, may have no more."""
    fix = "revoke those that are done with, or have the operator raise the limit"
    _check_count(gateway, org, count, "bus_keys", fix=fix)


def check_keys(gateway: Gateway, org: str, count: int, *, kind: str) -> None:
    """Raise a 429 if the organisation, which has `count` keys of a kind, may have no more."""
    fix = "remove those that are done with, or have the operator raise the limit"
    _check_count(gateway, org, count, "keys", fix=fix, what=kind)


def _check_count(
    gateway: Gateway, org: str, count: int, name: str, *, fix: str, what: str = "", retry_after: int = _KEPT_RETRY_S
) -> None:
    """Raise a 429 if the count has reached the limit of this name. what: the counted items, if not those of `_WHAT`."""
    quota: int = getattr(gateway.settings.limits_of(org), name)
    note_limit(name, Left(quota, quota - count - 1))
    if count >= quota:
        raise limit_reached(
            f"your organisation has {count:,} {what or _WHAT[name]}",
            quota=quota,
            policy=name,
            retry_after=retry_after,
            fix=fix,
            wait=False,
        )
