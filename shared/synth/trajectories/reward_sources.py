"""What a rollout earned, by source, and how the sources become the one number that is trained."""

from __future__ import annotations

import msgspec

from synth.jobs.rewards import RewardWeights


class RewardSources(msgspec.Struct, frozen=True):
    """What a rollout earned, by source, without weights. Lists are by turn: by call of the model, one at least.

    environment: of the environment. events: the scores of what happened in each turn; None where nobody scores it.
    outcome: the score of the whole episode; None where nobody scores it.
    """

    environment: list[float]
    events: list[float] | None = None
    outcome: float | None = None

    def turns(self, weights: RewardWeights) -> list[float]:
        """What each turn earned: env · environment + event · events, and outcome · outcome in the last one."""
        events = self.events or [0.0] * len(self.environment)
        earned = [weights.env * r + weights.event * e for r, e in zip(self.environment, events, strict=True)]
        earned[-1] += weights.outcome * (self.outcome or 0.0)
        return earned

    def sums(self) -> dict[str, float]:
        """The sum of each source, by its key in `[rubric.weights]`; without the sources that nobody scores."""
        found = {"env": sum(self.environment)}
        if self.events is not None:
            found["event"] = sum(self.events)
        if self.outcome is not None:
            found["outcome"] = self.outcome
        return found


def at_last_turn(reward: float, turns: int) -> list[float]:
    """A reward of the whole episode as rewards of its turns; there is one turn at least."""
    return [*[0.0] * (max(turns, 1) - 1), reward]
