"""The score of a sample by a grader.

A sample may lack a value that the grader reads, may not be JSON, or may be too long: then it earns 0, with the reason.
If a row lacks a value, or a formula cannot be computed, there is no reward at all: the grader is at fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from synth.graders.formula import NoNumber, evaluate, parse_formula
from synth.graders.python.pool import PythonFailed, PythonPool
from synth.graders.schema import Grader, LabelModel, Multi, Python, ScoreModel, StringCheck, TextSimilarity, parts_of
from synth.graders.similarity import similarity
from synth.graders.template import (
    Budget,
    ItemLacks,
    Sample,
    SampleLacks,
    TooLong,
    parse_template,
    render,
    render_pieces,
)
from synth.judging.grading import GraderPrompt, PromptMessage, PromptPiece


class GraderFailed(Exception):
    """A grader cannot grade this row or sample. cause: whose fault it is."""

    def __init__(self, what: str, cause: type[Exception]) -> None:
        super().__init__(what)
        self.cause = cause


@dataclass(frozen=True)
class Graded:
    """A score, with the scores of a multi grader's parts by their keys.

    lacking: the values that the sample lacks, by grader. score: None if models are to be `asked`: then `parts` has the
    known scores, and `total_of` computes the score of all.
    """

    score: float | None
    parts: dict[str, float] = field(default_factory=dict[str, float])
    lacking: dict[str, str] = field(default_factory=dict[str, str])
    asked: list[GraderPrompt] = field(default_factory=list[GraderPrompt])


async def run_python(grader: Grader, item: Any, sample: Sample, pool: PythonPool) -> dict[str, float]:
    """Return the scores of a grader's `python` parts, one after the other. Raises `GraderFailed`."""
    scores: dict[str, float] = {}
    for key, part in parts_of(grader).items():
        if isinstance(part, Python):
            try:
                scores[key] = await pool.grade(part.source, sample_as_seen(sample), item)
            except PythonFailed as failed:
                raise GraderFailed(f"the python grader {key!r}: {failed}", PythonFailed) from failed
    return scores


def grade(
    grader: Grader,
    item: Any,
    sample: Sample,
    *,
    max_characters: int,
    ran: Mapping[str, float] = MappingProxyType({}),
) -> Graded:
    """Grade a sample. item: the row. max_characters: of the texts of one comparison, and of one question.

    ran: the scores of parts that were graded elsewhere, by their keys: of all `python` parts at least. Raises
    `GraderFailed`.
    """
    scores, lacking = dict[str, float](), dict[str, str]()
    prompts: list[GraderPrompt] = []
    try:
        for key, part in parts_of(grader).items():
            if key in ran:
                scores[key] = ran[key]
                continue
            budget = Budget(max_characters)
            try:
                match part:
                    case ScoreModel() | LabelModel():
                        prompts.append(_prompt(key, part, item, sample, budget))
                    case StringCheck() | TextSimilarity():
                        scores[key] = _score(part, item, sample, budget)
                    case Python():
                        raise KeyError(f"{key!r} is code, and was not run")
            except SampleLacks as lacks:
                scores[key], lacking[key] = 0.0, str(lacks)
    except (ItemLacks, TooLong) as error:
        raise GraderFailed(str(error), type(error)) from error
    score = None if prompts else total_of(grader, scores)
    return Graded(score, scores if isinstance(grader, Multi) else {}, lacking, prompts)


def total_of(grader: Grader, scores: Mapping[str, float]) -> float:
    """Return the score of a grader from the scores of all its parts. Raises `GraderFailed`."""
    if not isinstance(grader, Multi):
        return scores[grader.name]
    try:
        return evaluate(parse_formula(grader.calculate_output), scores)
    except NoNumber as error:
        raise GraderFailed(str(error), NoNumber) from error


def _score(grader: StringCheck | TextSimilarity, item: Any, sample: Sample, budget: Budget) -> float:
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


def _prompt(key: str, grader: ScoreModel | LabelModel, item: Any, sample: Sample, budget: Budget) -> GraderPrompt:
    messages: list[PromptMessage] = []
    for message in grader.input:
        pieces = [
            PromptPiece(text=text, sampled=sampled)
            for template in message.texts()
            for text, sampled in render_pieces(parse_template(template), item, sample, budget)
        ]
        messages.append(PromptMessage(role=message.role, pieces=pieces))
    if isinstance(grader, LabelModel):
        return GraderPrompt(
            key=key, model=grader.model, messages=messages, labels=grader.labels, passing_labels=grader.passing_labels
        )
    return GraderPrompt(
        key=key,
        model=grader.model,
        messages=messages,
        range=(grader.range[0], grader.range[1]),
        sampling=grader.sampling_params.model_dump(exclude_none=True),
    )


def sample_as_seen(sample: Sample) -> dict[str, Any]:
    """Return a sample as a grader's code gets it. output_json: None if the text is not JSON."""
    try:
        read = sample.json()
    except SampleLacks:
        read = None
    return {"output_text": sample.text, "output_json": read, "output_tools": sample.tools}
