"""`synthctl jobs …`: find, watch, measure, pause and cancel jobs."""

from __future__ import annotations

import typer

from synth.cli.commands.jobs import compare, config, control, follow, listing, metrics

app = typer.Typer(
    help="Jobs: ls, get, config, watch, metrics, compare, events, checkpoints, pause, resume, cancel, rm.",
    no_args_is_help=True,
)
for name, command in (
    ("ls", listing.ls),
    ("get", listing.get),
    ("config", config.config),
    ("watch", follow.watch),
    ("events", follow.events),
    ("metrics", metrics.metrics),
    ("compare", compare.compare),
    ("checkpoints", metrics.checkpoints),
    ("pause", control.pause),
    ("resume", control.resume),
    ("cancel", control.cancel),
    ("rm", control.rm),
):
    app.command(name)(command)
