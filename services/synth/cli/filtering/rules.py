"""The rules of a filter, each by its key, so that a report can count the traces that each key dropped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from synth.jobs.resolve.filter import parse_moment
from synth.jobs.schema.filter import FilterOutputSection, FilterSection, FilterSftSection, FilterSplitSection
from synth.traces.facts import EpisodeFacts, is_loop, longest_repeat


class Rules(FilterSection, frozen=True):
    """A resolved filter: the keys of `[filter]`, and the other tables. stats: `[output]`."""

    sft: FilterSftSection
    split: FilterSplitSection
    stats: FilterOutputSection

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Rules:
        """Return the rules of what `resolve_filter` found."""
        return cls.model_validate({k: v for k, v in values.items() if k not in ("kind", "tags")})


@dataclass(frozen=True)
class Candidate:
    """The facts about a trace that are known before its conversation is read. reward: after judging.

    environment: None if there was no reward. failed: by the policy or the environment, as far as is known.
    """

    id: str
    created_at: datetime | None = None
    model: str | None = None
    env_name: str | None = None
    policy_name: str | None = None
    mode: str | None = None
    seed: int | None = None
    reward: float | None = None
    environment: float | None = None
    tokens: int | None = None
    failed: bool = False
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Judged:
    """A candidate with its conversation's facts. scores: by judge."""

    facts: EpisodeFacts
    scores: Mapping[str, float]


def dropped_at_first(rules: Rules, c: Candidate) -> str | None:
    """Return the first key that drops a candidate before its conversation is read."""
    return next(_at_first(rules, c), None)


def dropped_when_read(rules: Rules, judged: Judged) -> str | None:
    """Return the first key that drops a trace for its conversation."""
    return next(_when_read(rules, judged), None)


def _at_first(r: Rules, c: Candidate) -> Iterator[str]:
    for key, wanted, value in (("models", r.models, c.model), ("seeds", r.seeds, c.seed)):
        if wanted and value not in wanted:
            yield key
    if r.mode is not None and c.mode != r.mode:
        yield "mode"
    for key, bound, later in (("min_created_at", r.min_created_at, True), ("max_created_at", r.max_created_at, False)):
        if bound is not None:
            moment = parse_moment(bound)
            if c.created_at is None or (c.created_at < moment if later else c.created_at > moment):
                yield key
    yield from _outside("official_score", c.environment, r.min_official_score, r.max_official_score)
    yield from _outside("reward", c.reward, r.min_reward, r.max_reward)
    if r.success is not None and (c.failed or c.environment is None or c.environment < r.success):
        yield "success"
    yield from _outside("tokens", c.tokens, r.min_tokens, r.max_tokens)


def _when_read(r: Rules, judged: Judged) -> Iterator[str]:
    facts = judged.facts
    if r.splits and facts.split not in r.splits:
        yield "splits"
    if r.task_ids and facts.task_id not in r.task_ids:
        yield "task_ids"
    for name, bound in (r.min_judge_scores or {}).items():
        if any(_outside("judge_scores", judged.scores.get(name), bound, None)):
            yield f"min_judge_scores.{name}"
    for name, bound in (r.max_judge_scores or {}).items():
        if any(_outside("judge_scores", judged.scores.get(name), None, bound)):
            yield f"max_judge_scores.{name}"
    for key in _outside("steps", facts.steps, r.min_steps_per_episode, r.max_steps_per_episode):
        yield f"{key}_per_episode"
    if r.min_achievements_per_episode and (facts.achievements or 0) < r.min_achievements_per_episode:
        yield "min_achievements_per_episode"
    if r.detect_loops and is_loop(facts.actions):
        yield "detect_loops"
    if r.max_repeated_actions is not None and longest_repeat(facts.actions) > r.max_repeated_actions:
        yield "max_repeated_actions"
    if r.min_unique_states is not None and len(set(facts.states)) < r.min_unique_states:
        yield "min_unique_states"
    if r.filter_errors and facts.failed:
        yield "filter_errors"
    if r.filter_timeouts and facts.timed_out:
        yield "filter_timeouts"
    if r.sft.require_valid_tool_calls and facts.malformed:
        yield "sft.require_valid_tool_calls"


def _outside(name: str, value: float | None, low: float | None, high: float | None) -> Iterator[str]:
    """Yield the bounds that a value violates. As in the published clients, no value violates lower bounds only."""
    if low is not None and (value is None or value < low):
        yield f"min_{name}"
    if high is not None and value is not None and value > high:
        yield f"max_{name}"
