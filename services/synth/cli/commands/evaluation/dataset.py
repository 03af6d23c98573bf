"""`synthctl eval --dataset` and `synthctl compare`: models on the rows of a file, in one table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from synth.cli.connect import load_config, open_client
from synth.cli.tui import output
from synth.cli.tui.completion import complete_models
from synth.cli.tui.output import Format, Output
from synth.console.errors import CliError, UsageProblem

if TYPE_CHECKING:
    from synth.cli.comparison.models import ModelResult, Plan
    from synth.cli.comparison.scoring import Scorer
    from synth.cli.sampling.budget import Price
    from synth.cli.sampling.endpoints import HostedModels, SamplingOptions
    from synth.client import Client

Grader = Annotated[Path | None, typer.Option(metavar="FILE", help="A grader as JSON or TOML that scores replies.")]
Judge = Annotated[
    Path | None, typer.Option(metavar="FILE", help="A TOML with [rubric] and [judge.options]: a judge scores.")
]
JudgeModel = Annotated[
    str | None,
    typer.Option(
        metavar="ID",
        help="A judge that compares each reply with the first model's, in both orders.",
        autocompletion=complete_models,
    ),
]
BaseUrl = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="The API of the models that the cluster does not list; its key is OPENAI_API_KEY."
    ),
]
TrustModelUrl = Annotated[
    bool, typer.Option("--trust-model-url", help="Confirm that OPENAI_API_KEY may be sent to --base-url.")
]
ApiPatience = Annotated[float, typer.Option(metavar="S", min=0, help="Seconds for which a busy API is called again.")]
ReplyTimeout = Annotated[
    float, typer.Option(metavar="S", min=1, help="Seconds that a reply behind --base-url may take.")
]
Limit = Annotated[int | None, typer.Option(min=1, help="Only the first N rows.")]
Prices = Annotated[
    list[str] | None,
    typer.Option(metavar="MODEL=IN,OUT", help="The price of a million tokens of prompts and of replies. Repeatable."),
]


Temperature = Annotated[
    float | None, typer.Option(metavar="T", min=0, help="The sampling temperature; the API's own if none.")
]
MaxTokens = Annotated[int | None, typer.Option(min=1, help="Tokens of a reply, at most.")]


def compare_models_command(
    ctx: typer.Context,
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="TEACHER STUDENT…",
            help="Two models or more; each is compared with the first.",
            autocompletion=complete_models,
        ),
    ],
    rows: Annotated[Path, typer.Option(metavar="FILE", help="The rows: conversations, pairs or prompts.")],
    grader: Grader = None,
    judge: Judge = None,
    judge_model: JudgeModel = None,
    base_url: BaseUrl = None,
    trust_model_url: TrustModelUrl = False,
    temperature: Temperature = None,
    max_tokens: MaxTokens = None,
    samples: Annotated[int, typer.Option(min=1, help="Replies to each row.")] = 1,
    concurrency: Annotated[int, typer.Option(min=1, help="Calls of one model at one time.")] = 8,
    limit: Limit = None,
    price: Prices = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="The folder of replies and reports; it is continued.")
    ] = Path("comparison"),
    api_patience: ApiPatience = 300.0,
    reply_timeout: ReplyTimeout = 600.0,
    fmt: Output = Format.TABLE,
) -> None:
    """Compare models on the rows of a file: scores with paired intervals, preferences, formats, latency and cost.

    A model that the cluster lists is served by it; any other one is called at --base-url. Without --grader and --judge
    a reply scores 1 if it equals the row's own. Replies are kept in --out: the same command continues, and pays for
    none twice. It writes report.md and report.html there, with the 20 rows on which the last model is worst.
    """
    if len(models) < 2:
        raise UsageProblem("one model", expected="two models or more", fix="evaluate one: synthctl eval --dataset FILE")
    from synth.cli.sampling.endpoints import HostedModels, SamplingOptions

    run_comparison(
        ctx,
        models=models,
        dataset=rows,
        out=out,
        grader=grader,
        judge=judge,
        judge_model=judge_model,
        hosted=HostedModels(base_url, trust_model_url, api_patience, reply_timeout),
        sampling=SamplingOptions(temperature=temperature, max_tokens=max_tokens),
        samples=samples,
        concurrency=concurrency,
        limit=limit,
        price=price,
        fmt=fmt,
    )


def run_comparison(
    ctx: typer.Context,
    *,
    models: list[str],
    dataset: Path,
    out: Path,
    grader: Path | None,
    judge: Path | None,
    judge_model: str | None = None,
    hosted: HostedModels,
    sampling: SamplingOptions,
    samples: int,
    concurrency: int,
    limit: int | None,
    price: list[str] | None,
    fmt: Format,
) -> None:
    """Sample, score, print the tables, and write the reports."""
    from synth.cli.comparison.models import Plan, compare_models
    from synth.cli.comparison.preference import Referee
    from synth.cli.comparison.report import write_report
    from synth.cli.comparison.table import MARKS
    from synth.cli.sampling.budget import read_prices
    from synth.cli.sampling.endpoints import open_endpoints
    from synth.cli.sampling.rows import PromptFile

    if len(models) > len(MARKS):
        raise UsageProblem(f"{len(models)} models", expected=f"at most {len(MARKS)}")
    prices = read_prices(price or [], models)
    rows = PromptFile(dataset)
    cluster = find_cluster(ctx)
    client = None if isinstance(cluster, CliError) else cluster
    try:
        scorer = open_scorer(grader, judge, cluster)
        if judge_model is not None and isinstance(cluster, CliError):
            raise UsageProblem(f"a judge runs on a cluster: {cluster.problems[0].what}", where="--judge-model")
        plan = Plan(
            rows=rows,
            endpoints=open_endpoints(models, cluster, load_config(ctx), hosted),
            options=sampling,
            scorer=scorer,
            folder=out,
            referee=Referee(client, judge_model) if client and judge_model else None,
            samples=samples,
            concurrency=concurrency,
            limit=limit,
        )
        with output.status("checking the rows") as progress:
            results = compare_models(plan, progress=progress)
    finally:
        if client is not None:
            client.close()
    paths = write_report(plan, results, prices)
    if fmt is Format.JSON:
        output.print_json(_as_data(plan, results, prices, paths))
    else:
        _print_tables(plan, results, prices, paths)


def find_cluster(ctx: typer.Context) -> Client | CliError:
    """Return a client of the cluster, or why there is none: hosted models are compared without a cluster."""
    from synth.console.errors import NotAuthorised, Unreachable

    try:
        client = open_client(ctx)
        client.account()
    except (NotAuthorised, Unreachable) as error:
        return error
    return client


def open_scorer(grader: Path | None, judge: Path | None, cluster: Client | CliError) -> Scorer:
    """Return what scores replies: a grader, a judge with its rubric, or the rows' own replies."""
    from synth.cli.comparison.scoring import GraderScorer, ReferenceScorer, read_grader, read_rubric

    if grader is not None and judge is not None:
        raise UsageProblem("--grader and --judge", expected="one of them: a reply has one score")
    if grader is not None:
        return GraderScorer(read_grader(grader), cluster)
    if judge is None:
        return ReferenceScorer()
    if isinstance(cluster, CliError):
        raise UsageProblem(f"a judge runs on a cluster: {cluster.problems[0].what}", where="--judge")
    return read_rubric(judge, cluster)


