"""The facts of a trace beside its conversation: the policy's actions, the states it saw, and how the episode ended."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from synth.api.traces import TraceSummary
from synth.judging.contract import RolloutReview
from synth.traces.conversations import CUT_OFF
from synth.transcripts.transcript import TaskAppAnswer, Transcript

Object = dict[str, Any]


@dataclass(frozen=True)
class EpisodeFacts:
    """The facts of one episode.

    steps: of the environment; the calls of the model if the task app reports none. actions, states: of each step, as
    text. achievements: None if the task app counts none. failed: by the policy or the environment. timed_out: the task
    app was too late, or the policy's last reply was cut off. malformed: a tool call could not be read.
    """

    steps: int = 0
    actions: list[str] = field(default_factory=list[str])
    states: list[str] = field(default_factory=list[str])
    achievements: int | None = None
    failed: bool = False
    timed_out: bool = False
    malformed: bool = False
    task_id: str | None = None
    split: str | None = None


def episode_facts(summary: TraceSummary, transcript: Transcript) -> EpisodeFacts:
    """Return the facts of a trace of the platform. The split is the task app's, else `env_config`'s, else the mode."""
    answer = transcript.answer or TaskAppAnswer()
    metrics = as_object(answer.metrics)
    places = [as_object(metrics.get("details")), metrics, as_object(answer.final)]
    replies = [as_object(turn.reply) for turn in transcript.turns]
    actions = [_text(step.tool_calls) for step in answer.steps if step.tool_calls] or [
        _text(reply.get("tool_calls") or reply.get("content")) for reply in replies
    ]
    last = transcript.turns[-1] if transcript.turns else None
    return EpisodeFacts(
        steps=len(answer.steps) or len(transcript.turns),
        actions=actions,
        states=[_text(step.obs) for step in answer.steps if step.obs is not None],
        achievements=_achievements([*places, *(as_object(step.info) for step in reversed(answer.steps))]),
        failed=summary.outcome != "ok" or answer.status != 200,
        timed_out=answer.status in (408, 504) or (last is not None and last.finish_reason in CUT_OFF),
        malformed=any(turn.malformed_call for turn in transcript.turns),
        task_id=_first(places, "task_id", "task") or summary.env_name,
        split=_first([*places, summary.env_config], "task_split", "split") or summary.mode,
    )


def judge_scores(summary: TraceSummary, review: RolloutReview | None) -> dict[str, float]:
    """Return scores by name: "events", "outcome", and each criterion; a criterion of events has its mean."""
    scores: dict[str, float] = {}
    if review is not None:
        sums: dict[str, list[float]] = {}
        for event in review.events:
            for name, criterion in event.criteria.items():
                sums.setdefault(name, []).append(criterion.score)
        scores |= {name: sum(item) / len(item) for name, item in sums.items()}
        if review.outcome is not None:
            scores |= {name: criterion.score for name, criterion in review.outcome.criteria.items()}
    for name, score in (("events", summary.judged_events), ("outcome", summary.judged_outcome)):
        if score is not None:
            scores[name] = score
    return scores


def longest_repeat(actions: list[str]) -> int:
    """Return the most times that one action was repeated in a row."""
    most = length = 0
    before: str | None = None
    for action in actions:
        length = length + 1 if action == before else 1
        before, most = action, max(most, length)
    return most


def is_loop(actions: list[str]) -> bool:
    """Return whether an episode ends in a loop: the same two to four actions, at least three times."""
    for period in (2, 3, 4):
        tail = actions[-3 * period :]
        if len(tail) == 3 * period and tail[:period] * 3 == tail:
            return True
    return longest_repeat(actions[-6:]) >= 6


def as_object(value: Any) -> Object:
    """Return a foreign value that should be an object; an empty one if it is not."""
    return cast(Object, value) if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


def _first(places: list[Object], *names: str) -> str | None:
    values = (place.get(name) for place in places for name in names)
    return next((str(value) for value in values if isinstance(value, str | int) and value != ""), None)


def _achievements(places: list[Object]) -> int | None:
    return next(_counts(places), None)


def _counts(places: list[Object]) -> Iterator[int]:
    for place in places:
        for name in ("achievements_count", "achievements", "unlocked"):
            value = place.get(name)
            if isinstance(value, int) and not isinstance(value, bool):
                yield value
            elif isinstance(value, list):
                yield len(cast(list[Any], value))
            elif isinstance(value, Mapping):
                yield sum(bool(done) for done in cast(Mapping[str, Any], value).values())
