"""The origins that may receive a key: loopback, and those that the user has confirmed once.

A file of the user's own keeps the confirmations, one `KEY ORIGIN` a line, as SSH keeps its known hosts. It is never a
file of the working directory: a repository that somebody else wrote could bring one. For the same reason an address in
a `.env` is not confirmed by the key beside it, which the user or `synthctl up` may have added to the file.
"""

from __future__ import annotations

import os
from pathlib import Path

from synth.client.connections.config import PAIRED, ConfigValue, user_environment
from synth.client.connections.origins import is_loopback, origin_of
from synth.console.errors import UsageProblem

#: How a script confirms an origin, by key.
_HOW = {
    "SYNTH_API_KEY": "`synthctl --trust-backend …`, or `synthctl setup --backend URL`",
    "ENVIRONMENT_API_KEY": "--trust-app, or `synthctl setup --task-url URL`",
    "OPENAI_API_KEY": "--trust-model-url",
}
#: Origins that need no confirmation, because they issue the key.
_ISSUERS = {("OPENAI_API_KEY", "https://api.openai.com")}
#: Confirmations of this process: they hold even if the file cannot be written.
_confirmed: set[tuple[str, str]] = set()


class UnconfirmedOrigin(UsageProblem):
    """A key would be sent to an origin that the user has not confirmed."""


def known_origins_file() -> Path:
    """Return the file of the confirmations: `~/.config/synthctl/known_origins`, or below XDG_CONFIG_HOME."""
    folder = Path(user_environment().get("XDG_CONFIG_HOME", ""))
    # A relative one would be in the working directory, which may be somebody else's.
    return (folder if folder.is_absolute() else Path.home() / ".config") / "synthctl" / "known_origins"


def is_confirmed(key: ConfigValue, address: ConfigValue) -> bool:
    """Return whether a key may be sent to an address.

    An address and a key that are both set in the environment, or both in the program, are a pair that the user has set.
    """
    entry = (key.name, origin_of(address.text))
    return (
        is_loopback(address.text)
        or (key.origin == address.origin and key.origin in PAIRED)
        or entry in _ISSUERS
        or is_remembered(*entry)
    )


def is_remembered(name: str, origin: str) -> bool:
    """Return whether the user has confirmed an origin for the key of this name."""
    return (name, origin) in _confirmed or (name, origin) in _read()


def require_confirmed(key: ConfigValue, address: ConfigValue) -> None:
    """Raise `UnconfirmedOrigin` if the key may not be sent to the address."""
    if is_confirmed(key, address):
        return
    raise UnconfirmedOrigin(
        f"{key.label} is not sent to {origin_of(address.text)}, an origin that you have not confirmed",
        expected="an address on this machine, or an origin that you have confirmed once",
        fix=f"if this origin may have the key, confirm it: {_HOW[key.name]}",
        where=address.label,
    )


def _read() -> set[tuple[str, str]]:
    file = known_origins_file()
    try:
        status, lines = file.stat(), file.read_text(encoding="utf-8", errors="replace").split("\n")
    except FileNotFoundError:
        return set()
    if os.name == "posix" and status.st_mode & 0o022:
        raise UsageProblem(
            "other users can write this file, which decides where your keys are sent",
            expected="a file of your own, with mode 600",
            fix=f"check its lines, then: chmod 600 {file}",
            where=str(file),
        )
    return {(words[0], words[1]) for line in lines if len(words := line.split()) == 2}


def add_confirmation(name: str, origin: str) -> None:
    """Keep that an origin may receive the key of this name. Raises `OSError`: it then holds for this process."""
    _confirmed.add((name, origin))
    file = known_origins_file()
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # One short write at the end of the file: two commands at once lose nothing.
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, f"{name} {origin}\n".encode())
    finally:
        os.close(descriptor)
