"""The outcome of a check of the hardening list: a result, the observation and its place, and the fix."""

from __future__ import annotations

from typing import Literal

import msgspec

Result = Literal["ok", "warning", "failed", "not checked"]

#: The values that turn a switch on, as pydantic reads them.
_ON = frozenset({"1", "true", "t", "yes", "y", "on"})


class Finding(msgspec.Struct, frozen=True):
    """The outcome of one check at one place.

    found: the observation, or why there is none. where: the file, the address or the processes. fix: how to repair it,
    or how to make the check possible; "" for `ok`.
    """

    check: str
    result: Result
    found: str
    where: str = ""
    fix: str = ""


def is_on(value: str) -> bool:
    """Return whether a service takes this value of a switch for on."""
    return value.strip().lower() in _ON
