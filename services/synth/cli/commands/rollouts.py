"""`synthctl rollouts ls | show`: a job's rollouts, with their conversations and rewards."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from synth.cli.commands.jobs.options import JobArgument
from synth.cli.connect import open_client
from synth.cli.tui import output
from synth.cli.tui.output import Format, Output

app = typer.Typer(help="Rollouts: ls, show. Their conversations and rewards.", no_args_is_help=True)


class Mode(StrEnum):
    """The purpose of a rollout."""

    TRAIN = "train"
    EVAL = "eval"


@app.command()
def ls(
    ctx: typer.Context,
    job: JobArgument,
    iteration: Annotated[int | None, typer.Option(min=0, help="Only rollouts of this iteration.")] = None,
    seed: Annotated[int | None, typer.Option(help="Only rollouts of this seed.")] = None,
    mode: Annotated[Mode | None, typer.Option(help="Only rollouts of training, or of evaluations.")] = None,
    worst: Annotated[bool, typer.Option("--worst", help="The lowest rewards first.")] = False,
    best: Annotated[bool, typer.Option("--best", help="The highest rewards first.")] = False,
    failed: Annotated[
        bool, typer.Option("--failed", help="Only rollouts that failed, by the environment or policy, or were late.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 20,
    fmt: Output = Format.TABLE,
) -> None:
    """List the rollouts of a job that are over, newest first. `rollouts show` reads one."""
    from synth.cli.tui.rollout.listing import print_rollouts
    from synth.console.errors import UsageProblem

    if worst and best:
        raise UsageProblem("--worst and --best together", expected="one of them")
    sort = "worst" if worst else "best" if best else "newest"
    with open_client(ctx) as client:
        filters = {"iteration": iteration, "seed": seed, "mode": mode and mode.value, "failed": failed, "sort": sort}
        rollouts = list(client.jobs.rollouts(job, limit=limit, **filters))
    if fmt is Format.JSON:
        return output.print_json(rollouts)
    print_rollouts(rollouts)
    if rollouts:
        return output.hint(f"read one: synthctl rollouts show {job} {rollouts[0].id.removeprefix(f'{job}_')}")
    filtered = any(value not in (None, False) for value in (iteration, seed, mode, failed))
    return output.hint("no such rollouts" if filtered else "no rollout is over yet")


@app.command()
def show(
    ctx: typer.Context,
    job: JobArgument,
    rollout: Annotated[str, typer.Argument(metavar="ROLLOUT", help="As `ls` shows it: t1_9.")],
    draw: Annotated[bool, typer.Option("--draw/--no-draw", help="Draw images if the terminal can.")] = True,
    fmt: Output = Format.TABLE,
) -> None:
    """Read one rollout: its conversation, the task app's answer, its reward, and whether it was trained on."""
    from synth.cli.tui.rollout.pictures import can_draw
    from synth.cli.tui.rollout.transcript import print_rollout

    with open_client(ctx) as client:
        detail = client.jobs.rollout(job, rollout)
        if fmt is Format.JSON:
            return output.print_json(detail)
        return print_rollout(detail, client.image if draw and can_draw() else None)
