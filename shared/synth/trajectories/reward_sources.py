"""The rewards of a rollout by source, and the computation of the one number that is trained."""

from __future__ import annotations

import msgspec

from synth.methods.rewards import RewardWeights


class RewardSources(msgspec.Struct, frozen=True):
    """The rewards of a rollout by source, without weights. Lists are by turn: by call of the model, one at least.

    environment: of the environment. events: the scores of the events of each turn; None if they are not scored.
    outcome: the score of the whole episode; None if it is not scored.
    """

    environment: list[float]
    events: list[float] | None = None
    outcome: float | None = None

    def turns(self, weights: RewardWeights) -> list[float]:
        """Return the reward of each turn: env · environment + event · events, and outcome · outcome in the last one."""
        events = self.events or [0.0] * len(self.environment)
        earned = [weights.env * r + weights.event * e for r, e in zip(self.environment, events, strict=True)]
        earned[-1] += weights.outcome * (self.outcome or 0.0)
        return earned

    def sums(self) -> dict[str, float]:
        """Return the sum of each source, by its key in `[rubric.weights]`, without sources that are not scored."""
        totals = {"env": sum(self.environment)}
        if self.events is not None:
            totals["event"] = sum(self.events)
        if self.outcome is not None:
            totals["outcome"] = self.outcome
        return totals


def at_last_turn(reward: float, turns: int) -> list[float]:
    """Return a reward of the whole episode as rewards of its turns, of which there is at least one."""
    return [*[0.0] * (max(turns, 1) - 1), reward]
