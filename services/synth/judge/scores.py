"""Turn votes into reviews: the median of a judge's votes, the weighted mean of the judges, the total of a track."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from synth.judge.prompts.answers import Order, Scores
from synth.judging.contract import CriterionScore, Review
from synth.judging.settings import Aggregation, Criterion

#: The criterion under which a place in a ranking is reported.
RANKING = "ranking"


def review(
    votes: Sequence[Sequence[Scores]], weights: Sequence[float], criteria: Sequence[Criterion], kind: Aggregation
) -> Review:
    """Return the review of all judges by these criteria. votes: of each judge; weights: of the judges."""
    by_criterion: dict[str, CriterionScore] = {}
    first = votes[0][0]
    for criterion in criteria:
        scores = [median(vote.scores[criterion.id] for vote in of_judge) for of_judge in votes]
        by_criterion[criterion.id] = CriterionScore(
            score=_mean(scores, weights),
            reason=first.reasons.get(criterion.id, ""),
            weight=criterion.weight,
            description=criterion.description,
        )
    return Review(criteria=by_criterion, total=total(by_criterion, kind), summary=first.summary)


def total(scores: dict[str, CriterionScore], kind: Aggregation) -> float:
    """Return Σ weight · score, with "weighted_mean" divided by Σ weight."""
    weights = [score.weight for score in scores.values()]
    values = [score.score for score in scores.values()]
    return math.fsum(w * v for w, v in zip(weights, values, strict=True)) if kind == "sum" else _mean(values, weights)


def ranked(votes: Sequence[Sequence[Order]], weights: Sequence[float], count: int) -> list[Review]:
    """Return the reviews of a group. votes: of each judge, the places of the rollouts in the group's own order."""
    reviews: list[Review] = []
    for index in range(count):
        scores = [median(_of_place(vote.places[index], count) for vote in of_judge) for of_judge in votes]
        score = _mean(scores, weights)
        summary = votes[0][0].summary
        place = CriterionScore(score=score, reason=summary, description=f"the place among {count} rollouts")
        reviews.append(Review(criteria={RANKING: place}, total=score, summary=summary))
    return reviews


def _of_place(place: int, count: int) -> float:
    """Return 1 for the first place and 0 for the last; one rollout by itself is the first."""
    return 1.0 if count == 1 else (count - 1 - place) / (count - 1)


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    # Only the ratios of the weights count; dividing by the largest avoids an overflow.
    largest = max(weights)
    shares = [weight / largest for weight in weights]
    return math.fsum(v * w for v, w in zip(values, shares, strict=True)) / math.fsum(shares)
