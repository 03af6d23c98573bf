"""Works out a question of graders: each of their prompts is put before the judge that it names."""

from __future__ import annotations

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median

import msgspec

from synth.judge.failures import refused
from synth.judge.prompts.answers import Scores
from synth.judge.prompts.grading import ask_grader, read_grade
from synth.judge.voting import QuestionVotes, ReadyJudge
from synth.judging.contract import CriterionScore, Review, RolloutReview
from synth.judging.grading import GraderPrompt


@dataclass(frozen=True)
class GraderRun:
    """One question of graders. prompts: of each of the question's rollouts."""

    votes: QuestionVotes
    prompts: Sequence[Sequence[GraderPrompt]]
    _scores: dict[tuple[int, str], dict[int, Scores]] = field(default_factory=lambda: defaultdict(dict))

    async def reviews(self) -> list[RolloutReview]:
        """Get every vote, and make the reviews of them: of each rollout, a criterion for each prompt.

        Raises `JudgeTrouble` for a prompt whose model is none of the question's judges.
        """
        judges = {judge.model.model: judge for judge in self.votes.judges}
        for prompt in (prompt for of_rollout in self.prompts for prompt in of_rollout):
            if prompt.model not in judges:
                raise refused(
                    f"the grader {prompt.key!r} uses {prompt.model!r}, which is not a judge of its job",
                    where="grader",
                    expected=f"one of {', '.join(judges)}",
                )
        await self.votes.run_all(self._votes_needed(judges))
        return [
            RolloutReview(
                rollout_id=rollout.rollout_id,
                outcome=Review(criteria={prompt.key: self._criterion(r, prompt) for prompt in self.prompts[r]}),
            )
            for r, rollout in enumerate(self.votes.question.rollouts)
        ]

    def _votes_needed(self, judges: Mapping[str, ReadyJudge]) -> Iterator[Callable[[], Awaitable[None]]]:
        for r, prompts in enumerate(self.prompts):
            for prompt in prompts:
                judge = judges[prompt.model]
                for number in range(judge.model.votes):
                    yield partial(self._vote, r, prompt, judge, number)

    async def _vote(self, r: int, prompt: GraderPrompt, judge: ReadyJudge, number: int) -> None:
        # The digest covers only the prompt, so that the cache serves the same prompt of another rollout, too.
        name = self.votes.fence([hashlib.sha256(msgspec.json.encode(prompt)).hexdigest()])
        question = await asyncio.to_thread(ask_grader, prompt, fence=name)
        read = partial(read_grade, prompt=prompt)
        self._scores[r, prompt.key][number] = await self.votes.vote(judge, question, read, Scores, number)

    def _criterion(self, r: int, prompt: GraderPrompt) -> CriterionScore:
        votes = self._scores[r, prompt.key]
        first = votes[0]
        return CriterionScore(
            score=median(vote.scores[prompt.key] for vote in votes.values()),
            reason=first.reasons.get(prompt.key, ""),
            description=first.summary,
        )
