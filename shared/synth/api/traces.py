"""The API's structs of traces, which are rollouts that were kept whole: a summary, a page, and a whole trace."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec

from synth.api.rollouts import RolloutMode, RolloutOutcome
from synth.judging.contract import RolloutReview
from synth.transcripts.transcript import Transcript

TraceSort = Literal["newest", "oldest"]
TraceFormat = Literal["synth", "v3"]


class TraceSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One trace. Its id is its rollout's.

    model: the job's source model; versions: the oldest and the newest version of the policy that sampled. reward: the
    trained and reported one, null if the judges could not score it. environment: the task app's own. judged_events,
    judged_outcome: the judges' scores, null if those are not judged. env_config: of the job; {} in a list. started_at:
    when its last try began. expired: its transcript is no longer kept.
    """

    id: str
    object: str = "trace"
    job_id: str
    kind: str | None = None
    model: str | None = None
    env_name: str | None = None
    policy_name: str | None = None
    env_config: dict[str, Any] = {}
    mode: RolloutMode
    iteration: int
    index: int
    group: int
    seed: int
    outcome: RolloutOutcome
    reward: float | None = None
    environment: float
    judged_events: float | None = None
    judged_outcome: float | None = None
    completion_tokens: int
    calls: int
    versions: tuple[int, int] | None = None
    seconds: float
    tries: int
    started_at: datetime
    created_at: datetime
    expired: bool = False
    seq: int


class TracePage(msgspec.Struct, frozen=True, kw_only=True):
    """Traces in the requested order. next: the `after` of the next page; null at the end.

    A page examines a limited number of traces, so it may hold fewer than requested, or none, before the end.
    """

    object: str = "list"
    data: list[TraceSummary]
    has_more: bool
    next: str | None = None


class TraceDetail(TraceSummary, frozen=True, kw_only=True):
    """One trace with its messages. review: the judges' scores and reasons; null if it was not judged.

    transcript: whole; if it is null, note has the reason.
    """

    transcript: Transcript | None = None
    review: RolloutReview | None = None
    note: str = ""
