"""What a check of the hardening list found: a result, what was seen and where, and how to repair it."""

from __future__ import annotations

from typing import Literal

import msgspec

Result = Literal["ok", "warning", "failed", "not checked"]

#: What the services take for a switch that is on, as pydantic reads it.
_ON = frozenset({"1", "true", "t", "yes", "y", "on"})


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one check at one place.

    found: what was seen, or why it could not be seen. where: the file, the address or the processes. fix: what repairs
    it, or what would let it be checked; "" for `ok`.
    """

    check: str
    result: Result
    found: str
    where: str = ""
    fix: str = ""


def is_on(value: str) -> bool:
    """Return whether a service takes this value of a switch for on."""
    return value.strip().lower() in _ON
