"""The program is built once for all commands that run in the tests' own process."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest
import typer

from synth.cli import app


@pytest.fixture(scope="session", autouse=True)
def one_program() -> Iterator[None]:
    """To build it takes a third of a second, and the result is the same each time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.testing._get_command", cache(typer.main.get_command))
        patch.setattr(app, "build", cache(app.build))
        yield
