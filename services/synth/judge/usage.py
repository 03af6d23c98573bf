"""The progress of one question, and the cost of its calls so far."""

from __future__ import annotations

from dataclasses import dataclass

from synth.judging.contract import JudgeUsage


@dataclass
class UsageCount:
    """Counts the calls, tokens and their price while a question is in work. votes: from the cache or from calls."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    unreadable: int = 0
    votes: int = 0

    def add_tokens(self, prompt: int, completion: int, prices: tuple[float, float]) -> None:
        """Add the tokens of one answer; prices: of one prompt token and one completion token."""
        self.prompt_tokens += prompt
        self.completion_tokens += completion
        self.cost += prompt * prices[0] + completion * prices[1]

    def add(self, other: JudgeUsage) -> None:
        """Add the cost of an earlier attempt."""
        self.calls += other.calls
        self.prompt_tokens += other.prompt_tokens
        self.completion_tokens += other.completion_tokens
        self.cost += other.cost
        self.unreadable += other.unreadable

    def reported(self) -> JudgeUsage:
        """Return the usage in the form of the answer."""
        return JudgeUsage(
            calls=self.calls,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            cost=self.cost,
            unreadable=self.unreadable,
        )
