"""`synthctl setup`: the keys and addresses that every other command reads."""

from __future__ import annotations

from typing import Annotated

import typer

from synth.cli.connect import Backend, EnvFiles, get_env_files, load_config, open_client, override_options
from synth.cli.tui import output
from synth.cli.tui.output import Format, Output


def setup(
    ctx: typer.Context,
    api_key: Annotated[str | None, typer.Option(metavar="KEY", help="Your SYNTH_API_KEY.")] = None,
    environment_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Your task apps' ENVIRONMENT_API_KEY; else one is made.")
    ] = None,
    task_url: Annotated[str | None, typer.Option(metavar="URL", help="Your TASK_APP_URL.")] = None,
    backend: Backend = None,
    env_file: EnvFiles = None,
    approve: Annotated[
        str | None,
        typer.Option(metavar="CODE", help="Approve the machine that shows this code: it gets keys of yours."),
    ] = None,
    no_input: Annotated[bool, typer.Option("--no-input", help="Never ask, also on a terminal.")] = False,
    fmt: Output = Format.TABLE,
) -> None:
    """Write missing settings into the nearest .env (or --env-file), and store your task apps' key at the backend.

    Existing lines of the file are never changed. On a terminal it prompts for each value that has no flag. `synthctl
    up` does the same for a cluster on this machine. `--approve` writes nothing here: it gives a key to the machine on
    which `synth-ai setup` waits.
    """
    import sys

    from synth.cli.onboarding import (
        SetupAnswers,
        check_key,
        confirm_origins,
        merge_answers,
        prompt_for_missing,
        register_environment_key,
        write_env_file,
    )

    override_options(ctx, backend=backend, env_files=env_file)
    if approve is not None:
        return _approve(ctx, approve, fmt)
    settings = load_config(ctx, may_be_new=True)
    answers = SetupAnswers(backend=ctx.obj.backend, api_key=api_key, environment_key=environment_key, task_url=task_url)
    if sys.stdin.isatty() and not no_input:
        answers = prompt_for_missing(answers, settings)
    merged = merge_answers(answers, settings)
    confirm_origins(answers, merged)
    check_key(answers, merged)
    target = get_env_files(ctx)[0]
    rows = write_env_file(answers, settings, target)
    outcome = register_environment_key(load_config(ctx, may_be_new=True))
    if fmt is Format.JSON:
        return output.print_json({"env_file": str(target), "settings": dict(rows), "backend": outcome})
    output.print_table(("setting", "where"), [list(row) for row in rows], wrap="where")
    if outcome.problem:
        output.warn(outcome.problem)
        output.hint(outcome.fix)
    else:
        output.hint(f"the backend answers as {outcome.organisation}, and knows the key of your task apps")
    return None


def _approve(ctx: typer.Context, code: str, fmt: Format) -> None:
    with open_client(ctx) as client:
        approved = client.keys.approve_device(code)
    if fmt is Format.JSON:
        return output.print_json(approved)
    return output.print_line(f"approved {approved.code}: the machine gets its keys at its next poll, within seconds")
