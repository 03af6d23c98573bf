"""A key ends when it expires or is revoked; the gateway forgets keys that ended long ago."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from synth.bus.kv.secrets import ApiKey
from synth.gateway.auth import ApiKeyCache
from synth.ids import OrgId

NOW = datetime.now(UTC)


def key(number: int, *, ended: timedelta) -> ApiKey:
    id, org = f"key_{number}", OrgId("org_1")
    made = {"name": "", "scopes": (), "created_at": NOW, "created_by": id}
    return ApiKey(key_id=id, org=org, digest=id, revoked_at=NOW - ended, **made)


def test_a_key_is_valid_until_it_expires_or_is_revoked() -> None:
    nothing: Any = None
    keys = ApiKeyCache(nothing, nothing)
    live = msgspec.structs.replace(key(1, ended=timedelta(0)), revoked_at=None, expires_at=NOW + timedelta(days=1))
    expired = msgspec.structs.replace(live, expires_at=NOW - timedelta(seconds=1))
    revoked = msgspec.structs.replace(live, revoked_at=NOW)
    assert [each.active for each in (live, expired, revoked)] == [True, False, False]
    keys.remember("digest", live)
    assert keys.still_valid(live)
    for ended in (expired, revoked):
        keys.remember("digest", ended)
        assert not keys.still_valid(live)


def test_keys_that_ended_long_ago_are_forgotten_and_those_of_late_are_not() -> None:
    nothing: Any = None
    keys = ApiKeyCache(nothing, nothing, ended_kept_s=60)
    for number in range(5000):
        keys.remember(f"{number}", key(number, ended=timedelta(days=1)))
    for number in range(5000, 5010):
        keys.remember(f"{number}", key(number, ended=timedelta(seconds=1)))
    assert len(keys.ending()) < 1100
    assert not any(keys.still_valid(key(number, ended=timedelta(0))) for number in range(5000, 5010))
