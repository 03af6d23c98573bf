"""How help reads: no types where a word says it, no braces around arguments, and plain text off a terminal."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperArgument, TyperGroup, TyperOption

_WORDS = {"str": "TEXT", "int": "N", "float": "X"}


def tidy(command: Any, *, plain: bool) -> None:
    """Make the help of a command and of all below it read so. plain: without boxes and styles."""
    if plain:
        command.rich_markup_mode = None
    for param in command.params:
        _tidy_parameter(param)
    made = command.get_help_option

    def help_option(ctx: typer.Context) -> Any:
        option = made(ctx)
        if option is not None:
            option.metavar = ""
        return option

    command.get_help_option = help_option
    if isinstance(command, TyperGroup):
        for below in command.commands.values():
            tidy(below, plain=plain)


def _tidy_parameter(param: Any) -> None:
    if isinstance(param, TyperArgument):
        name = param.metavar or param.name.upper()
        choices = "|".join(str(choice.value) for choice in param.type_descriptor.choices or ())
        param.get_usage_pieces = lambda ctx: [name if param.required else f"[{name}]"]
        param.display_type_rich = lambda ctx: choices or None
    elif isinstance(param, TyperOption) and param.metavar is None:
        kind = param.type_descriptor
        if param.is_flag:
            param.metavar = ""
        elif kind.is_choice:
            param.metavar = "|".join(str(choice.value) for choice in kind.choices or ())
        elif kind.is_path:
            param.metavar = "PATH"
        else:
            param.metavar = _WORDS.get(param.bare_type().removeprefix("list[").rstrip("]"), "TEXT")
