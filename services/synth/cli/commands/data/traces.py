"""`synthctl traces ls | show | export`: rollouts that were kept whole."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from synth.cli.commands.rollouts import Mode
from synth.cli.connect import open_client
from synth.cli.tui import output
from synth.cli.tui.completion import complete_jobs
from synth.cli.tui.output import Format, Output

app = typer.Typer(help="Traces: ls, show, export. Rollouts that were kept whole.", no_args_is_help=True)

Jobs = Annotated[
    list[str] | None,
    typer.Option(
        metavar="JOB",
        help="Of this job: its id, its beginning, or @last. Repeatable; without it, of all jobs.",
        autocompletion=complete_jobs,
    ),
]
OfMode = Annotated[Mode | None, typer.Option(help="Only traces of training, or of evaluations.")]
OfModel = Annotated[str | None, typer.Option(help="Only traces of jobs with this source model.")]
OfEnv = Annotated[str | None, typer.Option(help="Only traces of this environment.")]
OfSeed = Annotated[int | None, typer.Option(help="Only traces of this seed.")]
MinReward = Annotated[float | None, typer.Option(help="Only those with at least this reward.")]
MaxReward = Annotated[float | None, typer.Option(help="Only those with at most this reward.")]
Since = Annotated[datetime | None, typer.Option(help="Only those since this time (UTC).")]
Until = Annotated[datetime | None, typer.Option(help="Only those up to this time (UTC).")]


class ExportFormat(StrEnum):
    """The form of a trace in a file."""

    SYNTH = "synth"
    V3 = "v3"
    SQLITE = "sqlite"


@app.command()
def ls(
    ctx: typer.Context,
    job: Jobs = None,
    mode: OfMode = None,
    model: OfModel = None,
    env: OfEnv = None,
    seed: OfSeed = None,
    min_reward: MinReward = None,
    max_reward: MaxReward = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 20,
    fmt: Output = Format.TABLE,
) -> None:
    """List traces, newest first. `traces show` reads one."""
    from synth.cli.traces.listing import print_traces

    with open_client(ctx) as client:
        filters = _wanted(ctx, job, mode, model, env, seed, min_reward, max_reward, since, until)
        traces = list(client.traces.list(limit=limit, **filters))
    if fmt is Format.JSON:
        return output.print_json(traces)
    print_traces(traces)
    if traces:
        return output.hint(f"read one: synthctl traces show {traces[0].id}")
    return output.hint("no such traces: evaluations keep every rollout's trace, training keeps a share of them")


@app.command()
def show(
    ctx: typer.Context,
    trace: Annotated[str, typer.Argument(metavar="TRACE", help="Its whole id, as `ls` shows it.")],
    draw: Annotated[bool, typer.Option("--draw/--no-draw", help="Draw images if the terminal can.")] = True,
    fmt: Output = Format.TABLE,
) -> None:
    """Read one trace: its conversation, the task app's answers, and its judges' scores."""
    from synth.cli.traces.listing import print_trace
    from synth.cli.tui.rollout.pictures import can_draw

    with open_client(ctx) as client:
        detail = client.traces.get(trace)
        if fmt is Format.JSON:
            return output.print_json(detail)
        return print_trace(detail, client.image if draw and can_draw() else None)


@app.command()
def export(
    ctx: typer.Context,
    out: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")],
    job: Jobs = None,
    mode: OfMode = None,
    model: OfModel = None,
    env: OfEnv = None,
    seed: OfSeed = None,
    min_reward: MinReward = None,
    max_reward: MaxReward = None,
    since: Since = None,
    until: Until = None,
    format: Annotated[
        ExportFormat,
        typer.Option(
            help="synth: JSONL as the API returns it; v3: JSONL of the clients' sessions; sqlite: a database that"
            " `synth-ai filter` reads."
        ),
    ] = ExportFormat.SYNTH,
    images: Annotated[bool, typer.Option("--images/--no-images", help="Put images into it, as data URLs.")] = True,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many, the oldest.")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite FILE.")] = False,
    fmt: Output = Format.TABLE,
) -> None:
    """Write traces to a file, oldest first; prints how many."""
    from synth.cli.traces.export import export_traces
    from synth.console.errors import UsageProblem

    if out.exists() and not replace:
        raise UsageProblem("there is such a file already", fix="choose another name, or pass --replace", where=str(out))
    with open_client(ctx) as client:
        filters = _wanted(ctx, job, mode, model, env, seed, min_reward, max_reward, since, until)
        done = export_traces(client, out, kind=format.value, inline=images, limit=limit, **filters)
    if fmt is Format.JSON:
        return output.print_json(done)
    if done.expired:
        output.hint(f"{done.expired} are not kept any more, and left out")
    if done.images_gone:
        output.hint(f"{done.images_gone} name images that are gone")
    return output.print_line(f"{done.traces} traces written to {out}")


def _wanted(
    ctx: typer.Context,
    job: list[str] | None,
    mode: Mode | None,
    model: str | None,
    env: str | None,
    seed: int | None,
    min_reward: float | None,
    max_reward: float | None,
    since: datetime | None,
    until: datetime | None,
) -> dict[str, object]:
    """Return the flags as parameters of the API."""
    from synth.cli.jobs.ids import find_job_id

    jobs = None
    if job:
        with open_client(ctx) as client:
            jobs = [find_job_id(client, name) for name in job]
    return {
        "job": jobs,
        "mode": mode and mode.value,
        "model": model,
        "env_name": env,
        "seed": seed,
        "min_reward": min_reward,
        "max_reward": max_reward,
        "since": since and since.isoformat(),
        "until": until and until.isoformat(),
    }
