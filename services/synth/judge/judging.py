"""Works one question out: which votes it needs, and the reviews that come of them."""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import msgspec

from synth.blobs import BlobCorrupt, BlobMissing, BlobStore
from synth.events import BlobRef
from synth.judge.api.endpoints import Endpoints
from synth.judge.failures import refused
from synth.judge.grading import GraderRun
from synth.judge.prompts.answers import MAX_COUNT, Order, Scores, read_order, read_scores
from synth.judge.prompts.asking import ask_event, ask_order, ask_outcome, presentation_order
from synth.judge.prompts.rollout import JudgedRollout
from synth.judge.scores import ranked, review
from synth.judge.usage import UsageCount
from synth.judge.voting import QuestionVotes, ReadyJudge, Voting
from synth.judging.contract import JudgeRollouts, Review, RolloutReview, RolloutToJudge
from synth.judging.grading import GraderPrompt
from synth.judging.settings import (
    MAX_ATTEMPTS,
    MAX_CONCURRENCY,
    MAX_TIMEOUT_S,
    MAX_VOTES,
    MIN_TIMEOUT_S,
    Criterion,
    Judging,
)
from synth.transcripts.transcript import Transcript

_T = TypeVar("_T")
#: In place of an event's index: the whole episode.
_OUTCOME = -1


@dataclass(frozen=True)
class QuestionWorker:
    """Calls the judges of a question, and makes reviews of their answers.

    fence_secret: the secret from which the fences around rollouts are named. max_transcript_bytes: of one rollout.
    """

    blobs: BlobStore
    endpoints: Endpoints
    voting: Voting
    fence_secret: str
    max_transcript_bytes: int

    async def run(self, question: JudgeRollouts, usage: UsageCount) -> list[RolloutReview]:
        """Return the reviews of the question's rollouts. usage: each call is counted in it. Raises `JudgeTrouble`."""
        _check_bounds(question.judging)
        graded = any(rollout.prompts is not None for rollout in question.rollouts)
        if question.rollouts and not graded:
            _check(question)
        judges = [
            ReadyJudge(model, await self.endpoints.resolve(model, org=question.org))
            for model in question.judging.judges
        ]
        if not question.rollouts:
            return []
        votes = QuestionVotes(self.voting, self.fence_secret, question, judges, usage)
        if graded:
            return await GraderRun(votes, [await self._load_prompts(r) for r in question.rollouts]).reviews()
        return await _Run(votes, [await self._load(r) for r in question.rollouts]).reviews()

    async def _load(self, rollout: RolloutToJudge) -> JudgedRollout:
        transcript = await self._read(rollout, rollout.transcript, Transcript, "transcript")
        assert rollout.transcript is not None
        try:
            return JudgedRollout(rollout.rollout_id, rollout.transcript.sha256, transcript)
        except ValueError as error:
            raise refused(f"its transcript cannot be read: {error}", where=f"rollout {rollout.rollout_id}") from error

    async def _load_prompts(self, rollout: RolloutToJudge) -> list[GraderPrompt]:
        return await self._read(rollout, rollout.prompts, list[GraderPrompt], "text for graders")

    async def _read(self, rollout: RolloutToJudge, ref: BlobRef | None, kind: type[_T], what: str) -> _T:
        where = f"rollout {rollout.rollout_id}"
        if ref is None:
            raise refused(f"there is no {what}", where=where, expected="one for each rollout of the question")
        size, limit = ref.size, self.max_transcript_bytes
        if size > limit:
            raise refused(
                f"its {what} has {size:,} bytes, and a judge is shown {limit:,} at most",
                where=where,
                fix="shorten rollouts (max_turns, max_tokens), or raise SYNTH_JUDGE_MAX_TRANSCRIPT_BYTES",
            )
        try:
            body = await self.blobs.get_bytes(ref)
            return await asyncio.to_thread(msgspec.json.decode, body, type=kind)
        except (BlobMissing, BlobCorrupt) as error:
            raise refused(f"its {what} is gone: {error}", where=where) from error
        except msgspec.DecodeError as error:
            raise refused(f"its {what} cannot be read: {error}", where=where) from error


