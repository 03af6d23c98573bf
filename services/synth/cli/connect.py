"""From a command's context to its surroundings and a connected client."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from synth.cli.config import Config, resolve

if TYPE_CHECKING:
    from synth.cli.client import Client


def config_of(ctx: typer.Context) -> Config:
    """The settings of this invocation."""
    return resolve(backend=ctx.obj.backend, env_file=ctx.obj.env_file)


def client_of(ctx: typer.Context) -> Client:
    """A client of the backend. Raises `NotAuthorised` without a key."""
    from synth.cli.client import Client

    return Client(config_of(ctx))
