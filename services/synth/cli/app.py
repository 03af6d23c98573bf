"""`synthctl`: the command line. This module only wires commands together, so that it starts fast."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, NoReturn

import typer
from typer.exceptions import TyperException

from synth.cli.commands import audit, chat, config, dead, demo, keys, limits, models, rollouts, submit
from synth.cli.commands.cluster import backup, doctor, logs, run, setup
from synth.cli.commands.data import distil, files, filter, import_account, traces
from synth.cli.commands.evaluation import app as evaluation
from synth.cli.commands.evaluation import dataset
from synth.cli.commands.jobs import app as jobs
from synth.cli.commands.task_app import deploy, listing, play, serve
from synth.cli.connect import Backend, EnvFiles
from synth.cli.tui.output import warn
from synth.cli.tui.stdio import end_quietly_without_reader
from synth.console.errors import ExitCode
from synth.runtime.environment.unknown_settings import unknown_settings
from synth.runtime.process_end import run_and_end

# One line a paragraph: the terminal wraps them.
_HELP = "\n\n".join(
    (
        "Train language models on a Synth cluster: a TOML in, a served model out.",
        "Data goes to stdout, messages to stderr; `-o json` prints JSON for programs.",
        "Exit codes: 0 ok, 1 error, 2 wrong usage or configuration, 3 job failed or rejected, 4 API key missing or"
        " refused, 5 job cancelled, 6 not found, 7 backend unreachable, 124 timeout, 130 interrupted (a followed job"
        " goes on).",
        "Settings: flags, then SYNTH_API_KEY, BACKEND_BASE_URL (or BACKEND_OVERRIDE), ENVIRONMENT_API_KEY and"
        " TASK_APP_URL from the environment, then from the nearest .env (here or in a folder above, up to git's root or"
        " your home), or from each --env-file: a later file sets only the names that earlier ones do not set.",
    )
)

app = typer.Typer(
    name="synthctl",
    help=_HELP,
    no_args_is_help=True,
    # Help and errors are printed by us.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@dataclass(frozen=True)
class Options:
    """The options that stand before the command."""

    backend: str | None
    env_files: tuple[Path, ...]
    debug: bool
    request_timeout: float | None
    retry_for: float | None
    trust_backend: bool


def _print_version(value: bool) -> None:
    if not value:
        return
    from importlib.metadata import version

    typer.echo(f"synthctl {version('synthctl')}")
    raise typer.Exit


@app.callback()
def options(
    ctx: typer.Context,
    backend: Backend = None,
    env_file: EnvFiles = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    request_timeout: Annotated[
        float | None,
        typer.Option(
            metavar="S",
            min=0.1,
            help="Seconds that the backend may take to answer a request; 30 by default, and longer for requests that"
            " read much. A chat may take as long as the backend allows.",
        ),
    ] = None,
    retry_for: Annotated[
        float | None,
        typer.Option(
            metavar="S",
            min=0,
            help="Seconds for which a request is sent again while the backend is away or busy; without it 5.",
        ),
    ] = None,
    trust_backend: Annotated[
        bool,
        typer.Option(
            "--trust-backend", help="Confirm the backend's origin: SYNTH_API_KEY is sent to it, now and later."
        ),
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version, and end.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    ctx.obj = Options(
        backend=backend,
        env_files=tuple(env_file or ()),
        debug=debug,
        request_timeout=request_timeout,
        retry_for=retry_for,
        trust_backend=trust_backend,
    )
    for sentence in unknown_settings(os.environ):
        warn(sentence)


for name, command, panel in (
    ("setup", setup.setup, "Cluster"),
    ("up", run.up, "Cluster"),
    ("down", run.down, "Cluster"),
    ("status", run.status, "Cluster"),
    ("backup", backup.backup, "Cluster"),
    ("restore", backup.restore, "Cluster"),
    ("logs", logs.logs, "Cluster"),
    ("doctor", doctor.doctor, "Cluster"),
    ("demo", demo.demo, "Work"),
    ("submit", submit.submit, "Work"),
    ("compare", dataset.compare_models_command, "Work"),
    ("chat", chat.chat, "Work"),
    ("serve", serve.serve, "Work"),
    ("play", play.play, "Work"),
    ("filter", filter.filter_traces, "Work"),
    ("distil", distil.distil, "Work"),
):
    app.command(name, rich_help_panel=panel)(command)
app.add_typer(evaluation.app, name="eval", rich_help_panel="Work")
app.add_typer(deploy.app, name="deploy", rich_help_panel="Work")
app.add_typer(jobs.app, name="jobs", rich_help_panel="Things")
app.add_typer(listing.app, name="apps", rich_help_panel="Things")
app.add_typer(rollouts.app, name="rollouts", rich_help_panel="Things")
app.add_typer(traces.app, name="traces", rich_help_panel="Things")
app.add_typer(files.app, name="files", rich_help_panel="Things")
app.add_typer(models.app, name="models", rich_help_panel="Things")
app.add_typer(config.app, name="config", rich_help_panel="Things")
app.add_typer(import_account.app, name="import", rich_help_panel="Things")
app.add_typer(keys.app, name="keys", rich_help_panel="Access")
app.add_typer(keys.orgs_app, name="orgs", rich_help_panel="Access")
app.command("audit", rich_help_panel="Access")(audit.audit)
app.command("limits", rich_help_panel="Access")(limits.limits)
app.add_typer(dead.app, name="dead", rich_help_panel="Cluster")


def program() -> NoReturn:
    """Return the process `synthctl`."""
    run_and_end(main)


def main() -> None:
    """Run one command. An error that a user can cause is a message and an exit code, never a traceback."""
    debug = "--debug" in sys.argv or bool(os.environ.get("SYNTH_DEBUG"))
    end_quietly_without_reader()
    try:
        sys.exit(_run())
    except typer.Abort:
        typer.echo("aborted", err=True)
        sys.exit(ExitCode.ERROR)
    except TyperException as error:
        from synth.cli.tui.help import explain_usage

        sys.exit(explain_usage(error))
    except Exception as error:
        if debug:
            sys.excepthook = _print_traceback
            raise
        sys.exit(_explain(error))
    finally:
        # Here a reader that has gone still ends the program quietly; later, nothing would catch it.
        sys.stdout.flush()
        sys.stderr.flush()


def _run() -> Any:
    """Run the command line. Returns an exit code, or the command's return value, which is None."""
    from synth.cli.tui.bash_words import ASKED, complete_in_bash

    command = build()
    variable, complete = ASKED
    if os.environ.get(variable) == complete:
        complete_in_bash(lambda: command(prog_name="synthctl"))
    return command(prog_name="synthctl", standalone_mode=False)


