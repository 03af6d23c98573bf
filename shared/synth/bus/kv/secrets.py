"""Organisations, their API keys, their environment keys and their keys of judges, in their KV bucket.

They are the one thing that is not in the log: events carry key ids only. Of an API key its hash is kept, the others
are sealed with the cluster's secret. A record of an API key is never removed: a revoked one says so.
"""

# nats-py annotates parts of itself not at all.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import hmac
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import msgspec
from nats.aio.msg import Msg
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError, NotFoundError
from nats.js.kv import KeyValue

from synth.access import Organisation, Scope
from synth.bus.connection import Connection
from synth.bus.reading import read_across_reconnects
from synth.bus.replay import replay_messages
from synth.bus.server.topology import SECRETS
from synth.errors import Conflict, Permanent
from synth.ids import OrgId, new_org_id
from synth.keys import key_hash, key_id, mistyped, new_api_key, new_url_key, seal, unseal

#: Where API keys lie in the bucket, one subject each: `….api.<hash>`.
API_KEYS = f"$KV.{SECRETS}.api."

_MAX_RACES = 10
_BUCKET_S = 10.0

_T = TypeVar("_T")


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of an API key. The key itself is shown once and never stored.

    created_by: the id of the key that made it, its own for the bootstrap key. url: it opens chat completions at its
    own URL, and nothing as a bearer; model: the one model that it may then ask for, None for all of the organisation.
    """

    org: OrgId
    key_id: str
    name: str
    scopes: tuple[Scope, ...]
    created_at: datetime
    created_by: str
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    url: bool = False
    model: str | None = None

    @property
    def expired(self) -> bool:
        return self.expires_at is not None and self.expires_at <= datetime.now(UTC)

    @property
    def active(self) -> bool:
        """Whether it is neither revoked nor expired."""
        return self.revoked_at is None and not self.expired


class EnvironmentKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key that opens a user's task app."""

    id: str
    key: str


class JudgeKey(msgspec.Struct, frozen=True, kw_only=True):
    """The key of a judge's API. origin: scheme, host and port, the one place that it is sent to."""

    key: str
    origin: str


class _Sealed(msgspec.Struct, frozen=True, kw_only=True):
    sealed: str


