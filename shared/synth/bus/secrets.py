"""Secrets in their KV bucket: hashes of API keys, and environment keys sealed with the cluster's secret.

They are the one thing that is not in the log: events carry key ids only.
"""

# nats-py annotates parts of itself not at all.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import msgspec
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError

from synth.bus.connection import Connection
from synth.bus.replay import replay_messages
from synth.bus.topology import SECRETS
from synth.ids import OrgId, new_org_id
from synth.keys import key_hash, key_id, seal, unseal


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of an API key: whose it is. The key itself is shown once and never stored."""

    org: OrgId
    key_id: str


class EnvironmentKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key that opens a user's task app."""

    id: str
    key: str


class _Sealed(msgspec.Struct, frozen=True, kw_only=True):
    sealed: str


class SecretStore:
    """Reads and (in the gateway) writes the secrets of all organisations."""

    def __init__(self, bus: Connection, cluster_secret: str) -> None:
        self._bus = bus
        self._cluster_secret = cluster_secret

    async def ensure_api_key(self, key: str) -> ApiKey:
        """The record of this key, in a new organisation if it has none yet; two replicas agree on one."""
        bucket = await self._bus.js.key_value(SECRETS)
        record = ApiKey(org=new_org_id(), key_id=key_id(key))
        try:
            await bucket.create(f"api.{key_hash(key)}", msgspec.json.encode(record))
        except KeyWrongLastSequenceError:
            found = await self.find_api_key(key)
            assert found is not None
            return found
        return record

    async def find_api_key(self, key: str) -> ApiKey | None:
        """Whose key this is; None for one that we do not know."""
        bucket = await self._bus.js.key_value(SECRETS)
        try:
            entry = await bucket.get(f"api.{key_hash(key)}")
        except KeyNotFoundError:
            return None
        return msgspec.json.decode(entry.value or b"", type=ApiKey)

    async def add_environment_key(self, org: str, key: str) -> str:
        """Keep an environment key of this organisation; returns its public id."""
        bucket = await self._bus.js.key_value(SECRETS)
        id = key_id(key)
        body = msgspec.json.encode(_Sealed(sealed=seal(key, self._cluster_secret)))
        await bucket.put(f"env.{org}.{id}", body)
        return id

    async def environment_keys(self, org: str) -> list[EnvironmentKey]:
        """Every environment key of this organisation, newest last. Raises `InvalidKey` under another secret."""
        prefix = f"$KV.{SECRETS}.env.{org}."
        messages = await replay_messages(
            self._bus.nc, [prefix + ">"], stream=f"KV_{SECRETS}", last_per_subject=True, timeout=10
        )
        return [
            EnvironmentKey(
                id=m.subject.removeprefix(prefix),
                key=unseal(msgspec.json.decode(m.data, type=_Sealed).sealed, self._cluster_secret),
            )
            for m in messages
        ]
