"""The sources of a filter's traces: a trace that passes the first rules is read, and becomes its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, cast

from synth.api.traces import TraceDetail, TraceSummary
from synth.cli.filtering.rules import Candidate, Judged
from synth.cli.traces.images import ImageGone, Images
from synth.cli.traces.read_ahead import ahead
from synth.client import Client
from synth.traces.conversations import CUT_OFF, conversations
from synth.traces.facts import EpisodeFacts, episode_facts, judge_scores

Row = dict[str, Any]


@dataclass(frozen=True)
class ReadTrace:
    """A trace that was read. rows: without metadata. unusable: why there are none, by the name that a report has."""

    candidate: Candidate
    judged: Judged
    rows: list[Row]
    unusable: str = ""


class Source(Protocol):
    """Traces; each job's are oldest first. name: for messages."""

    @property
    def name(self) -> str: ...

    def episodes(self, wanted: Callable[[Candidate], bool]) -> Iterator[ReadTrace]:
        """Yield the traces that `wanted` accepts, read. It is called once for each trace."""
        ...


@dataclass(frozen=True)
class PlatformTraces:
    """The traces of the platform. jobs: None for all of the organisation. A trace is one row for each conversation."""

    client: Client
    jobs: list[str] | None
    images: Images | None

    @property
    def name(self) -> str:
        return ", ".join(self.jobs) if self.jobs else "the organisation"

    def episodes(self, wanted: Callable[[Candidate], bool]) -> Iterator[ReadTrace]:
        def summaries() -> Iterator[TraceSummary]:
            # One job after the other: the backend has the traces of each in their order.
            for job in self.jobs or [None]:
                for summary in self.client.traces.list(job=job, sort="oldest"):
                    if wanted(_candidate(summary)):
                        yield summary

        for _, episode in ahead(summaries(), self._read):
            yield episode

    def _read(self, summary: TraceSummary) -> ReadTrace:
        return self._read_trace(self.client.traces.get(summary.id))

    def _read_trace(self, trace: TraceDetail) -> ReadTrace:
        candidate, transcript = _candidate(trace), trace.transcript
        if transcript is None:
            return ReadTrace(candidate, Judged(EpisodeFacts(), {}), [], unusable="expired")
        judged = Judged(episode_facts(trace, transcript), judge_scores(trace, trace.review))
        if transcript.cut_values or transcript.turns_left_out:
            return ReadTrace(candidate, judged, [], unusable="shortened")
        try:
            rows = [self._row(item.as_row()) for item in conversations(transcript) if item.taught]
        except ImageGone:
            return ReadTrace(candidate, judged, [], unusable="images")
        cut_off = not rows and any(turn.finish_reason in CUT_OFF for turn in transcript.turns)
        return ReadTrace(candidate, judged, rows, unusable="cut off" if cut_off else "")

    def _row(self, row: Row) -> Row:
        messages = cast(list[Row], row["messages"])
        if self.images is None:
            return row | {"messages": [without_images(message) for message in messages]}
        return row | {"messages": [self.images.inline(message) for message in messages]}


def without_images(message: Row) -> Row:
    """Return the message without the parts that show images."""
    parts = message.get("content")
    if not isinstance(parts, list):
        return message
    kept = [part for part in cast(list[Any], parts) if not _shows(part)]
    return message | {"content": kept or ""}


def _shows(part: Any) -> bool:
    return isinstance(part, dict) and cast(Row, part).get("type") in ("image", "image_url")


def _candidate(trace: TraceSummary) -> Candidate:
    return Candidate(
        id=trace.id,
        created_at=trace.created_at,
        model=trace.model,
        env_name=trace.env_name,
        policy_name=trace.policy_name,
        mode=trace.mode,
        seed=trace.seed,
        reward=trace.reward,
        environment=trace.environment,
        tokens=trace.completion_tokens,
        failed=trace.outcome != "ok",
        metadata={"job_id": trace.job_id, "mode": trace.mode},
    )
