"""How far one question is, and what its calls have cost so far."""

from __future__ import annotations

from dataclasses import dataclass

from synth.judging.contract import JudgeUsage


@dataclass
class UsageCount:
    """Counts calls, tokens and their price while a question is worked at. votes: had, from the cache or asked for."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    unreadable: int = 0
    votes: int = 0

    def add_tokens(self, prompt: int, completion: int, prices: tuple[float, float]) -> None:
        """Tokens of one answer; prices: of one prompt token and one completion token."""
        self.prompt_tokens += prompt
        self.completion_tokens += completion
        self.cost += prompt * prices[0] + completion * prices[1]

    def add(self, other: JudgeUsage) -> None:
        """What an earlier attempt cost."""
        self.calls += other.calls
        self.prompt_tokens += other.prompt_tokens
        self.completion_tokens += other.completion_tokens
        self.cost += other.cost
        self.unreadable += other.unreadable

    def told(self) -> JudgeUsage:
        """The same, as it is answered."""
        return JudgeUsage(
            calls=self.calls,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            cost=self.cost,
            unreadable=self.unreadable,
        )