def build() -> Any:
    """Return the program as one command of click."""
    from synth.cli.command_tree import build_lazily

    return build_lazily(app)


def _print_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    import traceback

    from synth.cli.tui.output import print_error

    print_error("".join(traceback.format_exception(kind, error, trace)))


def _explain(error: Exception) -> int:
    from synth.cli.tui.output import show_problems
    from synth.console.errors import CliError
    from synth.errors import Problem, UserError

    if isinstance(error, CliError):
        show_problems(error.problems)
        return error.code
    if isinstance(error, UserError):
        show_problems(error.problems)
        return ExitCode.USAGE
    if isinstance(error, OSError):
        where = str(error.filename) if error.filename else ""
        show_problems([Problem(what=error.strerror or str(error), where=where)])
        return ExitCode.ERROR
    if isinstance(error, ModuleNotFoundError):
        from synth.runtime.extras import install_command

        typer.echo(f"{_verb()} needs: {install_command(error)}", err=True)
        return ExitCode.USAGE
    if type(error).__module__.startswith("httpx"):
        fix = "is the cluster running? `synthctl status` shows it"
        show_problems([Problem(what=f"the connection to the backend broke ({error})", fix=fix)])
        return ExitCode.UNREACHABLE
    what = f"unexpected {type(error).__name__}: {error}"
    show_problems([Problem(what=what, fix="this is a fault of synthctl; `synthctl --debug …` shows its traceback")])
    return ExitCode.ERROR


def _verb() -> str:
    """Return the command that runs, as in `models make`."""
    command, words = build(), list[str]()
    for argument in sys.argv[1:]:
        below = getattr(command, "commands", {})
        if argument in below:
            command = below[argument]
            words.append(argument)
    return " ".join(words)
