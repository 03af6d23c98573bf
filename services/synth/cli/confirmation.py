"""Have the user confirm an origin for a key: on the terminal, or by a flag."""

from __future__ import annotations

import sys

import typer

from synth.client.connections.config import ConfigValue
from synth.client.connections.known_origins import (
    add_confirmation,
    is_confirmed,
    is_remembered,
    known_origins_file,
    require_confirmed,
)
from synth.client.connections.origins import is_loopback, origin_of
from synth.console.plain_text import printable


def confirm(key: ConfigValue, address: ConfigValue) -> None:
    """Have the user confirm the address for the key on the terminal, unless it is confirmed already.

    Raises `UnconfirmedOrigin` if there is no terminal, or the answer is no.
    """
    if not is_confirmed(key, address):
        _ask(key, address)
        remember(key.name, address.text)


def _ask(key: ConfigValue, address: ConfigValue) -> None:
    origin = origin_of(address.text)
    if sys.stdin.isatty() and sys.stderr.isatty():
        clear = ", over http, where everybody on the way can read it" if origin.startswith("http:") else ""
        _print(f"{key.label} was never sent to {origin} ({address.label}).")
        try:
            if typer.confirm(printable(f"Send it there, now and later{clear}?"), default=False, err=True):
                return
        except typer.Abort:
            _print("")
    require_confirmed(key, address)


def remember(name: str, url: str) -> None:
    """Keep that the origin of a URL may receive the key of this name. If the file cannot be written, warn."""
    origin = origin_of(url)
    if is_loopback(url) or is_remembered(name, origin):
        return
    file = known_origins_file()
    try:
        add_confirmation(name, origin)
    except OSError as error:
        _print(f"warning: {origin} is confirmed for this command alone: {file}: {error.strerror}")
    else:
        _print(f"{origin} is confirmed for {name}; to undo it, remove its line from {file}")


def _print(text: str) -> None:
    sys.stderr.write(printable(text) + "\n")
