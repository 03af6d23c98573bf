"""Compares models on the rows of a dataset: samples missing replies, scores every reply, and pairs the rows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from synth.cli.comparison.paired import Measured
from synth.cli.comparison.preference import Referee
from synth.cli.comparison.scoring import Scorer
from synth.cli.comparison.validity import calls_problem, format_problem
from synth.cli.sampling.answers import Answer, AnswerFile, answers_of
from synth.cli.sampling.budget import Price, SpendingLimit
from synth.cli.sampling.endpoints import ChatEndpoint, SamplingOptions
from synth.cli.sampling.parallel import map_in_order
from synth.cli.sampling.rows import PromptFile, PromptRow
from synth.cli.sampling.run import requests_of, sample_rows
from synth.console.errors import CliError

Json = dict[str, Any]
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """The models, the rows and the settings of a comparison. limit: only the first rows; None for all."""

    rows: PromptFile
    endpoints: Sequence[ChatEndpoint]
    options: SamplingOptions
    scorer: Scorer
    folder: Path
    referee: Referee | None = None
    samples: int = 1
    concurrency: int = 8
    limit: int | None = None

    def each_row(self) -> Iterator[PromptRow]:
        return islice(self.rows, self.limit)


@dataclass
class Share:
    """The counts of a rule: the replies that it applies to, and those that keep it."""

    valid: int = 0
    total: int = 0

    def add(self, problem: str | None) -> None:
        """problem: None if the rule does not apply, "" if it is kept."""
        self.total += problem is not None
        self.valid += problem == ""

    @property
    def value(self) -> float | None:
        return self.valid / self.total if self.total else None


@dataclass
class ModelResult:
    """One model's results on the rows. scores: by row, the mean of its replies. wins: by row, over the first model.

    order_decided: rows on which the judge preferred what stood first, or last. unscored: replies without a score, with
    the reason, by row. failures: rows that the API did not accept, by row.
    """

    model: str
    where: str
    scores: dict[int, float] = field(default_factory=dict[int, float])
    wins: dict[int, float] = field(default_factory=dict[int, float])
    order_decided: int = 0
    formats: Share = field(default_factory=Share)
    tool_calls: Share = field(default_factory=Share)
    seconds: list[float] = field(default_factory=list[float])
    prompt_tokens: int = 0
    completion_tokens: int = 0
    truncated: int = 0
    failures: dict[int, str] = field(default_factory=dict[int, str])
    unscored: dict[int, str] = field(default_factory=dict[int, str])
    returned_models: set[str] = field(default_factory=set[str])

    @property
    def measured(self) -> Measured:
        return Measured(self.model, self.scores)

    def latency(self, share: float) -> float | None:
        """Return the seconds in which this share of the replies arrived; None without a reply."""
        ordered = sorted(self.seconds)
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None

    def cost_of_1000(self, price: Price | None) -> float | None:
        """Return what 1,000 calls cost at a price; None without a price or a reply."""
        if price is None or not self.seconds:
            return None
        return 1000 * price.of(self.prompt_tokens, self.completion_tokens) / len(self.seconds)

    def add(self, row: PromptRow, answer: Answer) -> None:
        """Count a reply."""
        self.formats.add(format_problem(row, answer.message))
        self.tool_calls.add(calls_problem(row, answer.message))
        self.seconds.append(answer.seconds)
        self.prompt_tokens += answer.prompt_tokens
        self.completion_tokens += answer.completion_tokens
        self.truncated += answer.finish_reason == "length"
        if answer.model:
            self.returned_models.add(answer.model)


@dataclass(frozen=True)
class _ScoredRow:
    """The replies of every model to a row, and their scores."""

    row: PromptRow
    answers: list[list[Answer]]
    scores: list[list[float]]
    unscored: list[str]
    wins: list[tuple[float, bool] | None]
    failures: list[str]


def compare_models(plan: Plan, *, progress: Progress = lambda text: None) -> list[ModelResult]:
    """Sample and score. Returns a result for each model, in their order; `scores.jsonl` of the folder has every row.

    A row is checked before any model is called. Raises `UsageProblem` and `UserError` for rows, `CliError` for models.
    """
    plan.rows.check(progress)
    count = 0
    for row in plan.each_row():
        plan.scorer.check(row, f"{plan.rows.path}: row {row.number}")
        count += 1
    if not count:
        raise CliError("there are no rows", where=str(plan.rows.path))
    files = [AnswerFile(plan.folder / "answers", endpoint.model) for endpoint in plan.endpoints]
    try:
        for endpoint, file in zip(plan.endpoints, files, strict=True):
            sample_rows(
                plan.each_row(),
                endpoint,
                plan.options,
                file,
                samples=plan.samples,
                concurrency=plan.concurrency,
                budget=SpendingLimit(),
                progress=lambda text: progress(f"{text} of {count * plan.samples:,}"),
            )
        return _score(plan, files, count, progress)
    finally:
        for file in files:
            file.close()


def worst_rows(results: Sequence[ModelResult], count: int) -> list[int]:
    """Return the rows on which the last model falls furthest behind the first; of a single model those it did worst."""
    first, last = results[0], results[-1]
    if first is last:
        behind = dict(first.scores)
    else:
        behind = {row: last.scores[row] - first.scores[row] for row in last.scores.keys() & first.scores.keys()}
        behind = {row: (value, last.wins.get(row, 0.5)) for row, value in behind.items()}
    return sorted(behind, key=lambda row: (behind[row], row))[:count]


def _score(plan: Plan, files: Sequence[AnswerFile], count: int, progress: Progress) -> list[ModelResult]:
    results = [ModelResult(endpoint.model, endpoint.where) for endpoint in plan.endpoints]
    read = (_read(plan, files, row) for row in plan.each_row())
    with (plan.folder / "scores.jsonl").open("wb") as out:
        for scored in map_in_order(lambda item: _score_row(plan, *item), read, at_once=plan.concurrency):
            _count(results, scored)
            out.write(msgspec.json.encode(_line(results, scored)) + b"\n")
            progress(f"scored {scored.row.number:,} of {count:,} rows")
    return results


def _read(plan: Plan, files: Sequence[AnswerFile], row: PromptRow) -> tuple[PromptRow, list[list[Answer]], list[str]]:
    """Return a row with the replies of every model, and why a model has none."""
    answers: list[list[Answer]] = []
    for endpoint, file in zip(plan.endpoints, files, strict=True):
        _, requests = requests_of(row, endpoint, plan.options, plan.samples)
        answers.append([*answers_of(file, row.number, requests)])
    return row, answers, [file.failures.get(row.number, "no reply") for file in files]


def _score_row(plan: Plan, row: PromptRow, answers: list[list[Answer]], failures: list[str]) -> _ScoredRow:
    scores: list[list[float]] = []
    unscored: list[str] = []
    for of_model in answers:
        scored = [plan.scorer.score(row, answer.message) for answer in of_model]
        scores.append([score.value for score in scored if score.value is not None])
        unscored.append(next((score.reason for score in scored if score.value is None), ""))
    wins: list[tuple[float, bool] | None] = [None]
    for of_model in answers[1:]:
        preference = None
        if plan.referee is not None and answers[0] and of_model:
            preference = plan.referee.prefer(row, answers[0][0].message, of_model[0].message)
        wins.append((preference.value, preference.consistent) if preference is not None else None)
    return _ScoredRow(row, answers, scores, unscored, wins, failures)


def _count(results: Sequence[ModelResult], scored: _ScoredRow) -> None:
    number = scored.row.number
    for i, result in enumerate(results):
        for answer in scored.answers[i]:
            result.add(scored.row, answer)
        if not scored.answers[i]:
            result.failures[number] = scored.failures[i]
        elif scored.scores[i]:
            result.scores[number] = statistics.fmean(scored.scores[i])
        if scored.unscored[i]:
            result.unscored[number] = scored.unscored[i]
        if (win := scored.wins[i]) is not None:
            result.wins[number] = win[0]
            result.order_decided += not win[1]


def _line(results: Sequence[ModelResult], scored: _ScoredRow) -> Json:
    number = scored.row.number
    return {
        "row": number,
        "scores": {result.model: result.scores.get(number) for result in results},
        "preferred": {result.model: result.wins[number] for result in results if number in result.wins},
    }
