"""`synthctl eval show | compare`: what an evaluation measured, and whether another one is better."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Annotated

import typer

from synth.cli.commands.jobs.options import JobArgument, JobsArgument
from synth.cli.connect import open_client
from synth.cli.tui import output
from synth.cli.tui.output import Format, Output
from synth.console.errors import UsageProblem

if TYPE_CHECKING:
    from synth.cli.evaluation.rewards import Evaluation
    from synth.estimates.intervals import Interval
    from synth.estimates.repeated import Estimate

Step = Annotated[
    int | None, typer.Option(min=0, help="The evaluation of this step of an RL job; its last one by default.")
]
_METHODS = {"wilson": "Wilson", "student": "Student"}

PerSeed = Annotated[bool, typer.Option("--per-seed", help="A line for each rollout of each seed.")]


def show(
    ctx: typer.Context,
    job: JobArgument,
    per_seed: PerSeed = False,
    step: Step = None,
    fmt: Output = Format.TABLE,
) -> None:
    """Show an evaluation: its mean reward with a 95 % confidence interval, and with --per-seed every rollout.

    Where seeds were played several times: mean@k and pass@k, each with an interval over the seeds.

    JOB is an evaluation job, or an RL job with evaluations of its own.
    """
    from synth.cli.evaluation.rewards import read_evaluation

    with open_client(ctx) as client, output.status("reading the rewards"):
        evaluation = read_evaluation(client, job, step=step)
    if fmt is Format.JSON:
        return output.print_json(as_data(evaluation))
    if per_seed:
        print_seeds(evaluation)
    return print_mean(evaluation)


def compare(
    ctx: typer.Context,
    jobs: JobsArgument,
    per_seed: PerSeed = False,
    step: Step = None,
    fmt: Output = Format.TABLE,
) -> None:
    """Compare evaluations with the first: the mean difference on the seeds that both have, with a 95 % interval.

    An interval without 0 shows that one of them is better. The interval is Student's, of the paired differences. Of a
    seed that was played several times the mean is compared, and each pass@k that both have.
    """
    from synth.cli.comparison.paired import Measured, against_first
    from synth.cli.comparison.table import MARKS, print_paired, signed
    from synth.cli.evaluation.rewards import read_evaluation
    from synth.estimates.repeated import paired_estimates

    if not 2 <= len(jobs) <= len(MARKS):
        count = f"{len(jobs)} job{'s' * (len(jobs) != 1)}"
        raise UsageProblem(count, expected=f"2 to {len(MARKS)} jobs, the first of which the others are compared with")
    with open_client(ctx) as client, output.status("reading the rewards"):
        evaluations = [read_evaluation(client, job, step=step) for job in jobs]
    first, *others = evaluations
    measured = [Measured(evaluation.title, evaluation.by_seed) for evaluation in evaluations]
    differences = against_first(measured)
    for evaluation, difference in zip(others, differences[1:], strict=True):
        if difference is None:
            raise UsageProblem(
                f"no seed is in both: {first.title} has {_seeds(first)}, {evaluation.title} {_seeds(evaluation)}",
                expected="evaluations on the same seeds",
            )
    measures = [paired_estimates(first.measures, evaluation.measures) for evaluation in others]
    if fmt is Format.JSON:
        report = {"evaluations": [as_data(e) for e in evaluations], "differences": differences[1:]}
        return output.print_json(report | ({"measures": measures} if any(measures) else {}))
    if per_seed:
        shared = sorted(set(first.by_seed).intersection(*(e.by_seed for e in others)))
        rows = [[str(s), *(output.number(e.by_seed[s]) for e in evaluations), *_gains(evaluations, s)] for s in shared]
        names = [*MARKS[: len(jobs)].lower(), *(f"{mark} - a" for mark in MARKS[1 : len(jobs)].lower())]
        output.print_table(("seed", *names), rows)
    print_paired(measured, differences, heading="evaluation", unit="seed")
    cells = [
        [f"{mark} - A", name, signed(d.mean), str(d.seeds), _range(d.interval)]
        for mark, of_other in zip(MARKS[1:], measures, strict=False)
        for name, d in of_other.items()
    ]
    if cells:
        output.print_table(("label", "measure", "difference", "seeds", "95 % interval"), cells)
    return None


def as_data(evaluation: Evaluation) -> dict[str, object]:
    """Return an evaluation for programs. interval: of the mean reward; null if it has none.

    seeds: its rollouts, in the order of their seeds. measures: mean@k and pass@k, if there are any.
    """
    from synth.estimates.intervals import mean_interval

    rewards = list(evaluation.by_seed.values())
    measured = _estimates(evaluation)
    return {
        "job": evaluation.job_id,
        "step": evaluation.step,
        "mean": statistics.fmean(rewards) if rewards else None,
        "interval": mean_interval(rewards),
        "seeds": sorted(evaluation.rewards.values(), key=lambda found: found.seed),
        "failed": sorted(set(evaluation.failed.values())),
        **({"measures": measured} if measured else {}),
    }


def _estimates(evaluation: Evaluation) -> dict[str, Estimate]:
    from synth.estimates.repeated import over_seeds

    estimates = {name: over_seeds(by_seed) for name, by_seed in evaluation.measures.items()}
    return {name: estimate for name, estimate in estimates.items() if estimate is not None}


def print_mean(evaluation: Evaluation) -> None:
    """Print the mean reward with its interval, and how many seeds it is of."""
    rewards = list(evaluation.by_seed.values())
    rows = [
        ("mean reward", output.number(statistics.fmean(rewards)) if rewards else "-"),
        *interval_rows(evaluation),
        *(row for name, item in _estimates(evaluation).items() for row in _estimate_rows(name, item)),
        ("seeds", str(len(rewards))),
        ("failed", str(len(evaluation.failed)) if evaluation.failed else ""),
    ]
    output.print_pairs([(label, text) for label, text in rows if text])


def interval_rows(evaluation: Evaluation) -> list[tuple[str, str]]:
    """Return the confidence interval of the mean reward, named by its method; [] if it has none."""
    from synth.estimates.intervals import mean_interval

    interval = mean_interval(list(evaluation.by_seed.values()))
    if interval is None:
        return []
    return [(f"95 % interval ({_METHODS[interval.method]})", _range(interval))]


def print_seeds(evaluation: Evaluation) -> None:
    """Print a line for each rollout, the worst first."""
    rewards = sorted(evaluation.rewards.values(), key=lambda r: (r.reward, r.seed, r.rollout))
    rows = [
        [
            *(str(r.seed), output.number(r.reward), r.outcome, str(r.calls), str(r.tokens)),
            *(output.seconds(r.seconds), r.rollout),
        ]
        for r in rewards
    ]
    rows += [[str(seed), "-", "failed", "-", "-", "-", "-"] for seed in sorted(evaluation.failed.values())]
    output.print_table(("seed", "reward", "outcome", "calls", "tokens", "took", "rollout"), rows, wrap="rollout")


def _estimate_rows(name: str, found: Estimate) -> list[tuple[str, str]]:
    return [(name, output.number(found.value)), (f"{name} 95 % interval", _range(found.interval))]


def _range(interval: Interval | None) -> str:
    from synth.cli.comparison.table import interval_cell

    return interval_cell(interval)


def _gains(evaluations: list[Evaluation], seed: int) -> list[str]:
    from synth.cli.comparison.table import signed

    first, *others = evaluations
    return [signed(other.by_seed[seed] - first.by_seed[seed]) for other in others]


def _seeds(evaluation: Evaluation) -> str:
    seeds = sorted(evaluation.by_seed)
    return f"{len(seeds)} from {seeds[0]} to {seeds[-1]}" if seeds else "none"
