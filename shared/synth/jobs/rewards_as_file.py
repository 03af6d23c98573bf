"""The rewards of a resolved job as the tables of a job file, for `synth.jobs.as_file`."""

from __future__ import annotations

from typing import Any

import msgspec

from synth.jobs.schema.rewards import JudgeSection
from synth.jobs.schema.sections import copied_keys
from synth.judging.settings import Judging, Rubric
from synth.methods.rewards import RewardSettings, RewardWeights

Table = dict[str, Any]


def step_rewards_keys(rewards: RewardSettings) -> Table:
    """Return the keys of `[training]` for the rewards of single turns, without the task app's settings."""
    steps, discount = rewards.steps, rewards.turn_discount
    keys: Table = {"turn_credit": "episode" if discount is None else "return_to_go", "turn_discount": discount}
    if steps is None:
        return keys
    return keys | {
        "step_rewards_enabled": True,
        "step_rewards_mode": steps.mode,
        # A 0 that the file does not set would be sent to the task app, too.
        "step_rewards_indicator_lambda": steps.indicator_lambda or None,
        "step_rewards_beta": steps.beta or None,
        "event_rewards_kind": steps.kind,
    }


def judging_tables(rewards: RewardSettings) -> Table:
    """Return the tables `[rubric]` and `[judge]`."""
    weighted = rewards.weights != RewardWeights()
    return {
        "rubric": {"weights": msgspec.structs.asdict(rewards.weights)} if weighted else {},
        "judge": _judge(rewards.judging, by_rubric=rewards.scores == "judges") if rewards.judging is not None else {},
    }


def _judge(judging: Judging, *, by_rubric: bool) -> Table:
    return copied_keys(judging, JudgeSection) | {
        "timeout_s": None,
        "judges": [
            {name: value for name, value in msgspec.structs.asdict(judge).items() if value is not None}
            for judge in judging.judges
        ],
        "ranking": judging.ranking if by_rubric else None,
        "options": {
            "event": judging.event if by_rubric else None,
            "outcome": judging.outcome if by_rubric else None,
            "max_concurrency": judging.max_concurrency,
            "timeout_s": judging.timeout_s,
            "rubric_overrides": _rubric(judging.rubric) if judging.rubric is not None else None,
        },
    }


def _rubric(rubric: Rubric) -> Table:
    tracks = {
        "event": (rubric.event, rubric.event_goal or ("" if rubric.outcome else rubric.goal), rubric.event_aggregation),
        "outcome": (rubric.outcome, rubric.goal, rubric.aggregation),
    }
    return {
        name: {
            **({"goal_text": goal} if goal else {}),
            **({"aggregation": aggregation} if aggregation else {}),
            "criteria": msgspec.to_builtins(criteria),
        }
        for name, (criteria, goal, aggregation) in tracks.items()
        if criteria
    }
