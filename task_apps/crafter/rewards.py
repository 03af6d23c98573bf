"""The reward of each turn beside the episode's outcome, from `step_rewards` of a job."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from task_apps.crafter.env import ACHIEVEMENTS, Turn

Strategy = Literal["consistent", "per_achievement"]
#: The published app's words for its two strategies.
_STRATEGIES: dict[str, Strategy] = {
    **dict.fromkeys(("simple", "consistent_stepwise", "decision_consistent"), "consistent"),
    **dict.fromkeys(("complex", "per-achievement", "perachievement", "achievement_weighted"), "per_achievement"),
}


def _own_name(strategy: Any) -> Any:
    return _STRATEGIES.get(strategy, strategy) if isinstance(strategy, str) else strategy


def _achievements(table: Any) -> Any:
    """Return the table by the game's names. `craft_…` is the published app's other word for `make_…`."""
    if not isinstance(table, dict):
        return table
    named: dict[Any, Any] = {}
    for key, value in table.items():
        name = f"make_{key[6:]}" if isinstance(key, str) and key.startswith("craft_") else key
        if named.setdefault(name, value) != value:
            raise ValueError(f"{name} has two values, {named[name]} and {value}")
    return named


def _known(table: dict[str, Any]) -> dict[str, Any]:
    if unknown := table.keys() - set(ACHIEVEMENTS):
        raise ValueError(f"{min(unknown)} is no achievement")
    return table


def _nothing_mixed_in(beta: float) -> float:
    if beta:
        raise ValueError("a rollout has one reward")
    return beta


_Weights = Annotated[dict[str, float], BeforeValidator(_achievements), AfterValidator(_known)]
_Limits = Annotated[dict[str, int], BeforeValidator(_achievements), AfterValidator(_known)]


class StepRewards(BaseModel):
    """`step_rewards` of `env.config` or `policy.config`."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    enabled: bool = Field(default=True, description="true or false: whether the answer reports each turn's reward")
    mode: Literal["decision_stepwise", "env_sparse", "off"] = Field(
        default="decision_stepwise",
        description='"decision_stepwise", or "env_sparse" or "off" for the game\'s own rewards alone',
    )
    strategy: Annotated[Strategy, BeforeValidator(_own_name)] = Field(
        default="consistent", description='"consistent" (also "simple") or "per_achievement" (also "complex")'
    )
    indicator_lambda: float = Field(default=1.0, description="a number, the factor of each turn's worth; 0 counts as 1")
    step_beta: Annotated[float, AfterValidator(_nothing_mixed_in)] = Field(
        default=0.0, description="0: a rollout has one reward, and what its turns are worth is not mixed into it"
    )
    weights: _Weights = Field(
        default_factory=dict[str, float], description="a table of numbers, by the game's achievements"
    )
    k_limits: _Limits = Field(
        default_factory=dict[str, int], description="a table of whole numbers, by the game's achievements"
    )

    @property
    def reported(self) -> bool:
        """Whether the answer reports each turn's reward."""
        return self.enabled and self.mode == "decision_stepwise"


class StepCredit:
    """The rewards of one episode's turns, with the names of the published Crafter app."""

    def __init__(self, rewards: StepRewards) -> None:
        self._rewards = rewards
        self._credited: Counter[str] = Counter()
        self._indicators, self._sum, self._unlocked = 0, 0.0, list[str]()

    def turn(self, number: int, turn: Turn) -> dict[str, Any]:
        """Return the reward fields of a turn's `info`; number: from 0. Empty unless they are reported."""
        if not self._rewards.reported:
            return {}
        worth, credited = self._worth(turn)
        reward = (self._rewards.indicator_lambda or 1.0) * worth
        indicator = int(bool(turn.unlocked) or worth > 0)
        self._indicators += indicator
        self._sum += reward
        self._unlocked += turn.unlocked
        decided = {
            "turn": number + 1,
            "ach_delta": len(turn.events),
            "unique_delta": len(turn.unlocked),
            "all": turn.events,
            "unique": turn.unlocked,
        }
        stepwise = {
            "decision_index": number,
            "indicator": indicator,
            "reward": reward,
            "base_reward": worth,
            "strategy": self._rewards.strategy,
            "new_achievements": turn.unlocked,
            **({"credited_achievements": credited} if credited else {}),
        }
        return {"meta": {"decision_rewards": decided}, "stepwise": stepwise}

    def summary(self) -> dict[str, Any]:
        """Return the episode's sums for the answer's `details`. Empty unless they are reported."""
        if not self._rewards.reported:
            return {}
        rewards = self._rewards
        return {
            "stepwise": {
                "reward_sum": self._sum,
                "indicator_sum": self._indicators,
                "unique_achievements_total": len(self._unlocked),
                "mode": rewards.mode,
                "strategy": rewards.strategy,
                "indicator_lambda": rewards.indicator_lambda,
                **({"weights": rewards.weights} if rewards.weights else {}),
                **({"k_limits": rewards.k_limits} if rewards.k_limits else {}),
            }
        }

    def _worth(self, turn: Turn) -> tuple[float, list[str]]:
        """Return a turn's worth before its factor, and the achievements that it is paid for by name."""
        if self._rewards.strategy == "consistent":
            return float(bool(turn.unlocked)), []
        credited: list[str] = []
        for name in turn.events:
            limit = self._rewards.k_limits.get(name, 1)
            if limit <= 0 or self._credited[name] < limit:
                self._credited[name] += 1
                credited.append(name)
        return sum((self._rewards.weights.get(name, 1.0) for name in credited), 0.0), credited
