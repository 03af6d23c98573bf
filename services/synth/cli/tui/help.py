"""The format of help: one text for a terminal of any width and a pipe, without types that a word explains."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import typer
from typer.core import TyperArgument, TyperGroup, TyperOption
from typer.exceptions import TyperException

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

_WORDS = {"str": "TEXT", "int": "N", "float": "X"}
#: Longer lines are hard to read, however wide the terminal is.
_WIDEST = 100
#: Below this a description stands under its term rather than beside it.
_NARROWEST_BESIDE = 28
_LONGEST_TERM = 34
_INDENT = 2
_GAP = 2

#: A term, such as an option, and its meaning.
Entry = tuple[str, str]


class Listing(NamedTuple):
    """A command's row in the help of its group. heading: of its part of the list."""

    name: str
    heading: object
    help: str | None
    hidden: bool


def tidy(command: Any) -> None:
    """Make the help of a command and of all below it read so."""
    for param in command.params:
        _tidy_parameter(param)
    command.get_help = lambda ctx: help_text(command, ctx)
    if isinstance(command, TyperGroup):
        for below in command.commands.values():
            tidy(below)


def help_text(command: Any, ctx: typer.Context) -> str:
    """Return the help of a command, wrapped for standard output, and styled if that has colours."""
    from synth.cli.tui.output import out

    console = out()
    with console.capture() as captured:
        for part in _parts(command, ctx, min(console.width, _WIDEST)):
            console.print(part, width=min(console.width, _WIDEST))
    return "\n".join(line.rstrip() for line in captured.get().rstrip("\n").split("\n"))


def usage(command: Any, ctx: typer.Context) -> str:
    """Return the usage of a command, in one line."""
    return " ".join([ctx.command_path, *command.collect_usage_pieces(ctx)])


def explain_usage(error: TyperException) -> int:
    """Print what is wrong with a command line, or the help of a group without a command. Returns the exit code."""
    from synth.cli.tui.output import show_problems
    from synth.errors import Problem

    ctx, param = getattr(error, "ctx", None), getattr(error, "param", None)
    what = error.format_message()
    if type(error).__name__ == "NoArgsIsHelpError":
        # Our own help, with its styles.
        typer.echo(what, err=True)
        return error.exit_code
    where = ctx.command_path if ctx else ""
    if param is not None and error.message:
        what, where = error.message.removeprefix("Value error, "), " / ".join(param.opts)
    expected, fix = (usage(ctx.command, ctx), f"see {ctx.command_path} --help") if ctx else ("", "")
    what = what[:1].lower() + what[1:].rstrip(".")
    what, _, near = what.partition(". Did you mean ")
    if near:
        fix = f"did you mean {near}"
    elif options := getattr(error, "possibilities", None):
        option = getattr(error, "option_name", "")
        [near] = difflib.get_close_matches(option, options, n=1, cutoff=0.0)
        what, fix = f"no such option: {option}", f"did you mean {near!r}?"
    show_problems([Problem(what=what, where=where, expected=expected, fix=fix)])
    return error.exit_code


def _parts(command: Any, ctx: typer.Context, width: int) -> Iterator[RenderableType]:
    from rich.text import Text

    yield Text.assemble(("Usage: ", "bold"), usage(command, ctx))
    for paragraph in _paragraphs(command.help):
        yield ""
        yield _styled(paragraph)
    for heading, entries in _sections(command, ctx):
        yield Text(f"\n{heading}:", style="bold")
        yield from _listed(entries, width)


def _sections(command: Any, ctx: typer.Context) -> Iterator[tuple[str, list[Entry]]]:
    """Arguments, options and commands under their headings, each heading once and in the order of declaration."""
    groups: dict[str, list[Entry]] = {"Arguments": [], "Options": []}
    for param in command.get_params(ctx):
        # None of a hidden one.
        if entry := param.get_help_record(ctx):
            groups["Arguments" if isinstance(param, TyperArgument) else "Options"].append(entry)
    for below in _listings(command) if isinstance(command, TyperGroup) else ():
        if not below.hidden:
            heading = below.heading if isinstance(below.heading, str) else "Commands"
            groups.setdefault(heading, []).append((below.name, next(_paragraphs(below.help), "")))
    yield from ((heading, entries) for heading, entries in groups.items() if entries)


def _listings(group: Any) -> Iterator[Listing]:
    if list_unbuilt := getattr(group.commands, "listings", None):
        yield from list_unbuilt()
        return
    for below in group.commands.values():
        yield Listing(below.name or "", getattr(below, "rich_help_panel", None), below.help, below.hidden)


def _paragraphs(text: str | None) -> Iterator[str]:
    for paragraph in inspect.cleandoc(text or "").split("\n\n"):
        if paragraph:
            yield " ".join(paragraph.split())


def _listed(entries: Sequence[Entry], width: int) -> Iterator[RenderableType]:
    """Yield the entries with their meanings in a column beside them, or below them if it would be too narrow."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    column = max((len(term) for term, _ in entries if len(term) <= _LONGEST_TERM), default=0) + _INDENT + _GAP
    beside = width - column >= _NARROWEST_BESIDE
    for term, about in entries:
        name = Padding(Text(term, style="cyan"), (0, 0, 0, _INDENT))
        if beside and len(term) <= _LONGEST_TERM:
            grid = Table.grid()
            grid.add_column(width=column)
            grid.add_column(overflow="fold")
            grid.add_row(name, _styled(about))
            yield grid
        else:
            yield name
            yield Padding(_styled(about), (0, 0, 0, column if beside else 3 * _INDENT))


def _styled(text: str) -> Text:
    """Style prose: commands and keys stand out, and the brackets at its end do not."""
    from rich.text import Text

    styled = Text(text)
    styled.highlight_regex(r"`[^`]+`", "cyan")
    styled.highlight_regex(r"  \[[^\[\]]+\]$", "dim")
    return styled


def _tidy_parameter(param: Any) -> None:
    bounds = _bounds(param.min, param.max) if isinstance(param, TyperArgument | TyperOption) else None
    param._get_number_range_help_str = lambda: bounds
    if isinstance(param, TyperArgument):
        name = param.metavar or param.name.upper()
        choices = "|".join(str(choice.value) for choice in param.type_descriptor.choices or ())
        param.get_usage_pieces = lambda ctx: [name if param.required else f"[{name}]"]
        param.display_type_rich = lambda ctx: choices or None
    elif isinstance(param, TyperOption) and param.metavar is None and not param.is_flag:
        kind = param.type_descriptor
        if kind.is_choice:
            param.metavar = "|".join(str(choice.value) for choice in kind.choices or ())
        elif kind.is_path:
            param.metavar = "PATH"
        else:
            param.metavar = _WORDS.get(param.bare_type().removeprefix("list[").rstrip("]"), "TEXT")


def _bounds(least: float | None, most: float | None) -> str | None:
    if least is None and most is None:
        return None
    if least is None or most is None:
        return f"at most {most}" if least is None else f"at least {least}"
    return f"{least} to {most}"
