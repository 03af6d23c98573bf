"""API keys and organisations as the API shows them. A key itself is shown once, when it is made."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from synth.bus.kv.secrets import ApiKey, Organisation, Scope


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """An API key without its secret. created_by: the id of the key that made it."""

    id: str
    object: Literal["key"] = "key"
    name: str
    state: Literal["live", "expired", "revoked"]
    scopes: tuple[Scope, ...]
    created_at: datetime
    created_by: str
    expires_at: datetime | None = None
    revoked_at: datetime | None = None


class MadeKey(Key, frozen=True, kw_only=True):
    """An API key as it is shown once. key: what goes into SYNTH_API_KEY."""

    key: str


class MadeOrganisation(Organisation, frozen=True, kw_only=True):
    """An organisation and its first key, which may do everything in it."""

    first_key: MadeKey


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """Who calls: the organisation, and the key that is used."""

    org: str
    org_name: str
    key_id: str
    key_name: str
    scopes: tuple[Scope, ...]


def show_key(record: ApiKey) -> Key:
    """What everybody of the organisation may see of a key."""
    return Key(
        id=record.key_id,
        name=record.name,
        state="revoked" if record.revoked_at else "expired" if record.expired else "live",
        scopes=record.scopes,
        created_at=record.created_at,
        created_by=record.created_by,
        expires_at=record.expires_at,
        revoked_at=record.revoked_at,
    )


def show_made_key(record: ApiKey, key: str) -> MadeKey:
    """What its maker sees of a new key."""
    return MadeKey(**msgspec.structs.asdict(show_key(record)), key=key)
