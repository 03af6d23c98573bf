"""`synthctl keys judge …`: the keys of judges' APIs, by the names that job files give."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from synth.cli.connect import open_client
from synth.cli.tui import output
from synth.cli.tui.output import Format, Output
from synth.console.errors import UsageProblem

app = typer.Typer(help="Keys of judges' APIs, by name: add, ls, rm.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The name that a judge's `key` gives.")]
UrlOption = Annotated[
    str, typer.Option(help="The API's address, such as https://api.example.com/v1; the key is sent nowhere else.")
]


@app.command("add")
def add(ctx: typer.Context, name: NameArgument, url: UrlOption, fmt: Output = Format.TABLE) -> None:
    """Store a key, which is typed in hidden, or read from standard input. An earlier one of this name is replaced."""
    if sys.stdin.isatty():
        key = typer.prompt("Key of the judge's API (hidden)", hide_input=True, err=True)
    else:
        key = sys.stdin.readline()
    if not (key := key.strip()):
        raise UsageProblem("the key is empty", expected="the key on standard input", where="keys judge add")
    with open_client(ctx) as client:
        made = client.keys.add_judge_key(name, key, url=url)
    if fmt is Format.JSON:
        return output.print_json(made)
    return output.message(f"{made.name} stored for {made.origin}")


@app.command("ls")
def ls(ctx: typer.Context, fmt: Output = Format.TABLE) -> None:
    """List the names; a key itself is never shown."""
    with open_client(ctx) as client:
        names = client.keys.judge_keys()
    if fmt is Format.JSON:
        return output.print_json(names)
    return output.print_table(("name",), [[item.name] for item in names], wrap="name")


@app.command("rm")
def rm(ctx: typer.Context, name: NameArgument, fmt: Output = Format.TABLE) -> None:
    """Forget a key: a job whose judge needs it is refused from then on."""
    with open_client(ctx) as client:
        removed = client.keys.remove_judge_key(name)
    if fmt is Format.JSON:
        return output.print_json(removed)
    return output.message(f"{removed.name} forgotten")
