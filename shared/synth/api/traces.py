"""What the API answers of traces: rollouts that were kept whole, one a line, and one with all that was said in it."""

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
    """One trace. Its id is that of its rollout.

    model: the job's source model; versions: of the policy that it began as, the oldest and the newest that sampled.
    reward: what is trained and reported, null where the judges could not score it. environment: the task app's own.
    judged_events, judged_outcome: the judges' scores, null where they were not asked. env_config: of the job; of a
    trace in a list {}.
    started_at: when its last try began. expired: its transcript is not kept any more.
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
    """Traces in the order that was asked for. next: goes on behind them, as `after`; null at the end.

    A page looks at so many traces at most, so it may hold fewer than were asked for, or none, while there are more.
    """

    object: str = "list"
    data: list[TraceSummary]
    has_more: bool
    next: str | None = None


class TraceDetail(TraceSummary, frozen=True, kw_only=True):
    """One trace with what was said in it. review: what the judges said, with their reasons; null where none did.

    transcript: whole; where it is null, note says why.
    """

    transcript: Transcript | None = None
    review: RolloutReview | None = None
    note: str = ""
