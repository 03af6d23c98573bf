"""What an environment key must be, however it arrives: the task app gets it in an HTTP header."""

from __future__ import annotations

from synth.errors import Problem
from synth.gateway.errors import ApiError

#: Bytes of the longest key.
LONGEST = 8 << 10


def check_environment_key(key: str) -> str:
    """The key itself. Raises a 400 for one that no header can carry; the key is not repeated in it."""
    what = None
    if not key:
        what = "the environment key is empty"
    elif len(key.encode()) > LONGEST:
        what = f"the environment key has {len(key.encode()):,} bytes"
    elif not (key.isascii() and key.isprintable()) or key.strip() != key:
        what = "the environment key has characters that no HTTP header can carry, or blanks around it"
    if what is None:
        return key
    problem = Problem(what=what, expected=f"printable ASCII, 1 to {LONGEST:,} bytes: what your task app compares with")
    raise ApiError(400, problem.text(), problems=[problem])
