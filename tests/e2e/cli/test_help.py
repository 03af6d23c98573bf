"""The help of every command, on terminals of three widths, without colours, and through a pipe: all of it is there."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from tests.e2e.cli.looks import LOOKS, Words, every_command
from tests.e2e.cli.terminal import Shown, synthctl

pytestmark = pytest.mark.timeout(1200)

COMMANDS = every_command()
#: What typer says of types and arguments, and people can do without.
NOISE = re.compile(r"<\w+>|\{[A-Z_]+\}|\[\d*<?=?x[<>]=?|\bINTEGER\b|\bFLOAT\b|Traceback")

Helps = dict[str, dict[Words, Shown]]


@pytest.fixture(scope="module")
def helps(tmp_path_factory: pytest.TempPathFactory) -> Helps:
    """By look, then by command."""
    folder = tmp_path_factory.mktemp("help")
    asked = [[*words, "--help"] for words in COMMANDS]
    return {name: dict(zip(COMMANDS, look.at(asked, folder), strict=True)) for name, look in LOOKS.items()}


@pytest.mark.parametrize("look", LOOKS)
def test_the_help_of_every_command_fits_and_says_all_that_it_says_elsewhere(look: str, helps: Helps):
    for words, shown in helps[look].items():
        assert shown.code == 0
        assert max(map(len, shown.lines)) <= (LOOKS[look].columns or 80), words
        assert shown.text.split() == helps["piped"][words].text.split(), words
        assert not NOISE.search(shown.text), words


def test_the_help_of_every_command_has_its_whole_text_and_each_of_its_options(helps: Helps):
    for words, command in COMMANDS.items():
        text = " ".join(helps["44"][words].text.split())
        assert " ".join(inspect.cleandoc(command.help).split()) in text, words
        options = {name for p in command.params if not p.hidden for name in p.opts if name.startswith("-")}
        assert options <= set(re.findall(r"-[\w-]+", text)), words
        assert {*getattr(command, "commands", ())} <= set(text.split()), words


def test_only_a_terminal_with_colours_gets_escape_codes(helps: Helps):
    for words in COMMANDS:
        assert "\x1b[" in helps["80"][words].raw, words
        assert "\x1b" not in helps["NO_COLOR"][words].raw + helps["piped"][words].raw, words


@pytest.mark.parametrize("columns", [120, 80, 44])
def test_what_cannot_be_understood_is_an_error_that_names_the_help(columns: int, tmp_path: Path):
    shown = synthctl(columns, "jobs", "ls", "--limit", "0", cwd=tmp_path)
    assert shown.code == 2
    assert max(map(len, shown.lines)) <= columns
    said = " ".join(shown.text.split())
    assert said.startswith("error: --limit: input should be greater than or equal to 1 expected synthctl jobs ls")
    assert said.endswith("see synthctl jobs ls --help")
    group = synthctl(columns, "jobs", cwd=tmp_path)
    assert group.code == 2
    assert "Usage: synthctl jobs" in group.text
