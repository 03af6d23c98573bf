"""`synthctl eval …`: run evaluations, look at their seeds, compare them."""

from __future__ import annotations

import typer

from synth.cli.commands.evaluation import results, run
from synth.cli.tui.groups import RunByDefault

app = typer.Typer(
    cls=RunByDefault,
    no_args_is_help=True,
    help="Evaluations: run, show, compare. `synthctl eval FILE` and `synthctl eval --model ID …` run one.",
)
for name, command in (("run", run.evaluate), ("show", results.show), ("compare", results.compare)):
    app.command(name)(command)
