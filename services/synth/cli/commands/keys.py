"""`synthctl keys …` and `synthctl orgs …`: who may use the cluster, and for what."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from synth.cli.commands import judge_keys
from synth.cli.connect import open_client
from synth.cli.tui import output
from synth.cli.tui.output import Format, Output
from synth.console.errors import UsageProblem

if TYPE_CHECKING:
    from synth.api.schemas import Key, MadeKey

app = typer.Typer(help="API keys of your organisation: ls, create, rotate, revoke; judge.", no_args_is_help=True)
app.add_typer(judge_keys.app, name="judge")
orgs_app = typer.Typer(help="Organisations, with an operator's key: ls, create.", no_args_is_help=True)

KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="The key's id, as `keys ls` shows it.")]
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@app.command("ls")
def ls(ctx: typer.Context, fmt: Output = Format.TABLE) -> None:
    """List the keys of your organisation, oldest first, including ended ones."""
    with open_client(ctx) as client:
        keys = client.keys.list()
    if fmt is Format.JSON:
        return output.print_json(keys)
    rows = [[k.id, k.name, k.state, _opens(k), _end(k), output.age(k.created_at)] for k in keys]
    return output.print_table(("id", "name", "state", "opens", "ends in", "age"), rows, wrap="opens")


@app.command("create")
def create(
    ctx: typer.Context,
    name: Annotated[str, typer.Option(help="A label for people.")] = "key",
    scopes: Annotated[
        str | None,
        typer.Option(
            help="What it may do: some of read, write, inference, keys, operator, with commas.",
            show_default="read,write,inference",
        ),
    ] = None,
    url: Annotated[
        bool,
        typer.Option("--url", help="Print a URL that opens only chat, for a client that can send nothing but a URL."),
    ] = False,
    bus: Annotated[
        bool,
        typer.Option("--bus", help="Print a password with which a subscriber on the bus reads only your events."),
    ] = False,
    model: Annotated[str | None, typer.Option(help="With --url: the one model that it opens; without it, all.")] = None,
    expires_in: Annotated[
        str | None, typer.Option(help="As 90d, 12h or 30m; without it never, or after a day with --url.")
    ] = None,
    org: Annotated[str | None, typer.Option(help="Of another organisation; needs an operator's key.")] = None,
    fmt: Output = Format.TABLE,
) -> None:
    """Make a key; prints it, which happens once. It can do no more than the key that makes it."""
    seconds = None if expires_in is None else read_seconds(expires_in, "--expires-in")
    requested = [scope.strip() for scope in (scopes or "read,write,inference").split(",") if scope.strip()]
    if url and scopes is not None and requested != ["inference"]:
        raise UsageProblem(f"a URL cannot open {scopes[:60]!r}", expected="inference alone", where="--scopes")
    if bus and (url or scopes is not None):
        other = "--url" if url else "--scopes"
        raise UsageProblem("a bus key reads events and nothing else", expected=f"--bus without {other}", where=other)
    if model is not None and not url:
        raise UsageProblem("a key is for every model", expected="--url with it, or no --model", where="--model")
    with open_client(ctx) as client:
        kind = {"url": True, "model": model} if url else {"bus": True} if bus else {"scopes": requested}
        made = client.keys.create(org=org, name=name, expires_in_s=seconds, **kind)
        root = client.root.removesuffix("/api")
    _show_once(made, fmt, root)


@app.command("rotate")
def rotate(
    ctx: typer.Context,
    key: KeyArgument,
    grace: Annotated[str, typer.Option(help="For how long the old key still opens, as 24h or 30m.")] = "0",
    fmt: Output = Format.TABLE,
) -> None:
    """Replace a key by a new one of the same name and scopes; prints the new one, which happens once."""
    with open_client(ctx) as client:
        made = client.keys.rotate(key, grace_s=read_seconds(grace, "--grace"))
        root = client.root.removesuffix("/api")
    _show_once(made, fmt, root)


@app.command("revoke")
def revoke(ctx: typer.Context, key: KeyArgument, fmt: Output = Format.TABLE) -> None:
    """End a key, at once and for good. Revoking twice is revoking once."""
    with open_client(ctx) as client:
        revoked = client.keys.revoke(key)
    if fmt is Format.JSON:
        return output.print_json(revoked)
    return output.message(f"{revoked.id} {revoked.state}")


@orgs_app.command("ls")
def ls_orgs(ctx: typer.Context, fmt: Output = Format.TABLE) -> None:
    """List the organisations of the cluster, oldest first."""
    with open_client(ctx) as client:
        orgs = client.operator.organisations()
    if fmt is Format.JSON:
        return output.print_json(orgs)
    rows = [[o.id, o.name, output.age(o.created_at)] for o in orgs]
    return output.print_table(("id", "name", "age"), rows, wrap="name")


@orgs_app.command("create")
def create_org(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A label for people.")],
    fmt: Output = Format.TABLE,
) -> None:
    """Make an organisation; prints its first key, which happens once and may do everything in it."""
    with open_client(ctx) as client:
        made = client.operator.add_organisation(name)
    if fmt is Format.JSON:
        return output.print_json(made)
    output.message(f"organisation {made.id} ({made.name})")
    return _show_once(made.first_key, fmt)


def _show_once(made: MadeKey, fmt: Format, root: str = "") -> None:
    """Print a new key. root: the gateway's address, which a key that is part of a URL stands below."""
    if fmt is Format.JSON:
        return output.print_json(made)
    if made.path is not None:
        opens = f"chat with {made.model or 'every model'}, for anyone who has the URL, for {_end(made)}"
        output.message(f"{made.id} ({made.name}) opens {opens}; this is the only time that it is shown:")
        return output.print_line(root + made.path)
    if made.bus:
        hears = "hears your organisation's events on the bus, as the password of a connection"
        output.message(f"{made.id} ({made.name}) {hears}; this is the only time that it is shown:")
        return output.print_line(made.key)
    output.message(f"{made.id} ({made.name}) may {', '.join(made.scopes)}; this is the only time that it is shown:")
    return output.print_line(made.key)


def _opens(key: Key) -> str:
    if key.bus:
        return "events on the bus"
    return f"chat by URL: {key.model or 'every model'}" if key.url else ",".join(key.scopes)


def _end(key: Key) -> str:
    from datetime import UTC, datetime

    if key.state != "live" or key.expires_at is None:
        return "-"
    return output.duration((key.expires_at - datetime.now(UTC)).total_seconds())


def read_seconds(text: str, option: str) -> int:
    """Return the seconds of a duration such as 24h. Raises `UsageProblem`, which names the option."""
    match = re.fullmatch(r"(\d{1,9})([smhd]?)", text.strip())
    if match is None:
        raise UsageProblem(
            f"{text[:40]!r} is not a duration", expected="a number and s, m, h or d, as 24h", where=option
        )
    return int(match[1]) * _SECONDS[match[2] or "s"]
