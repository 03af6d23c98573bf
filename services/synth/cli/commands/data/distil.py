"""`synthctl distil`: a dataset of a teacher's replies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from synth.cli.commands.evaluation.dataset import (
    ApiPatience,
    BaseUrl,
    Grader,
    Judge,
    Limit,
    MaxTokens,
    ReplyTimeout,
    Temperature,
    TrustModelUrl,
    find_cluster,
    open_scorer,
)
from synth.cli.connect import load_config
from synth.cli.tui import output
from synth.cli.tui.completion import complete_models
from synth.cli.tui.output import Format, Output
from synth.console.errors import CliError, UsageProblem

if TYPE_CHECKING:
    from synth.cli.distilling.run import DistillationReport
    from synth.cli.sampling.budget import SpendingLimit


def distil(
    ctx: typer.Context,
    teacher: Annotated[
        str, typer.Option(metavar="MODEL", help="The model that replies.", autocompletion=complete_models)
    ],
    prompts: Annotated[Path, typer.Option(metavar="FILE", help="Prompts; of conversations all but the last reply.")],
    may_train: Annotated[
        bool,
        typer.Option("--i-may-train-on-this", help="Confirm that the terms allow to train on its replies."),
    ] = False,
    base_url: BaseUrl = None,
    trust_model_url: TrustModelUrl = False,
    n: Annotated[int, typer.Option(min=1, help="Replies to each prompt.")] = 1,
    temperature: Temperature = None,
    top_p: Annotated[float | None, typer.Option(metavar="P", min=0, max=1, help="Of the sampling.")] = None,
    max_tokens: MaxTokens = None,
    logprobs: Annotated[
        int | None, typer.Option(min=0, help="Keep each token's log-probability and N alternatives in the answers.")
    ] = None,
    grader: Grader = None,
    judge: Judge = None,
    min_score: Annotated[float | None, typer.Option(metavar="S", help="Keep replies with at least this score.")] = None,
    best: Annotated[int | None, typer.Option(min=1, help="Keep the best N replies of each prompt.")] = None,
    pairs: Annotated[
        bool, typer.Option("--pairs", help="Rows for DPO: the best reply of each prompt against the worst.")
    ] = False,
    keep_cut_off: Annotated[
        bool, typer.Option("--keep-cut-off", help="Keep replies that ended at the token limit.")
    ] = False,
    max_calls: Annotated[int | None, typer.Option(min=1, help="Calls of this run, at most.")] = None,
    max_cost: Annotated[
        float | None, typer.Option(metavar="M", min=0, help="Money of this run, at most; needs --price, --max-tokens.")
    ] = None,
    price: Annotated[
        str | None, typer.Option(metavar="IN,OUT", help="The price of a million tokens of prompts and of replies.")
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Calls at one time.")] = 8,
    limit: Limit = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder of replies and rows; it is continued.")] = Path(
        "distilled"
    ),
    api_patience: ApiPatience = 300.0,
    reply_timeout: ReplyTimeout = 600.0,
    fmt: Output = Format.TABLE,
) -> None:
    """Sample a teacher on prompts, and write its good replies as rows that SFT or DPO trains as they are.

    Tools, images and `response_format` of a row are sent with it. Replies are kept in --out: the same command
    continues, and pays for none twice. Refusals, empty and cut-off replies, invalid tool calls and formats, and
    duplicates are dropped; with --grader or --judge also those below --min-score. rows.jsonl in --out is the dataset.
    """
    from synth.cli.distilling.run import DistillationPlan, distil
    from synth.cli.distilling.selection import KeepRules
    from synth.cli.distilling.terms import terms_of
    from synth.cli.sampling.budget import SpendingLimit, check_limits, read_prices
    from synth.cli.sampling.endpoints import HostedModels, SamplingOptions, open_endpoints
    from synth.cli.sampling.rows import PromptFile

    scores = grader is not None or judge is not None
    needs_scores = {"--min-score": min_score, "--best": best, "--pairs": pairs or None}
    if not scores and (flags := [flag for flag, value in needs_scores.items() if value is not None]):
        raise UsageProblem(f"{', '.join(flags)} without a score", fix="give --grader FILE or --judge FILE")
    if pairs and n < 2:
        raise UsageProblem("--pairs with one reply to each prompt", expected="--n 2 or more", where="--n")
    if pairs and best is not None:
        raise UsageProblem("--pairs and --best", expected="one of them: a pair is the best and the worst reply")
    prices = read_prices([price] if price else [], [teacher])
    check_limits(max_cost=max_cost, price=prices.get(teacher), max_tokens=max_tokens)
    cluster = find_cluster(ctx)
    hosted = HostedModels(base_url, trust_model_url, api_patience, reply_timeout)
    [endpoint] = open_endpoints([teacher], cluster, load_config(ctx), hosted)
    if not may_train:
        raise UsageProblem(
            f"is it allowed to train a model on the replies of {teacher}?",
            expected=f"an answer from {terms_of(endpoint.where)}",
            fix="if it is, add --i-may-train-on-this",
        )
    output.message(f"replies of {teacher}: {terms_of(endpoint.where)} hold")
    plan = DistillationPlan(
        rows=PromptFile(prompts),
        endpoint=endpoint,
        options=SamplingOptions(temperature, top_p, max_tokens, logprobs),
        rules=KeepRules(min_score=min_score, best=best, pairs=pairs, cut_off=keep_cut_off),
        folder=out,
        scorer=open_scorer(grader, judge, cluster) if scores else None,
        spending=SpendingLimit(max_calls=max_calls, max_cost=max_cost, price=prices.get(teacher)),
        samples=n,
        concurrency=concurrency,
        limit=limit,
    )
    with output.status("checking the prompts") as progress:
        report = distil(plan, progress)
    _show(report, plan.spending, fmt)
    if not report.rows:
        raise CliError("no row is left", fix=f"the replies are in {out / 'answers'}; see what dropped them above")
    if not isinstance(cluster, CliError):
        cluster.close()
    output.hint(f"train on it: synthctl submit {'dpo' if pairs else 'sft'}.toml --dataset {report.file}")


def _show(report: DistillationReport, spending: SpendingLimit, fmt: Format) -> None:
    dropped = {reason: count for reason, count in report.dropped.items() if count}
    if fmt is Format.JSON:
        output.print_json(
            {
                "file": str(report.file),
                "rows": report.rows,
                "prompts": report.prompts,
                "repeated_prompts": report.repeated,
                "sampled": report.sampling.sampled,
                "kept_from_before": report.sampling.kept,
                "cost": spending.cost if spending.price else None,
                "stopped_by_the_limit": report.sampling.stopped,
                "dropped": dropped,
                "refused": report.refused,
            }
        )
    else:
        rows = [
            ("prompts", output.count(report.prompts)),
            ("repeated prompts", output.count(report.repeated)),
            ("replies", output.count(report.sampling.sampled + report.sampling.kept)),
            ("of them from before", output.count(report.sampling.kept)),
            *((f"dropped: {reason}", output.count(count)) for reason, count in dropped.items()),
            ("rows", output.count(report.rows)),
            ("cost", output.number(spending.cost) if spending.price else "-"),
            ("dataset", str(report.file)),
        ]
        output.print_pairs([(label, text) for label, text in rows if text != "-"])
    if report.refused:
        row, reason = next(iter(report.refused.items()))
        output.warn(f"no reply to {len(report.refused)} prompts, such as row {row}: {reason}")
    if report.sampling.stopped:
        output.warn("the limit of calls or money ended the sampling; the same command continues with the rest")
