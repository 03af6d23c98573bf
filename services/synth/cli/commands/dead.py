"""`synthctl dead …`: what services could not handle, and what an operator does about it."""

from __future__ import annotations

from typing import Annotated

import typer

from synth.cli.connect import open_client
from synth.cli.tui import output
from synth.cli.tui.output import Format, Output

app = typer.Typer(help="Dead letters, with an operator's key: ls, show, retry, drop.", no_args_is_help=True)

LetterArgument = Annotated[int, typer.Argument(metavar="ID", min=1, help="The letter's number, as `dead ls` shows it.")]


@app.command("ls")
def ls(
    ctx: typer.Context,
    settled: Annotated[bool, typer.Option("--all", help="Also letters that were retried or dropped.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="How many.")] = 50,
    fmt: Output = Format.TABLE,
) -> None:
    """List the messages that services could not handle, oldest first, and why."""
    with open_client(ctx) as client:
        letters = [*client.operator.dead_letters(limit=limit + 1, settled=settled)]
    letters, more = letters[:limit], len(letters) > limit
    if fmt is Format.JSON:
        return output.print_json(letters)
    if not letters:
        return output.message("no dead letters" if settled else "no open dead letters")
    rows = [
        [str(d.id), d.service, _kind(d.subject), d.about or "-", d.state, output.age(d.created_at), d.reason]
        for d in letters
    ]
    output.print_table(("id", "service", "what", "of", "state", "age", "reason"), rows, wrap="reason")
    if more:
        output.hint(f"there are more; --limit {2 * limit} shows them")
    return None


@app.command("show")
def show(ctx: typer.Context, letter: LetterArgument, fmt: Output = Format.TABLE) -> None:
    """Show one dead letter with its payload, which may contain a user's text."""
    with open_client(ctx) as client:
        detail = client.operator.dead_letter(letter)
    if fmt is Format.JSON:
        return output.print_json(detail)
    d = detail.letter
    state = f"{d.state} by {d.settled_by}" if d.settled_by else d.state
    output.print_pairs(
        [
            ("letter", str(d.id)),
            ("state", state),
            ("service", d.service),
            ("subject", d.subject),
            ("organisation", d.org or "-"),
            ("of", d.about or "-"),
            ("event", str(d.seq) if d.seq else "-"),
            ("age", output.age(d.created_at)),
            ("size", output.size(d.bytes)),
            ("reason", d.reason),
            ("payload", detail.payload + (" …" if detail.cut else "")),
        ]
    )
    return None


@app.command("retry")
def retry(ctx: typer.Context, letter: LetterArgument, fmt: Output = Format.TABLE) -> None:
    """Have it handled again: its event or task is queued again, or its parked job is resumed."""
    with open_client(ctx) as client:
        done = client.operator.retry_letter(letter)
    if fmt is Format.JSON:
        return output.print_json(done)
    what = f"{done.letter.about} is resumed" if done.how == "resumed" else f"{done.letter.about} is queued again"
    return output.message(f"{letter} retried: {what}; if it fails again, that is another letter")


@app.command("drop")
def drop(ctx: typer.Context, letter: LetterArgument, fmt: Output = Format.TABLE) -> None:
    """Settle it: nothing more is done about it."""
    with open_client(ctx) as client:
        done = client.operator.drop_letter(letter)
    if fmt is Format.JSON:
        return output.print_json(done)
    return output.message(f"{letter} dropped")


def _kind(subject: str) -> str:
    """`job.created`, or `train task`."""
    words = subject.split(".")
    return f"{words[1]} task" if words[0] == "work" and len(words) > 1 else ".".join(words[:2])
