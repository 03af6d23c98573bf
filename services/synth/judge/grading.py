"""Works out a question of graders: each of their prompts is put before the judge that it names."""

from __future__ import annotations

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from statistics import median

import msgspec

from synth.judge.failures import refused
from synth.judge.prompts.answers import Scores
from synth.judge.prompts.grading import ask_grader, read_grade
from synth.judge.prompts.rollout import fence
from synth.judge.usage import UsageCount
from synth.judge.voting import ReadyJudge, Voting, run_all
from synth.judging.contract import CriterionScore, JudgeRollouts, Review, RolloutReview
from synth.judging.grading import GraderPrompt
from synth.judging.settings import MAX_CONCURRENCY


class GraderRun:
    """One question with its votes, by rollout and prompt. prompts: of each of the question's rollouts."""

    def __init__(
        self,
        voting: Voting,
        secret: str,
        question: JudgeRollouts,
        judges: Sequence[ReadyJudge],
        prompts: Sequence[Sequence[GraderPrompt]],
        usage: UsageCount,
    ) -> None:
        """Raises `JudgeTrouble` for a prompt whose model is none of the question's judges."""
        self._voting = voting
        self._secret = secret
        self._question = question
        self._judges = {judge.model.model: judge for judge in judges}
        self._prompts = prompts
        self._usage = usage
        self._votes: dict[tuple[int, str], dict[int, Scores]] = defaultdict(dict)
        for prompt in (prompt for of_rollout in prompts for prompt in of_rollout):
            if prompt.model not in self._judges:
                raise refused(
                    f"the grader {prompt.key!r} uses {prompt.model!r}, which is not a judge of its job",
                    where="grader",
                    expected=f"one of {', '.join(self._judges)}",
                )

    async def reviews(self) -> list[RolloutReview]:
        """Get every vote, and make the reviews of them: of each rollout, a criterion for each prompt."""
        at_once = min(MAX_CONCURRENCY, self._question.judging.max_concurrency * len(self._judges))
        await run_all(self._votes_needed(), at_once=at_once)
        return [
            RolloutReview(
                rollout_id=rollout.rollout_id,
                outcome=Review(criteria={prompt.key: self._criterion(r, prompt) for prompt in self._prompts[r]}),
            )
            for r, rollout in enumerate(self._question.rollouts)
        ]

    def _votes_needed(self) -> Iterator[Callable[[], Awaitable[None]]]:
        for r, prompts in enumerate(self._prompts):
            for prompt in prompts:
                for number in range(self._judges[prompt.model].model.votes):
                    yield partial(self._vote, r, prompt, number)

    async def _vote(self, r: int, prompt: GraderPrompt, number: int) -> None:
        # The digest covers only the prompt, so that the cache serves the same prompt of another rollout, too.
        digest = hashlib.sha256(msgspec.json.encode(prompt)).hexdigest()
        name = fence(self._secret, self._question.org, [digest])
        self._votes[r, prompt.key][number] = await self._voting.vote(
            self._judges[prompt.model],
            await asyncio.to_thread(ask_grader, prompt, fence=name),
            partial(read_grade, prompt=prompt),
            Scores,
            self._question,
            number=number,
            usage=self._usage,
        )
        self._usage.votes += 1

    def _criterion(self, r: int, prompt: GraderPrompt) -> CriterionScore:
        votes = self._votes[r, prompt.key]
        first = votes[0]
        return CriterionScore(
            score=median(vote.scores[prompt.key] for vote in votes.values()),
            reason=first.reasons.get(prompt.key, ""),
            description=first.summary,
        )
