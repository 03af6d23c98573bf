"""Read the settings of a command from its context, and open its client of the backend."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from synth.client.connections.config import Config, find_default_env_file, resolve

if TYPE_CHECKING:
    from synth.client import Client

Backend = Annotated[str | None, typer.Option(metavar="URL", help="The backend's address; BACKEND_BASE_URL.")]
EnvFiles = Annotated[
    list[Path] | None, typer.Option(metavar="FILE", help="Keys and addresses, instead of .env. Repeatable.")
]

TrustApp = Annotated[
    bool,
    typer.Option("--trust-app", help="Confirm the app's origin: ENVIRONMENT_API_KEY is sent to it, now and later."),
]


def override_options(ctx: typer.Context, *, backend: str | None, env_files: list[Path] | None) -> None:
    """Let the options after the command override those before it."""
    ctx.obj = dataclasses.replace(
        ctx.obj, backend=backend or ctx.obj.backend, env_files=tuple(env_files or ctx.obj.env_files)
    )


def flags_of_command_line(ctx: typer.Context, parameters: Iterable[str]) -> list[str]:
    """Return the flags of these parameters that the command line has, an argument by its name in the help."""
    known: dict[str, Any] = {param.name: param for param in ctx.command.params}
    sources = [(known[name], ctx.get_parameter_source(name)) for name in parameters]
    given = [param for param, source in sources if source is not None and source.name == "COMMANDLINE"]
    return [param.opts[0] if param.opts[0].startswith("-") else param.metavar for param in given]


def get_env_files(ctx: typer.Context) -> tuple[Path, ...]:
    """Return the files that settings are read from; commands write new keys to the first."""
    return ctx.obj.env_files or (find_default_env_file(),)


def load_config(ctx: typer.Context, *, may_be_new: bool = False) -> Config:
    """Return the settings of this invocation. may_be_new: the first env file need not be there."""
    files = get_env_files(ctx)
    optional = files if not ctx.obj.env_files else files[:1] if may_be_new else ()
    # A file that is named need not be there when it is the default's name.
    config = resolve(backend=ctx.obj.backend, env_files=files, optional=(*optional, Path(".env")))
    if ctx.obj.trust_backend:
        from synth.cli.confirmation import remember

        remember("SYNTH_API_KEY", config.backend.text)
    return config


def open_client(ctx: typer.Context) -> Client:
    """Open a client of the backend. Raises `NotAuthorised` without a key, and `UnconfirmedOrigin`."""
    from synth.cli.confirmation import confirm
    from synth.client import Client

    config = load_config(ctx)
    confirm(config.require_api_key(), config.backend)
    return Client(config, retry_budget=ctx.obj.retry_for, timeout=ctx.obj.request_timeout)
