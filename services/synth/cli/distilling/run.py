"""Samples a teacher, scores its replies, and writes the rows that are kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import msgspec

from synth.cli.comparison.scoring import Score, Scorer
from synth.cli.distilling.selection import KeepRules, prompt_key, rows_of
from synth.cli.sampling.answers import Answer, AnswerFile, answers_of
from synth.cli.sampling.budget import SpendingLimit
from synth.cli.sampling.endpoints import ChatEndpoint, SamplingOptions
from synth.cli.sampling.parallel import map_in_order
from synth.cli.sampling.rows import PromptFile, PromptRow
from synth.cli.sampling.run import SamplingReport, requests_of, sample_rows

Progress = Callable[[str], None]


@dataclass(frozen=True)
class DistillationPlan:
    """The settings of a distillation. samples: replies to each prompt. limit: only the first prompts; None for all."""

    rows: PromptFile
    endpoint: ChatEndpoint
    options: SamplingOptions
    rules: KeepRules
    folder: Path
    scorer: Scorer | None
    spending: SpendingLimit
    samples: int = 1
    concurrency: int = 8
    limit: int | None = None


@dataclass
class DistillationReport:
    """The counts of a distillation. repeated: prompts that an earlier row has. rows: in `file`.

    dropped: replies that are no rows, by the reason. refused: why there is no reply, by the row of the prompt.
    """

    file: Path
    sampling: SamplingReport
    prompts: int = 0
    repeated: int = 0
    rows: int = 0
    dropped: Counter[str] = field(default_factory=Counter[str])
    refused: dict[int, str] = field(default_factory=dict[int, str])


def distil(plan: DistillationPlan, progress: Progress) -> DistillationReport:
    """Sample the replies that the folder lacks, and write `rows.jsonl` of all its replies.

    Rows are checked before the teacher is called. When the budget ends the sampling, the rows of the replies so far are
    written. Raises `UsageProblem` and `UserError` for prompts, `CliError` for the teacher.
    """
    plan.rows.check(progress)
    if plan.scorer is not None:
        for row in islice(plan.rows, plan.limit):
            plan.scorer.check(row, f"{plan.rows.path}: row {row.number}")
    answers = AnswerFile(plan.folder / "answers", plan.endpoint.model)
    try:
        sampling = sample_rows(
            (row for row, repeated in _prompts(plan) if not repeated),
            plan.endpoint,
            plan.options,
            answers,
            samples=plan.samples,
            concurrency=plan.concurrency,
            budget=plan.spending,
            progress=progress,
        )
        report = DistillationReport(plan.folder / "rows.jsonl", sampling)
        _write(plan, answers, report, progress)
        return report
    finally:
        answers.close()


def _prompts(plan: DistillationPlan) -> Iterator[tuple[PromptRow, bool]]:
    """Yield each row, and whether its prompt was in an earlier one."""
    seen: set[bytes] = set()
    for row in islice(plan.rows, plan.limit):
        key = prompt_key(row)
        yield row, key in seen
        seen.add(key)


def _write(plan: DistillationPlan, answers: AnswerFile, report: DistillationReport, progress: Progress) -> None:
    def read() -> Iterator[tuple[PromptRow, list[Answer]]]:
        for row, repeated in _prompts(plan):
            report.prompts += not repeated
            report.repeated += repeated
            if repeated:
                continue
            _, requests = requests_of(row, plan.endpoint, plan.options, plan.samples)
            replies = [*answers_of(answers, row.number, requests)]
            if not replies and row.number in answers.failures:
                report.refused[row.number] = answers.failures[row.number]
            yield row, replies

    def score(item: tuple[PromptRow, list[Answer]]) -> tuple[PromptRow, list[tuple[Answer, Score | None]]]:
        row, replies = item
        scorer = plan.scorer
        return row, [(reply, scorer.score(row, reply.message) if scorer else None) for reply in replies]

    # A whole file replaces the last one.
    part = report.file.with_suffix(".part")
    with part.open("wb") as out:
        for row, scored in map_in_order(score, read(), at_once=plan.concurrency):
            for line in rows_of(row, scored, plan.rules, report.dropped):
                out.write(msgspec.json.encode(line) + b"\n")
                report.rows += 1
            progress(f"scored {report.prompts:,} prompts")
    part.replace(report.file)