def _print_tables(plan: Plan, results: list[ModelResult], prices: dict[str, Price], paths: list[str]) -> None:
    from synth.cli.comparison.paired import against_first
    from synth.cli.comparison.report import figures
    from synth.cli.comparison.table import MARKS, print_paired

    measured = [result.measured for result in results]
    output.message(f"score: {plan.scorer.title}")
    print_paired(measured, against_first(measured), heading="model", unit="row")
    output.print_line("")
    table = figures(results, prices)
    # Models as columns, by their letters: the figures are more than a terminal is wide.
    output.print_table(
        ("figure", *MARKS[: len(results)]),
        [[name, *(row[i] for row in table.rows)] for i, name in enumerate(table.head) if i],
    )
    for result in results:
        if len(result.returned_models) > 1:
            names = ", ".join(sorted(result.returned_models))
            output.warn(f"{result.model} answered as several models: {names}; the comparison mixes them")
        if result.failures:
            row, reason = next(iter(result.failures.items()))
            output.warn(f"{result.model}: no reply to {len(result.failures)} rows, such as row {row}: {reason}")
        if result.unscored:
            row, reason = next(iter(result.unscored.items()))
            output.warn(f"{result.model}: no score of {len(result.unscored)} rows, such as row {row}: {reason}")
    output.message(f"wrote {' and '.join(paths)}")
    if all(not result.scores for result in results):
        raise CliError("no reply has a score")


def _as_data(plan: Plan, results: list[ModelResult], prices: dict[str, Price], paths: list[str]) -> dict[str, Any]:
    """Return the comparison for programs."""
    from synth.cli.comparison.paired import against_first

    differences = against_first([result.measured for result in results])
    return {
        "rows": str(plan.rows.path),
        "score": plan.scorer.title,
        "models": [
            {
                "model": r.model,
                "served_by": r.where,
                "returned_models": sorted(r.returned_models),
                "mean": r.measured.mean,
                "interval": r.measured.interval,
                "rows": len(r.scores),
                "difference": difference,
                "wins": sum(r.wins.values()) / len(r.wins) if r.wins else None,
                "order_decided": r.order_decided if r.wins else None,
                "valid_formats": r.formats.value,
                "valid_tool_calls": r.tool_calls.value,
                "latency_p50_s": r.latency(0.5),
                "latency_p95_s": r.latency(0.95),
                "prompt_tokens": r.prompt_tokens,
                "completion_tokens": r.completion_tokens,
                "cost_of_1000_calls": r.cost_of_1000(prices.get(r.model)),
                "cut_off": r.truncated,
                "failures": r.failures,
                "unscored": r.unscored,
            }
            for r, difference in zip(results, differences, strict=True)
        ],
        "reports": paths,
    }
