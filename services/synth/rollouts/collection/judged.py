"""A rollout's reward, once all of its sources are known."""

from __future__ import annotations

import dataclasses

import msgspec

from synth.judging.contract import RolloutReview
from synth.methods.rewards import RewardSettings
from synth.rollouts.collection.batching import ScoredRollout
from synth.trajectories import RewardSources, at_last_turn


def add_review(sources: RewardSources, review: RolloutReview, rewards: RewardSettings) -> RewardSources:
    """Add the judges' scores to the sources: the total of each event in its turn, and the total of the outcome.

    If the judges were called for a grader, the total is the grader's score, which is the environment's reward.
    """
    if rewards.scores == "grader":
        assert review.outcome is not None  # `synth.rollouts.jobs.grading` makes it
        return msgspec.structs.replace(
            sources, environment=at_last_turn(review.outcome.total, len(sources.environment))
        )
    return msgspec.structs.replace(
        sources,
        events=[event.total for event in review.events] or None,
        outcome=None if review.outcome is None else review.outcome.total,
    )


def with_sources(rollout: ScoredRollout, sources: RewardSources, rewards: RewardSettings) -> ScoredRollout:
    """Return the rollout with the reward that these sources give with the job's weights."""
    turns = sources.turns(rewards.weights)
    return dataclasses.replace(rollout, reward=sum(turns), turn_rewards=turns, sources=sources.sums())
