"""`synthctl eval show | compare`: what an evaluation measured, and whether another one is better."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Annotated

import typer

from synth.cli.commands.jobs.options import JobArgument, JobsArgument
from synth.cli.connect import open_client
from synth.cli.errors import UsageProblem
from synth.cli.tui import output
from synth.cli.tui.output import Cell, Format, Output

if TYPE_CHECKING:
    from synth.cli.evaluation.rewards import Evaluation
    from synth.estimates.intervals import Interval
    from synth.estimates.repeated import Estimate

Step = Annotated[
    int | None,
    typer.Option(metavar="N", min=0, help="Of an RL job: its evaluation of this step; the last one without it."),
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
    """Compare two evaluations: the mean difference B less A on the seeds that both have, with a 95 % interval.

    An interval without 0 says that one of them is better. The interval is Student's, of the paired differences. Of a
    seed that was played several times it is the mean that is compared, and each pass@k that both have.
    """
    from synth.cli.evaluation.rewards import read_evaluation
    from synth.estimates.intervals import paired_difference
    from synth.estimates.repeated import paired_estimates

    if len(jobs) != 2:
        raise UsageProblem(f"{len(jobs)} job{'s' * (len(jobs) != 1)}", expected="two jobs, A and B")
    with open_client(ctx) as client, output.status("reading the rewards"):
        a, b = (read_evaluation(client, job, step=step) for job in jobs)
    found = paired_difference(a.by_seed, b.by_seed)
    if found is None:
        raise UsageProblem(
            f"no seed is in both: {a.title} has {_seeds(a)}, {b.title} {_seeds(b)}",
            expected="evaluations on the same seeds",
        )
    measured = paired_estimates(a.measures, b.measures)
    if fmt is Format.JSON:
        data = {"a": as_data(a), "b": as_data(b), "difference": found}
        return output.print_json(data | ({"differences": measured} if measured else {}))
    if per_seed:
        shared = sorted(a.by_seed.keys() & b.by_seed.keys())
        rows = [[str(s), *(output.number(r[s]) for r in (a.by_seed, b.by_seed)), _gain(a, b, s)] for s in shared]
        output.print_table(("seed", "a", "b", "b - a"), rows)
    rows = [
        ["A", a.title, *_mean_cells(a)],
        ["B", b.title, *_mean_cells(b)],
        ["B - A", "-", _signed(found.mean), str(found.seeds), _range(found.interval)],
    ]
    output.print_table(("label", "evaluation", "mean", "seeds", "95 % interval"), rows, wrap="evaluation")
    if measured:
        cells = [[name, _signed(d.mean), str(d.seeds), _range(d.interval)] for name, d in measured.items()]
        output.print_table(("measure", "b - a", "seeds", "95 % interval"), cells)
    output.print_sentence(f"seeds: B is better on {found.better}, worse on {found.worse}, the same on {found.equal}")
    return output.print_sentence(_verdict(found.interval))


def as_data(evaluation: Evaluation) -> dict[str, object]:
    """An evaluation for programs. interval: of the mean reward; null where there is none.

    seeds: its rollouts, in the order of their seeds. measures: mean@k and pass@k, where there are any.
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

    found = {name: over_seeds(by_seed) for name, by_seed in evaluation.measures.items()}
    return {name: estimate for name, estimate in found.items() if estimate is not None}


def print_mean(evaluation: Evaluation) -> None:
    """Print the mean reward with its interval, and how many seeds it is of."""
    rewards = list(evaluation.by_seed.values())
    rows = [
        ("mean reward", output.number(statistics.fmean(rewards)) if rewards else "-"),
        *interval_rows(evaluation),
        *(row for name, found in _estimates(evaluation).items() for row in _estimate_rows(name, found)),
        ("seeds", str(len(rewards))),
        ("failed", str(len(evaluation.failed)) if evaluation.failed else ""),
    ]
    output.print_pairs([(label, text) for label, text in rows if text])


def interval_rows(evaluation: Evaluation) -> list[tuple[str, str]]:
    """The confidence interval of the mean reward, named by its method; none where there is no interval."""
    from synth.estimates.intervals import mean_interval

    interval = mean_interval(list(evaluation.by_seed.values()))
    if interval is None:
        return []
    return [(f"95 % interval ({_METHODS[interval.method]})", _range(interval))]


def print_seeds(evaluation: Evaluation) -> None:
    """Print a line for each rollout, the worst first."""
    found = sorted(evaluation.rewards.values(), key=lambda r: (r.reward, r.seed, r.rollout))
    rows = [
        [
            *(str(r.seed), output.number(r.reward), r.outcome, str(r.calls), str(r.tokens)),
            *(output.seconds(r.seconds), r.rollout),
        ]
        for r in found
    ]
    rows += [[str(seed), "-", "failed", "-", "-", "-", "-"] for seed in sorted(evaluation.failed.values())]
    output.print_table(("seed", "reward", "outcome", "calls", "tokens", "took", "rollout"), rows, wrap="rollout")


def _mean_cells(evaluation: Evaluation) -> list[str]:
    from synth.estimates.intervals import mean_interval

    rewards = list(evaluation.by_seed.values())
    return [output.number(statistics.fmean(rewards)), str(len(rewards)), _range(mean_interval(rewards))]


def _estimate_rows(name: str, found: Estimate) -> list[tuple[str, str]]:
    return [(name, output.number(found.value)), (f"{name} 95 % interval", _range(found.interval))]


def _range(interval: Interval | None) -> str:
    if interval is None:
        return "-"
    return interval_text(interval.low, interval.high)


def interval_text(low: float, high: float) -> str:
    """Both ends of an interval: as people read them, and apart for programs."""
    return Cell(f"{output.number(low)} … {output.number(high)}", f"{low} {high}")


def _signed(value: float) -> str:
    return Cell(("+" if value > 0 else "") + output.number(value), value)


def _gain(a: Evaluation, b: Evaluation, seed: int) -> str:
    return _signed(b.by_seed[seed] - a.by_seed[seed])


def _verdict(interval: Interval | None) -> str:
    if interval is None:
        return "one seed tells nothing of the others"
    if interval.low > 0 or interval.high < 0:
        return f"{'B' if interval.low > 0 else 'A'} is better: the interval does not hold 0"
    return "the interval holds 0: on these seeds, neither is better for certain"


def _seeds(evaluation: Evaluation) -> str:
    seeds = sorted(evaluation.by_seed)
    return f"{len(seeds)} from {seeds[0]} to {seeds[-1]}" if seeds else "none"
