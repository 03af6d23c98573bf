"""`synthctl demo`: the first job, from nothing to a model that learned."""

from __future__ import annotations

from typing import Annotated

import typer

from synth.cli.commands.cluster.run import EngineChoice


def demo(
    seed: Annotated[int, typer.Option(min=0, help="The seed of the model's first weights and of the jobs.")] = 0,
    port: Annotated[int, typer.Option(min=1, max=65535, help="The gateway's port, on loopback.")] = 8000,
    engine: Annotated[EngineChoice, typer.Option(help="What serves the models.")] = EngineChoice.OWN,
) -> None:
    """Train a tiny model on this machine: SFT, then RL, by the commands that you would type.

    It starts a cluster in this folder, and ends it again. The figures and the job files are in .synth/demo.
    """
    from synth.cli.demo.run import run

    raise typer.Exit(run(seed=seed, port=port, engine=engine.value))
