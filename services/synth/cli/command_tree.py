"""The commands of `synthctl`, each built when it is used: building all of them takes longer than most commands."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from typing import Any

import typer
from typer.main import get_command_from_info, get_group_from_info, solve_typer_info_help
from typer.models import CommandInfo, TyperInfo

from synth.cli.tui.help import Listing, tidy


class LazyCommands(dict[str, Any]):
    """The commands and groups of a program by their names. An entry is built, and tidied, at its first use."""

    def __init__(self, program: typer.Typer) -> None:
        infos = [*program.registered_commands, *program.registered_groups]
        super().__init__({str(info.name): None for info in infos})
        self._infos: dict[str, CommandInfo | TyperInfo] = {str(info.name): info for info in infos}
        self._program = program

    def __getitem__(self, name: str) -> Any:
        if super().__getitem__(name) is None:
            self[name] = self._build(self._infos[name])
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a command; `default` if there is no command of this name."""
        try:
            return self[name]
        except KeyError:
            return default

    def values(self) -> Any:
        """Return all commands, in the order of the help."""
        return [self[name] for name in self]

    def items(self) -> Any:
        """Return all commands with their names, in the order of the help."""
        return [(name, self[name]) for name in self]

    def listings(self) -> Iterator[Listing]:
        """Yield the rows of the help, without building the commands."""
        for name, info in self._infos.items():
            group = isinstance(info, TyperInfo)
            about = solve_typer_info_help(info) if group else info.help or inspect.getdoc(info.callback)
            yield Listing(name, info.rich_help_panel, about, info.hidden is True)

    def _build(self, info: CommandInfo | TyperInfo) -> Any:
        if isinstance(info, TyperInfo):
            command: Any = get_group_from_info(
                info,
                pretty_exceptions_short=self._program.pretty_exceptions_short,
                suggest_commands=self._program.suggest_commands,
                rich_markup_mode=None,
            )
        else:
            command = get_command_from_info(
                info, pretty_exceptions_short=self._program.pretty_exceptions_short, rich_markup_mode=None
            )
        tidy(command)
        return command


def build_lazily(program: typer.Typer) -> Any:
    """Return a program as one group of click, whose commands are built when they are used."""
    bare = copy.copy(program)
    bare.registered_commands, bare.registered_groups = [], []
    group: Any = typer.main.get_command(bare)
    tidy(group)
    group.commands = LazyCommands(program)
    return group