class SecretStore:
    """Reads and (in the gateway) writes the secrets of all organisations."""

    def __init__(self, bus: Connection, cluster_secret: str) -> None:
        self._bus = bus
        self._cluster_secret = cluster_secret

    # -- organisations --

    async def add_organisation(self, name: str) -> Organisation:
        """A new organisation, without a key."""
        made = Organisation(id=new_org_id(), name=name, created_at=datetime.now(UTC))
        await self._create(f"org.{made.id}", made)
        return made

    async def organisation(self, org: str) -> Organisation | None:
        """The organisation of this id."""
        return await self._get(f"org.{org}", Organisation)

    async def organisations(self) -> list[Organisation]:
        """Every organisation of the cluster, the oldest first."""
        return [msgspec.json.decode(m.data, type=Organisation) for m in await self._entries("org.")]

    # -- API keys --

    async def ensure_api_key(self, key: str, *, name: str = "bootstrap") -> ApiKey:
        """The record of this key, with every scope in a new organisation if it has none yet; two replicas agree on one.

        Raises `Permanent` for a mistyped key, which could never be used.
        """
        if mistyped(key):
            raise Permanent("SYNTH_BOOTSTRAP_API_KEY begins with synth_live_ but its checksum is wrong: it is mistyped")
        record = _record(new_org_id(), key, name=name, scopes=tuple(Scope), by=key_id(key))
        if not await self._create(f"api.{key_hash(key)}", record):
            found = await self.find_api_key(key)
            assert found is not None
            record = found
        # Apart from the key's own making, so that a process that died between the two is made up for.
        await self._create(
            f"org.{record.org}", Organisation(id=record.org, name="default", created_at=record.created_at)
        )
        return record

    async def add_api_key(
        self, org: OrgId, *, name: str, scopes: tuple[Scope, ...], by: str, expires_at: datetime | None = None
    ) -> tuple[str, ApiKey]:
        """Make a key of this organisation; returns it, which happens once, and its record."""
        key = new_api_key()
        record = _record(org, key, name=name, scopes=scopes, by=by, expires_at=expires_at)
        await self._create(f"api.{key_hash(key)}", record)
        return key, record

    async def add_url_key(
        self, org: OrgId, *, name: str, by: str, expires_at: datetime, model: str | None = None
    ) -> tuple[str, ApiKey]:
        """Make a URL key of this organisation, for one model or for all; returns it, once, and its record."""
        key = new_url_key()
        record = _record(org, key, name=name, scopes=(Scope.INFERENCE,), by=by, expires_at=expires_at)
        record = msgspec.structs.replace(record, url=True, model=model)
        await self._create(f"api.{key_hash(key)}", record)
        return key, record

    async def find_api_key(self, key: str) -> ApiKey | None:
        """The record of this key, which may be revoked or expired; None for an unknown key."""
        return await self._get(f"api.{key_hash(key)}", ApiKey)

    async def api_keys(self, org: str) -> list[ApiKey]:
        """Every key that this organisation ever had, the oldest first."""
        found = [msgspec.json.decode(m.data, type=ApiKey) for m in await self._entries("api.")]
        return sorted((key for key in found if key.org == org), key=lambda key: key.created_at)

    async def revoke_api_key(self, org: str, id: str, *, after: timedelta = timedelta()) -> ApiKey | None:
        """End a key, at once or after a while; None when the organisation has no such key.

        A key that ends sooner, or has ended, is left as it is.
        """
        now = datetime.now(UTC)

        def ended(record: ApiKey) -> ApiKey:
            if not record.active:
                return record
            if not after:
                return msgspec.structs.replace(record, revoked_at=now)
            until = now + after
            sooner = until if record.expires_at is None else min(until, record.expires_at)
            return msgspec.structs.replace(record, expires_at=sooner)

        for message in await self._entries("api."):
            record = msgspec.json.decode(message.data, type=ApiKey)
            if (record.org, record.key_id) == (org, id):
                return await self._change(message.subject.removeprefix(f"$KV.{SECRETS}."), ApiKey, ended)
        return None

    # -- environment keys --

    async def add_environment_key(self, org: str, key: str) -> str:
        """Keep an environment key of this organisation; returns its public id."""
        bucket = await self._bus.js.key_value(SECRETS)
        id = key_id(key)
        body = msgspec.json.encode(_Sealed(sealed=seal(key, self._cluster_secret)))
        await bucket.put(f"env.{org}.{id}", body)
        return id

    async def environment_keys(self, org: str) -> list[EnvironmentKey]:
        """Every environment key of this organisation, newest last. Raises `InvalidKey` under another secret."""
        return [
            EnvironmentKey(
                id=m.subject.rsplit(".", 1)[-1],
                key=unseal(msgspec.json.decode(m.data, type=_Sealed).sealed, self._cluster_secret),
            )
            for m in await self._entries(f"env.{org}.")
        ]

    async def owners_of_environment_key(self, key: str) -> list[OrgId]:
        """The organisations that keep this very environment key; none for one that nobody has stored."""
        owners: list[OrgId] = []
        seq = 1
        while True:
            try:
                # By its public id first, which is in the subject; the read costs no consumer.
                found = await self._bus.js.get_msg(
                    f"KV_{SECRETS}", seq=seq, subject=f"$KV.{SECRETS}.env.*.{key_id(key)}", direct=True, next=True
                )
            except NotFoundError:
                return owners
            assert found.seq is not None
            seq = found.seq + 1
            if not found.data:  # what a deletion leaves
                continue
            stored = unseal(msgspec.json.decode(found.data, type=_Sealed).sealed, self._cluster_secret)
            if hmac.compare_digest(stored.encode(), key.encode()):
                owners.append(OrgId((found.subject or "").split(".")[-2]))

    async def remove_environment_key(self, org: str, id: str) -> bool:
        """Forget an environment key; False when the organisation has no such key."""
        bucket = await self._bus.js.key_value(SECRETS)
        if all(m.subject.rsplit(".", 1)[-1] != id for m in await self._entries(f"env.{org}.")):
            return False
        await bucket.delete(f"env.{org}.{id}")
        return True

    # -- keys of judges' APIs --

    async def put_judge_key(self, org: str, name: str, key: str, *, origin: str) -> None:
        """Keep the key of a judge's API under a name of the organisation, in place of an earlier one.

        It is sealed together with its origin (`synth.http_guard.origin_of`), so that neither can be changed alone.
        """
        bucket = await self._bus.js.key_value(SECRETS)
        stored = msgspec.json.encode(JudgeKey(key=key, origin=origin)).decode()
        await bucket.put(f"judge.{org}.{name}", msgspec.json.encode(_Sealed(sealed=seal(stored, self._cluster_secret))))

    async def judge_key(self, org: str, name: str) -> JudgeKey | None:
        """The key of this name. Raises `InvalidKey` under another secret."""
        found = await self._get(f"judge.{org}.{name}", _Sealed)
        if found is None:
            return None
        return msgspec.json.decode(unseal(found.sealed, self._cluster_secret), type=JudgeKey)

    async def judge_keys(self, org: str) -> list[str]:
        """The names of the organisation's keys of judges."""
        return sorted(m.subject.rsplit(".", 1)[-1] for m in await self._entries(f"judge.{org}."))

    async def remove_judge_key(self, org: str, name: str) -> bool:
        """Forget a key of a judge; False when the organisation has none of this name."""
        if name not in await self.judge_keys(org):
            return False
        bucket = await self._bus.js.key_value(SECRETS)
        await bucket.delete(f"judge.{org}.{name}")
        return True

    # -- the bucket --

    async def _entries(self, prefix: str) -> list[Msg]:
        """The entries below a prefix, the longest unchanged first."""
        subjects = [f"$KV.{SECRETS}.{prefix}>"]
        stream = f"KV_{SECRETS}"
        found = await replay_messages(self._bus.nc, subjects, stream=stream, last_per_subject=True, timeout=_BUCKET_S)
        # A deletion leaves a marker without a body.
        return [m for m in found if m.data]

    async def _get(self, key: str, kind: type[_T]) -> _T | None:
        async def read() -> KeyValue.Entry:
            return await (await self._bus.js.key_value(SECRETS)).get(key)

        try:
            entry = await read_across_reconnects(self._bus, read)
        except KeyNotFoundError:
            return None
        return msgspec.json.decode(entry.value or b"", type=kind)

    async def _create(self, key: str, record: msgspec.Struct) -> bool:
        """Write a record where there is none; False where there is one."""
        bucket = await self._bus.js.key_value(SECRETS)
        try:
            await bucket.create(key, msgspec.json.encode(record))
        except KeyWrongLastSequenceError:
            return False
        return True

    async def _change(self, key: str, kind: type[_T], change: Callable[[_T], _T]) -> _T:
        """Replace a record by what follows from it, as it stands. Raises `Conflict` when others never cease to."""
        bucket = await self._bus.js.key_value(SECRETS)
        for _ in range(_MAX_RACES):
            entry = await bucket.get(key)
            old = msgspec.json.decode(entry.value or b"", type=kind)
            new = change(old)
            if new == old:
                return old
            try:
                await bucket.update(key, msgspec.json.encode(new), last=entry.revision)
            except KeyWrongLastSequenceError:
                continue
            return new
        raise Conflict("the key is being changed by others; try again")


def _record(
    org: OrgId,
    key: str,
    *,
    name: str,
    scopes: tuple[Scope, ...],
    by: str,
    expires_at: datetime | None = None,
) -> ApiKey:
    return ApiKey(
        org=org,
        key_id=key_id(key),
        name=name,
        scopes=scopes,
        created_at=datetime.now(UTC),
        created_by=by,
        expires_at=expires_at,
    )
