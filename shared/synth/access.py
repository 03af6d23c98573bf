"""Organisations, and the scopes of their keys."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

import msgspec

from synth.ids import OrgId


class Scope(StrEnum):
    """The actions that a key allows."""

    READ = "read"
    WRITE = "write"
    INFERENCE = "inference"
    KEYS = "keys"
    OPERATOR = "operator"


#: The scopes of the first key of an organisation: everything in it, nothing outside.
ORGANISATION_SCOPES = (Scope.READ, Scope.WRITE, Scope.INFERENCE, Scope.KEYS)


class Organisation(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant. id: the token in its subjects; name: a label for people."""

    id: OrgId
    name: str
    created_at: datetime
