"""`synthctl eval …`: run evaluations, look at their seeds, compare them."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from synth.cli.commands.evaluation import results, run


class _RunByDefault(TyperGroup):
    """`synthctl eval FILE` and `synthctl eval --model …` are `synthctl eval run …`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in {*self.commands, *ctx.help_option_names}:
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_RunByDefault,
    no_args_is_help=True,
    help="Evaluations: run, show, compare. `synthctl eval FILE` and `synthctl eval --model ID …` run one.",
)
for name, command in (("run", run.evaluate), ("show", results.show), ("compare", results.compare)):
    app.command(name)(command)
