"""Organisations, and what a key of one may do."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

import msgspec

from synth.ids import OrgId


class Scope(StrEnum):
    """What a key may do."""

    READ = "read"
    WRITE = "write"
    INFERENCE = "inference"
    KEYS = "keys"
    OPERATOR = "operator"


#: What the first key of an organisation may do: everything in it, nothing beside it.
ORGANISATION_SCOPES = (Scope.READ, Scope.WRITE, Scope.INFERENCE, Scope.KEYS)


class Organisation(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant. id: the token in its subjects; name: a label for people."""

    id: OrgId
    name: str
    created_at: datetime
