"""Detect when the judges' scores rise while the environment's reward falls: the policy pleases only the judges."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class JudgeDrift:
    """The means of the judges' scores and of the environment's reward over the first and the last `window` steps.

    env_std: the largest standard deviation of the environment's rewards of a batch so far.
    """

    window: int
    env_std: float = 0.0
    recent: deque[tuple[float, float]] = field(init=False)
    first: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        self.recent = deque(maxlen=self.window)

    def add(self, values: Mapping[str, float]) -> float | None:
        """Return by how many standard deviations the environment's reward has fallen while the judges' scores rose.

        Returns 0 if they did not; None before there are steps to compare, and for a job that is not judged.
        """
        judged = [values[name] for name in ("reward_event_mean", "reward_outcome_mean") if name in values]
        if not judged or "reward_env_mean" not in values:
            return None
        self.env_std = max(self.env_std, values.get("reward_env_std", 0.0))
        self.recent.append((values["reward_env_mean"], sum(judged)))
        if len(self.recent) < self.window:
            return None
        env, judge = (sum(column) / self.window for column in zip(*self.recent, strict=True))
        if self.first is None:
            self.first = (env, judge)
            return None
        if judge <= self.first[1] or not self.env_std:
            return 0.0
        return max(0.0, (self.first[0] - env) / self.env_std)