@dataclass(frozen=True)
class _Run:
    """One question with its votes, by rollout and event, judge and number of the vote."""

    votes: QuestionVotes
    rollouts: Sequence[JudgedRollout]
    _scores: dict[tuple[int, int], dict[tuple[int, int], Scores]] = field(default_factory=lambda: defaultdict(dict))
    _orders: dict[tuple[int, int], Order] = field(default_factory=dict[tuple[int, int], Order])

    async def reviews(self) -> list[RolloutReview]:
        """Get every vote, and make the reviews of them."""
        judging = self._question.judging
        await self.votes.run_all(self._votes_needed())
        places: list[Review] | None = None
        if judging.ranking:
            places = ranked(self._by_judge(self._orders), self._weights, len(self.rollouts))
        return [self._review(r, rollout, places) for r, rollout in enumerate(self.rollouts)]

    def _votes_needed(self) -> Iterator[Callable[[], Awaitable[None]]]:
        """Yield the missing votes one by one: votes times events may be too many to keep in memory."""
        judging = self._question.judging
        for r, rollout in enumerate(self.rollouts):
            tracks = [*range(rollout.num_events)] if judging.event else []
            if judging.outcome and not judging.ranking:
                tracks.append(_OUTCOME)
            for event in tracks:
                for voter in self._voters():
                    yield partial(self._vote_on, r, event, voter)
        if judging.ranking:
            for voter in self._voters():
                yield partial(self._rank, voter)

    def _voters(self) -> Iterator[tuple[int, int]]:
        """Return each judge and the number of its vote."""
        return ((j, v) for j, judge in enumerate(self.votes.judges) for v in range(judge.model.votes))

    async def _vote_on(self, r: int, event: int, voter: tuple[int, int]) -> None:
        """Get a vote on one event of a rollout, or on its outcome."""
        rollout, rubric = self.rollouts[r], self._question.rubric
        name = self.votes.fence([rollout.digest])
        if event == _OUTCOME:
            prompt, criteria = await asyncio.to_thread(ask_outcome, rollout, rubric, fence=name), rubric.outcome
        else:
            prompt, criteria = await asyncio.to_thread(ask_event, rollout, event, rubric, fence=name), rubric.event
        read = partial(read_scores, criteria=criteria)
        vote = await self.votes.vote(self.votes.judges[voter[0]], prompt, read, Scores, voter[1])
        self._scores[r, event][voter] = vote

    async def _rank(self, voter: tuple[int, int]) -> None:
        """Get a vote on the order of the group."""
        count, name = len(self.rollouts), self.votes.fence([rollout.digest for rollout in self.rollouts])
        order = presentation_order(count, seed=name, vote=voter[1])
        shown = [self.rollouts[index] for index in order]
        prompt = await asyncio.to_thread(ask_order, shown, self._question.rubric, fence=name)
        read = partial(read_order, count=count)
        vote = await self.votes.vote(self.votes.judges[voter[0]], prompt, read, Order, voter[1])
        places = [0] * count
        for position, index in enumerate(order):
            places[index] = vote.places[position]
        self._orders[voter] = Order(places=places, summary=vote.summary)

    def _review(self, r: int, rollout: JudgedRollout, places: list[Review] | None) -> RolloutReview:
        judging, rubric = self._question.judging, self._question.rubric
        events: list[Review] = []
        if judging.event:
            kind = rubric.event_aggregation or rubric.aggregation
            events = [
                review(self._by_judge(self._scores[r, e]), self._weights, rubric.event, kind)
                for e in range(rollout.num_events)
            ]
        outcome = places[r] if places is not None else None
        if judging.outcome and places is None:
            votes = self._by_judge(self._scores[r, _OUTCOME])
            outcome = review(votes, self._weights, rubric.outcome, rubric.aggregation)
        return RolloutReview(rollout_id=rollout.rollout_id, events=events, outcome=outcome)

    def _by_judge(self, votes: dict[tuple[int, int], _T]) -> list[list[_T]]:
        return [[votes[j, v] for v in range(judge.model.votes)] for j, judge in enumerate(self.votes.judges)]

    @property
    def _question(self) -> JudgeRollouts:
        return self.votes.question

    @property
    def _weights(self) -> list[float]:
        return [judge.model.weight for judge in self.votes.judges]


def _check_bounds(judging: Judging) -> None:
    """Raise `JudgeTrouble` for a setting out of its bounds, however the question came here."""
    settings = [
        ("max_attempts", judging.max_attempts, 1, MAX_ATTEMPTS),
        ("max_concurrency", judging.max_concurrency, 1, MAX_CONCURRENCY),
        ("timeout_s", judging.timeout_s, MIN_TIMEOUT_S, MAX_TIMEOUT_S),
        *(("votes", judge.votes, 1, MAX_VOTES) for judge in judging.judges),
    ]
    for name, value, lowest, highest in settings:
        if not lowest <= value <= highest:
            raise refused(
                f"{name} is {str(value)[:40]}",
                where="judging",
                expected=f"{lowest:g} to {highest:g}",
                fix=f"set {name} to a value within them",
            )


def _check(question: JudgeRollouts) -> None:
    """Raise `JudgeTrouble` for a question that has no answer."""
    judging, rubric = question.judging, question.rubric
    lacking = [
        track
        for track, judged, criteria in (
            ("event", judging.event, rubric.event),
            ("outcome", judging.outcome or judging.ranking, rubric.outcome),
        )
        if judged and not criteria
    ]
    if lacking:
        raise refused(
            f"the rubric has no criteria for {' and '.join(lacking)}",
            where="rubric",
            expected="at least one criterion for each track that is judged",
            fix=f"give it some, or judge without {' and '.join(lacking)}",
        )
    for track, criteria, kind in (
        ("event", rubric.event, rubric.event_aggregation or rubric.aggregation),
        ("outcome", rubric.outcome, rubric.aggregation),
    ):
        if kind == "sum" and not math.isfinite(sum(c.weight * _highest(c) for c in criteria)):
            raise refused(
                f"the weights of {track} make sums that no number holds",
                where="rubric",
                expected="weights whose sum with the highest scores is finite",
                fix='give smaller weights, or aggregation = "weighted_mean"',
            )
    if not judging.judges or sum(judge.weight for judge in judging.judges) <= 0:
        raise refused("no judge has a weight above 0", where="judges", expected="at least one judge")
    if not question.rollouts:
        raise refused("there is no rollout to judge", where="rollouts", expected="at least one")


def _highest(criterion: Criterion) -> float:
    """Return the highest score on its scale."""
    return MAX_COUNT if criterion.scale == "count" else 1.0
