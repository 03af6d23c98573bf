"""What a sample is worth by a grader.

What the model said may lack what a grader reads, as JSON that is none, or be too long: that earns 0 and is said. What a
row lacks, or a formula cannot compute, is no reward at all: the grader is at fault.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from synth.graders.formula import NoNumber, evaluate, parse_formula
from synth.graders.schema import Grader, Multi, Simple, StringCheck
from synth.graders.similarity import similarity
from synth.graders.template import Budget, ItemLacks, Sample, SampleLacks, TooLong, parse_template, render


class GraderFailed(Exception):
    """A grader cannot grade this row or sample. cause: whose fault it is."""

    def __init__(self, what: str, cause: type[Exception]) -> None:
        super().__init__(what)
        self.cause = cause


@dataclass(frozen=True)
class Graded:
    """A score, with those of a multi grader's parts by their keys. lacking: what the sample lacks, by the grader."""

    score: float
    parts: dict[str, float] = field(default_factory=dict[str, float])
    lacking: dict[str, str] = field(default_factory=dict[str, str])


def grade(grader: Grader, item: Any, sample: Sample, *, max_characters: int) -> Graded:
    """Grade a sample. item: the row. max_characters: of the texts of one comparison. Raises `GraderFailed`."""
    try:
        parts = grader.graders if isinstance(grader, Multi) else {grader.name: grader}
        scores: dict[str, float] = {}
        lacking: dict[str, str] = {}
        for key, part in parts.items():
            try:
                scores[key] = _score(part, item, sample, Budget(max_characters))
            except SampleLacks as lacks:
                scores[key], lacking[key] = 0.0, str(lacks)
        if not isinstance(grader, Multi):
            return Graded(scores[grader.name], lacking=lacking)
        return Graded(evaluate(parse_formula(grader.calculate_output), scores), scores, lacking)
    except (ItemLacks, NoNumber, TooLong) as error:
        raise GraderFailed(str(error), type(error)) from error


def _score(grader: Simple, item: Any, sample: Sample, budget: Budget) -> float:
    text = render(parse_template(grader.input), item, sample, budget)
    reference = render(parse_template(grader.reference), item, sample, budget)
    if not isinstance(grader, StringCheck):
        return similarity(grader.evaluation_metric, text, reference)
    match grader.operation:
        case "eq":
            return float(text == reference)
        case "ne":
            return float(text != reference)
        case "like":
            return float(reference in text)
        case "ilike":
            return float(reference.casefold() in text.casefold())
