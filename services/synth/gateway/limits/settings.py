"""The limits of each organisation: the defaults, and an operator's values for single organisations."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from synth.settings import Settings

_Count = Annotated[int, Field(ge=0)]
_Seconds = Annotated[float | None, Field(ge=0)]


class OrgLimits(BaseModel):
    """The limits of one organisation, each as its setting describes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    requests_per_s: Annotated[float, Field(gt=0)]
    request_burst: Annotated[int, Field(ge=1)]
    streams: _Count
    uploads: _Count
    jobs_live: _Count
    jobs_queued: _Count
    file_bytes: _Count
    log_bytes: Annotated[int | None, Field(ge=0)]
    files_pending: _Count
    keys: _Count
    bus_keys: _Count
    gpu_seconds: _Seconds
    gpu_days: Annotated[int, Field(ge=1)]


class LimitSettings(Settings):
    """The limits of organisations."""

    org_requests_per_s: float = Field(default=1000.0, gt=0)
    """Requests a second of one organisation at this gateway, on average; more get a 429 with the time to retry.
    Calls of rollouts do not count. Each gateway counts for itself: two gateways allow twice as many."""

    org_request_burst: int = Field(default=5000, ge=1)
    """How many requests may arrive at once after a time without requests."""

    org_streams: int = Field(default=5000, ge=0)
    """Event streams that one organisation has open at this gateway."""

    org_uploads: int = Field(default=32, ge=0)
    """Files that one organisation uploads to this gateway at a time."""

    org_jobs_live: int = Field(default=5000, ge=0)
    """Jobs of one organisation that have not ended, paused ones included. Counted in this gateway's read model, so that
    submissions that arrive at several gateways in the same moment may exceed it by their number."""

    org_jobs_queued: int = Field(default=2000, ge=0)
    """Jobs of one organisation that have not started yet."""

    org_file_bytes: int = Field(default=1 << 40, ge=0)
    """Bytes of the files that one organisation has uploaded and not deleted, and of stored logs of its jobs. Checked
    before an upload, so that uploads at the same time may exceed it by their sizes."""

    org_log_bytes: int | None = Field(default=None, ge=0)
    """Bytes of the event log that the events of one organisation may take: at the limit, no job is submitted or resumed
    and no file is uploaded. A job that runs is not limited. Deleted jobs and files count until their events are erased,
    a few seconds later. A job that is not validated yet counts with the bytes that its validation may add: 1 MB, or an
    eighth of this limit. Unset: half of the bytes that `SYNTH_LOG_RESERVE` leaves of `SYNTH_LOG_MAX_BYTES`, so that one
    organisation cannot take the reserve; any number if the log has no limit. Counted as jobs are."""

    org_files_pending: int = Field(default=500, ge=0)
    """Files of one organisation that are uploaded and not checked yet. The files service takes 5,000 files of all
    organisations: keep this limit well below. Counted as jobs are, before an upload and after it."""

    org_keys: int = Field(default=1000, ge=0)
    """Live API keys of one organisation; the same limit applies to its environment keys and to its keys of judges."""

    org_bus_keys: int = Field(default=10, ge=0)
    """Live bus keys of one organisation, which count as API keys too: each may have `SYNTH_BUS_FEEDS` consumers of the
    log."""

    org_gpu_seconds: float | None = Field(default=None, ge=0)
    """GPU-seconds that the jobs of one organisation may take in `SYNTH_ORG_GPU_DAYS`; unset: any number. Beyond it no
    job is submitted or resumed, and running jobs are paused at their last checkpoint, or after their current step. A
    job counts the GPUs that train it, for as long as an attempt has them, and each engine that has loaded its policy,
    until the job is over or paused; a process on a CPU counts as one. An engine counts for each job that it holds. The
    GPU-seconds of a deleted job stay counted; chats do not count."""

    org_gpu_days: int = Field(default=30, ge=1)
    """The days in UTC, with the current one, over which `SYNTH_ORG_GPU_SECONDS` counts."""

    org_limits: dict[str, dict[str, float | None]] = Field(default_factory=dict[str, dict[str, float | None]])
    """Other limits for single organisations, as JSON by organisation id and by the names above without `ORG_`:
    `{"org_…": {"jobs_live": 50, "requests_per_s": 20}}`."""

    @model_validator(mode="after")
    def _check_overrides(self) -> LimitSettings:
        for org in self.org_limits:
            try:
                self.limits_of(org)
            except ValidationError as error:
                first = error.errors()[0]
                name = ".".join(str(part) for part in ("SYNTH_ORG_LIMITS", org, *first["loc"]))
                raise ValueError(f"{name}: {first['msg']}") from None
        return self

    @cached_property
    def _defaults(self) -> dict[str, float | None]:
        return {name: getattr(self, f"org_{name}") for name in OrgLimits.model_fields}

    def limits_of(self, org: str) -> OrgLimits:
        """Return the limits of this organisation."""
        return OrgLimits.model_validate(self._defaults | self.org_limits.get(org, {}))
