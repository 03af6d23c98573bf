"""From a command's context to its settings and a client of the backend."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from synth.cli.config import Config, resolve

if TYPE_CHECKING:
    from synth.cli.api.client import Client

Backend = Annotated[
    str | None,
    typer.Option("--backend", metavar="URL", help="The backend's address; BACKEND_BASE_URL.", show_default=False),
]
EnvFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--env-file", metavar="FILE", help="Keys and addresses, instead of ./.env. Repeatable.", show_default=False
    ),
]
_DEFAULT = Path(".env")


def override_options(ctx: typer.Context, *, backend: str | None, env_files: list[Path] | None) -> None:
    """Let the options after the command override those before it."""
    ctx.obj = dataclasses.replace(
        ctx.obj, backend=backend or ctx.obj.backend, env_files=tuple(env_files or ctx.obj.env_files)
    )


def get_env_files(ctx: typer.Context) -> tuple[Path, ...]:
    """The files that settings are read from; what a command makes is written to the first."""
    return ctx.obj.env_files or (_DEFAULT,)


def load_config(ctx: typer.Context, *, may_be_new: bool = False) -> Config:
    """The settings of this invocation. may_be_new: the first env file need not be there."""
    files = get_env_files(ctx)
    return resolve(backend=ctx.obj.backend, env_files=files, optional=(_DEFAULT, *(files[:1] if may_be_new else ())))


def open_client(ctx: typer.Context) -> Client:
    """A client of the backend. Raises `NotAuthorised` without a key."""
    from synth.cli.api.client import Client

    return Client(load_config(ctx))
