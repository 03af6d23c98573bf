"""`synthd`: a service as one process, and what an operator does with the bus and the secrets (`bus_admin`)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import typer
from typer.exceptions import TyperException

from synth.cli.tui.help import explain_usage, tidy
from synth.errors import UserError
from synth.events.catalogue import SERVICES
from synth.runtime.extras import install_command
from synth.runtime.process_end import run_and_end
from synth.runtime.startup import collector_off

_HELP = """Run a service of Synth as one process, or manage the bus and the secrets.

Settings: SYNTH_… in the environment; docs/settings.md lists those of each service.

Exit codes: 0 ok, 1 error, 2 wrong usage, or a package that is not installed."""
_SERVICES = {
    "files": "Reads uploaded datasets line by line.",
    "gateway": "Serves the APIs, uploads and event streams.",
    "inference": "Serves models, and records rollouts.",
    "judge": "Requests scores of rollouts from judge models.",
    "rollouts": "Drives task apps, and collects rollouts into batches.",
    "trainer": "Trains models.",
    "validator": "Resolves job files, with every problem at once.",
    "verifier": "Checks what a job needs, and queues its tasks.",
}


def program() -> NoReturn:
    """Return the process `synthd`."""
    run_and_end(main)


def main(argv: list[str] | None = None) -> None:
    """Run the command of the command line; exits with its code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    first = arguments[0] if arguments else ""
    try:
        sys.exit(build(first)(arguments, prog_name="synthd", standalone_mode=False))
    except typer.Abort:
        sys.exit(1)
    except TyperException as error:
        sys.exit(explain_usage(error))
    except ModuleNotFoundError as error:
        sys.stderr.write(f"{first} needs: {install_command(error)}\n")
        sys.exit(2)
    except UserError as error:
        # A setting is wrong: no service and no log has begun.
        sys.stderr.write(f"error: {error}\n")
        sys.exit(1)


def build(first: str) -> Any:
    """Return the program as one command of click. first: the first word of the command line."""
    app = typer.Typer(
        name="synthd",
        help=_HELP,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name in SERVICES:
        app.command(name, help=_SERVICES[name], rich_help_panel="Services")(_service(name))
    if first not in SERVICES:
        # Imported here: every service runs without it.
        try:
            from synth import bus_admin
        except ModuleNotFoundError:
            if first in ("bus", "secrets"):
                raise
        else:
            app.add_typer(bus_admin.app, name="bus", rich_help_panel="Operation")
            app.command("secrets", rich_help_panel="Operation")(bus_admin.secrets)
    command = typer.main.get_command(app)
    tidy(command)
    return command


def _service(name: str) -> Callable[[], int]:
    def run() -> int:
        with collector_off():
            service = importlib.import_module(f"synth.{name}.app")
        return service.main()

    return run


if __name__ == "__main__":
    program()
